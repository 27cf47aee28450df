"""The console: a page on the admin port that shows what the gateway does, and lets a developer try streams.

`site` serves the page's files, `relay` reads and writes streams for it, through the gateway's public port.  The page
itself is plain HTML, CSS and ES modules under `static/`; it has no build step and knows the gateway by the admin API
alone, as any other client of it would.

The files tell nothing and so are served to whoever reaches the port (a browser cannot send a token for a page);
everything the page then asks for lies under `/api/` and `/metrics`, behind the admin port's own checks.
"""
