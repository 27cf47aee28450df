"""Taking the outer brackets off a JSON array while it streams by, so that arrays can be joined (section 7.1).

A JSON stream's tape holds the elements' text without brackets; a reply is `[` + text + `]`.  `ArrayUnwrapper` takes an
origin's array in pieces and gives the elements' text in pieces: never parsed, never re-serialised, because numbers and
spacing are the writer's.  It holds back the run of whitespace, commas and `]` at the end of what it has seen, since
only the end of the body tells whether the last `]` was the outer one.

It checks the two ends and not what lies between: a body with a broken middle comes out as broken as it went in.
A comma before the last bracket is dropped (the spec's own SSE example has one).
"""

from __future__ import annotations

from typing import Final

_SPACE: Final = b" \t\r\n"
_TRAILING: Final = b" \t\r\n,]"


class NotAnArray(ValueError):
    """The body is not one JSON array."""


class ArrayUnwrapper:
    """One array's elements, as text, while the array arrives.  The state is one body's; use a new one for each."""

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
        """The element text that is certain after this piece; may be empty.

        Raises `NotAnArray` as soon as the beginning shows that the body is none.
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
        """Skip space before the first element; see that what follows `[` can follow it."""
        chunk = chunk.lstrip(_SPACE)
        if chunk and (self._held or chunk[0] == 0x2C):
            # Something after `[]`, or `[,`.
            raise NotAnArray("a JSON reply is not one array")
        if chunk and chunk[0] == 0x5D:
            self._held += b"]"
            if chunk[1:].strip(_SPACE):
                raise NotAnArray("a JSON reply is not one array")
            return b""
        return chunk

    def finish(self) -> bytes:
        """The rest of the element text, after the last piece.  Raises `NotAnArray` when the array did not end."""
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
    """The element text of one whole array.  Raises `NotAnArray`."""
    unwrapper = ArrayUnwrapper()
    text = unwrapper.feed(body)
    rest = unwrapper.finish()
    return text + rest if rest else text
