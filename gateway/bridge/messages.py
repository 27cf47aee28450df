"""JSON bodies cut into messages without a change to any of them (section 7.1).

An append's body is one message, or an array of messages: exactly one level of array is removed.  The messages keep
their bytes.  Parsed and written again they would not: numbers would lose digits, and objects repeated names.
"""

from __future__ import annotations

import json
from typing import Final, Never

import orjson

from gateway.s2.records import MAX_BATCH_RECORDS

_SPACE: Final = " \t\r\n"


class BadMessages(ValueError):
    """The body is not JSON."""


def is_message(body: bytes) -> bool:
    """Whether the bytes are one JSON text in UTF-8."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def split_messages(body: bytes, most: int = MAX_BATCH_RECORDS) -> list[bytes]:
    """The messages of an append's body; none for an empty array.  Raises `BadMessages`.

    If there are more than `most`, only one more of them is returned: an array of a million takes a second to cut.
    """
    # One parser decides what is JSON, so that what is appended is also what reads take for a message.
    if not is_message(body):
        raise BadMessages
    text = body.decode()
    at = _skip(text, 0)
    if text[at] != "[":
        return [text.strip(_SPACE).encode()]
    found: list[bytes] = []
    at = _skip(text, at + 1)
    while text[at] != "]" and len(found) <= most:
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise BadMessages from error
        found.append(text[at:end].encode())
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _refuse(name: str) -> Never:
    raise ValueError(name)


_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
"""Only the ends of the values matter: numbers stay text, because a long one takes quadratic time to convert."""
