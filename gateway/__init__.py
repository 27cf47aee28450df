"""durable-gateway: a reverse proxy that understands Durable Streams.

Every byte of a stream leaves the origin once, and every live stream costs the origin one connection, however many
clients read it.  `app.py` is the composition root; the layers below it are listed in `pyproject.toml`, where
import-linter holds them.
"""

__version__ = "0.1.0"
