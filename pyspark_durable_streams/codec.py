"""orjson, which the sink needs and the source does not, or one line that says so.

There is no second codec to fall back on: a batch that is sent again must have the same bytes, whatever Python sends it.
"""

from __future__ import annotations

try:
    import orjson
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "writing durable_streams needs orjson on the driver and on every worker: pip install orjson"
    ) from None

__all__ = ["orjson"]
