"""orjson, which the sink needs and the source does not, or one line that says so.

There is no second codec to fall back on when messages are written: a batch that is sent again must have the same bytes,
whatever Python sends it.
"""

from __future__ import annotations

import json
from typing import Any, Final, Never

try:
    import orjson
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "writing durable_streams needs orjson on the driver and on every worker: pip install orjson"
    ) from None

__all__ = ["orjson", "parsed"]


def parsed(text: bytes) -> Any:
    r"""The value of a JSON text, for its form only: numbers may be replaced by others.  Raises ValueError.

    The grammar of RFC 8259 decides.  It allows texts that orjson cannot represent, such as `"\ud83d"` (section 7) and
    `1e400` (section 6), nested at most some 1,000 deep (section 9 allows a limit).
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return _GRAMMAR.decode(text.decode())
        except RecursionError:
            raise ValueError("nested too deep") from None


def _refuse(name: str) -> Never:
    raise ValueError(name)


_GRAMMAR: Final = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse)
"""Makes no value of a number: a long one takes quadratic time to convert."""
