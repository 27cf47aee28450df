r"""JSON in bodies, without a change to its bytes: one text checked by the grammar, and arrays without their brackets.

`is_json` decides whether bytes are one JSON text, by the grammar of RFC 8259 alone.  A parser also has to represent the
values, and refuses texts that the grammar allows: `"\ud83d"`, which is half of a surrogate pair (section 7), and
`1e400`, for which there is no double (section 6).  Origins store both.  A command or a bridge that only copies messages
must pass them on.

`ArrayUnwrapper` removes an array's outer brackets as it streams, so that arrays can be joined (section 7.1).  A JSON
stream's tape holds the elements' text without brackets; a reply is `[` + text + `]`.  It takes an origin's array in
pieces and returns the elements' text in pieces.  It never parses or re-serialises: number formats and spacing belong to
the writer.  It holds back the trailing run of whitespace, commas and `]`, because only the end of the body tells
whether the last `]` is the outer one.

It checks both ends and not the middle: a body with a broken middle passes through unchanged.  A comma before the last
bracket is dropped (the spec's own SSE example has one).
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
"""Converts no number to a value, because the conversion of a long number takes quadratic time."""


_SPACE: Final = b" \t\r\n"
_TRAILING: Final = b" \t\r\n,]"


class NotAnArray(ValueError):
    """The body is not one JSON array."""


class ArrayUnwrapper:
    """Yields one array's elements as text while the array arrives.  Use a new instance for each body."""

    __slots__ = ("_bracket_seen", "_element_seen", "_held")

    def __init__(self) -> None:
        self._bracket_seen = False
        self._element_seen = False
        self._held = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no element has been seen; final once `finish` has returned."""
        return not self._element_seen

    def feed(self, chunk: bytes) -> bytes:
        """The element text that is final after this piece; may be empty.

        Raises `NotAnArray` as soon as the beginning shows that the body is not an array.
        """
        if not self._bracket_seen:
            chunk = chunk.lstrip(_SPACE)
            if not chunk:
                return b""
            if chunk[0] != 0x5B:
                raise NotAnArray("a JSON reply does not begin with [")
            self._bracket_seen = True
            chunk = chunk[1:]
        if not self._element_seen:
            chunk = self._before_first(chunk)
        core = chunk.rstrip(_TRAILING)
        if not core:
            self._held += chunk
            return b""
        self._element_seen = True
        if self._held:
            text = bytes(self._held) + core
            self._held.clear()
        else:
            text = core
        if len(core) < len(chunk):
            self._held += chunk[len(core) :]
        return text

    def _before_first(self, chunk: bytes) -> bytes:
        """Skip whitespace before the first element and check that the next byte may follow `[`."""
        chunk = chunk.lstrip(_SPACE)
        if chunk and (self._held or chunk[0] == 0x2C):
            # Text after `[]`, or `[,`.
            raise NotAnArray("a JSON reply is not one array")
        if chunk and chunk[0] == 0x5D:
            self._held += b"]"
            if chunk[1:].strip(_SPACE):
                raise NotAnArray("a JSON reply is not one array")
            return b""
        return chunk

    def finish(self) -> bytes:
        """The rest of the element text after the last piece.  Raises `NotAnArray` if the array did not end."""
        held = bytes(self._held).rstrip(_SPACE)
        if not held.endswith(b"]"):
            raise NotAnArray("a JSON reply does not end with ]")
        inner = held[:-1].rstrip(_SPACE)
        if inner.endswith(b","):
            inner = inner[:-1].rstrip(_SPACE)
            if inner.endswith(b","):
                raise NotAnArray("a JSON reply has an element missing")
        return inner


def unwrap(body: bytes) -> bytes:
    """The element text of one complete array.  Raises `NotAnArray`."""
    if body[:1] == b"[" and body[-1:] == b"]" and body[1] not in _TRAILING and body[-2] not in _TRAILING:
        return body[1:-1]
    unwrapper = ArrayUnwrapper()
    text = unwrapper.feed(body)
    rest = unwrapper.finish()
    return text + rest if rest else text
