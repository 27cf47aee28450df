"""durable-gateway: a reverse proxy that understands Durable Streams.

Every byte of a stream leaves the origin once, and every live stream costs the origin one connection, however many
clients read it.  `app.py` is the composition root; `pyproject.toml` lists the layers below it, which import-linter
enforces.
"""

__version__ = "0.1.0"
