"""The console: a page on the admin port that shows what the gateway does and lets a developer try streams.

`site` serves the page's files.  `relay` reads and writes streams for it through the gateway's public port.  The page is
plain HTML, CSS and ES modules under `static/`, without a build step, and uses the admin API like any other client.

The files hold no data, so they are served without a token (a browser cannot send one when it loads a page).  Everything
that the page then requests is under `/api/` and `/metrics`, behind the admin port's checks.
"""
