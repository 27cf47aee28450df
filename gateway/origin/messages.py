"""The JSON messages in a body, byte for byte as sent (section 7.1).

A parser validates the body, and a scanner cuts it.  Nothing is serialised again, so that `1.0`, `1e400` and a number of
forty digits are returned as sent.  One level of array is flattened.
"""

import json
import re
from typing import Final, NoReturn

_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))
_CLOSING: Final = frozenset((b"]", b"}"))
_WHITESPACE: Final = b" \t\r\n"


class InvalidJson(ValueError):
    """The body is not a single JSON text in UTF-8."""


def _no_constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is not JSON")


def split_messages(body: bytes) -> list[bytes]:
    """Split a body into its messages: the elements of a top-level array, or else the single value.

    Returns slices of `body` without surrounding whitespace; an empty array gives an empty list.
    Raises InvalidJson.
    """
    try:
        # parse_int=float, because int() rejects an integer of 5,000 digits, which is valid JSON.
        json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise InvalidJson("Invalid JSON") from error
    text = body.strip(_WHITESPACE)
    if not text.startswith(b"["):
        return [text]
    messages: list[bytes] = []
    depth = 0
    begin = 1
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                last = text[begin : match.start()].strip(_WHITESPACE)
                if last:
                    messages.append(last)
        elif mark == b"," and depth == 1:
            messages.append(text[begin : match.start()].strip(_WHITESPACE))
            begin = match.end()
    return messages
