r"""Decides whether bytes are one JSON text, by the grammar of RFC 8259 alone.

A parser also has to represent the values, and refuses texts that the grammar allows: `"\ud83d"`, which is half of a
surrogate pair (section 7), and `1e400`, for which there is no double (section 6).  Origins store both.  A command or a
bridge that only copies messages must pass them on.
"""

from __future__ import annotations

import json
from typing import Final, Never

import orjson


def is_json(data: bytes) -> bool:
    """Whether `data` is one JSON text in UTF-8, nested at most some 1,000 deep (RFC 8259 section 9 allows a limit)."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return _follows_grammar(data)
    return True


def _follows_grammar(data: bytes) -> bool:
    try:
        _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> Never:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse)
"""Makes no value of a number: a long one takes quadratic time to convert."""
