r"""JSON in message bodies, without changing its bytes: a grammar check, and removal of an array's brackets.

`is_json` checks bytes against the grammar of RFC 8259.  An ordinary parser also has to represent the values, so it
refuses some texts that the grammar allows.  Examples are `"\ud83d"`, which is half of a surrogate pair (section 7), and
`1e400`, which is too large for a double (section 6).  Origins store both, and code that only copies messages must
forward them.

`ArrayUnwrapper` removes the outer brackets of an array while it arrives, so that arrays can be joined (section 7.1).
The tape of a JSON stream (its bytes in memory) holds the text of the elements, and a reply adds the brackets.  The
elements are neither parsed nor serialised, so number formats and spacing stay as written.  Trailing whitespace, commas
and `]` are kept back, because only the end of the body shows whether the last `]` is the outer one.

The unwrapper checks both ends of the body, but not its middle.  Invalid JSON in the middle is passed on unchanged.  A
comma before the last bracket is dropped (the specification's own SSE example has one).
"""

from __future__ import annotations

import json
from typing import Final, Never

import orjson


def is_json(data: bytes) -> bool:
    """Return whether `data` is one JSON text in UTF-8.

    The nesting is limited to some 1,000 levels (RFC 8259 section 9 allows a limit).
    """
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
"""Does not convert numbers to values, because converting a long number takes quadratic time."""


_SPACE: Final = b" \t\r\n"
_TRAILING: Final = b" \t\r\n,]"


class NotAnArray(ValueError):
    """The body is not one JSON array."""


class ArrayUnwrapper:
    """Returns the text of an array's elements while the array arrives.  Use a new instance for each body."""

    __slots__ = ("_bracket_seen", "_element_seen", "_held")

    def __init__(self) -> None:
        self._bracket_seen = False
        self._element_seen = False
        self._held = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether the array has had no element so far.  The value is final when `finish` has returned."""
        return not self._element_seen

    def feed(self, chunk: bytes) -> bytes:
        """Take the next piece of the body.  Return the further text that certainly belongs to elements, possibly empty.

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
        """Skip whitespace before the first element, and check that the next byte may follow `[`."""
        chunk = chunk.lstrip(_SPACE)
        if chunk and (self._held or chunk[0] == 0x2C):
            # There is text after `[]`, or the body begins with `[,`.
            raise NotAnArray("a JSON reply is not one array")
        if chunk and chunk[0] == 0x5D:
            self._held += b"]"
            if chunk[1:].strip(_SPACE):
                raise NotAnArray("a JSON reply is not one array")
            return b""
        return chunk

    def finish(self) -> bytes:
        """Return the rest of the element text after the last piece.  Raises `NotAnArray` if the array is incomplete."""
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
    """Return the element text of one complete array.  Raises `NotAnArray`."""
    if body[:1] == b"[" and body[-1:] == b"]" and body[1] not in _TRAILING and body[-2] not in _TRAILING:
        return body[1:-1]
    unwrapper = ArrayUnwrapper()
    text = unwrapper.feed(body)
    rest = unwrapper.finish()
    return text + rest if rest else text
