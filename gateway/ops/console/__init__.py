"""The console: a page on the admin port that shows the gateway's state and lets developers try streams.

`site` serves the page's files.  `relay` reads and writes streams for the page through the gateway's public port.  The
page is plain HTML, CSS and ES modules under `static/`, without a build step.  It uses the admin API like any other
client.

The files need no token, because a browser cannot send a token when it loads a page.  They contain no data.  All later
requests of the page are under `/api/` and `/metrics`, where the admin port's checks apply.
"""
