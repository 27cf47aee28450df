"""Compares bytes that are held with the bytes that the origin has at the same offset.

Offsets alone do not show that held bytes are the stream's.  A stream that was deleted and re-created may have equal
offsets, a start sentinel stands for another position once the origin has trimmed the stream, and an origin may have
sent another stream's reply.  The first bytes show most of these, so `MOST_COMPARED` of them are compared.

The length shows the rest: a trimmed stream of equal messages begins as before, and is shorter.  If a reply ends at an
offset that the tape knows, its body has to be all the bytes held up to there.  Its Content-Length may show that; if it
does not, up to `MOST_COUNTED` bytes are compared.

JSON messages are compared as text, because `1` and `1.0` are two messages.  Only the white space between messages may
differ.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.protocol.json_array import ArrayUnwrapper
from gateway.protocol.offsets import is_before
from gateway.tape.tape import Tape

MOST_COMPARED: Final = 1 << 16
"""Bytes compared.  A reply with at most as many more is read to its end, so that its connection can be kept."""
MOST_COUNTED: Final = 1 << 20
"""Bytes compared if the Content-Length does not show that the reply has as many bytes as are held."""
MOST_CLOSED_UP: Final = 1 << 14
"""Bytes in which only white space between messages may differ, and none inside of them: to find out takes long.  Behind
these, all white space may differ."""
_SPACE: Final = b" \t\r\n"
_MOST_SPACE: Final = 1 << 12
"""Bytes of white space between messages that are read, besides one for each byte held."""

_OUTER: Final = re.compile(rb'[ \t\r\n]+|["\[\]{}]')
_INNER: Final = re.compile(rb'["\[\]{}]')
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Comparison:
    """One comparison.  Give it the origin's body with `feed` until `is_over`; then `agrees`."""

    def __init__(self, tape: Tape, start: str, end: str, length: int | None) -> None:
        """Compare the bytes that the tape holds after `start` with a reply that leads to `end`.

        `length` is the reply's Content-Length in bytes; None if it has none.
        """
        self._unwrapper = ArrayUnwrapper() if tape.is_json else None
        extent = tape.extent(start, end)
        is_known = extent.end == tape.resolve(end)
        is_same_length = length == extent.size + (0 if self._unwrapper is None else 2)
        self._is_other_length = is_known and length is not None and not is_same_length and self._unwrapper is None
        self._is_exact = is_known and extent.size <= (MOST_COMPARED if is_same_length else MOST_COUNTED)
        """Whether the whole body is compared."""
        self.is_past = not is_known and is_before(extent.end, end)
        """Whether the reply ends after all the bytes that are held, so that its length shows nothing."""
        limit = extent.size if self._is_exact else min(extent.size, MOST_COMPARED)
        self._held = tape.beginning(start, limit)
        self._is_all_held = limit == extent.size
        self._size = 0
        """Bytes found."""
        self._found = bytearray()
        """These bytes, as soon as they differ from those held."""
        self._most_found = limit + 1
        if self._is_exact and self._unwrapper is not None:
            self._most_found += limit + _MOST_SPACE
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether more of the body would make no difference."""
        return self._has_ended or self._is_other_length or self._size >= self._most_found

    def feed(self, chunk: bytes) -> None:
        """A part of the body has arrived.  Raises NotAnArray."""
        if not self.is_over:
            self._add(chunk if self._unwrapper is None else self._unwrapper.feed(chunk))

    def finish(self) -> None:
        """The body is complete.  Raises NotAnArray."""
        if not self.is_over:
            if self._unwrapper is not None:
                self._add(self._unwrapper.finish())
            self._has_ended = self._size < self._most_found

    def _add(self, found: bytes) -> None:
        at, found = self._size, found[: self._most_found - self._size]
        self._size += len(found)
        if not self._found:
            if self._held.startswith(found, at):
                # Many comparisons may be under way, and bytes are not kept twice.
                return
            self._found += self._held[:at]
        self._found += found

    @property
    def agrees(self) -> bool:
        """Whether the origin has the bytes that are held, as far as both are known; if none are held, there is nothing
        to contradict."""
        held = self._held
        found = bytes(self._found) if self._found else held[: self._size]
        if not held:
            return True
        if not found or self._is_other_length:
            return False
        if self._are_equal(held, found):
            return True
        # Answers that differ in kind may differ in the white space between messages.
        if self._unwrapper is None or not self._are_equal(held.translate(None, _SPACE), found.translate(None, _SPACE)):
            return False
        one, other = _close_up(held[:MOST_CLOSED_UP]), _close_up(found[:MOST_CLOSED_UP])
        size = min(len(one), len(other))
        return one[:size] == other[:size]

    def _are_equal(self, held: bytes, found: bytes) -> bool:
        if self._is_exact:
            return self._has_ended and held == found
        size = min(len(held), len(found))
        if held[:size] != found[:size] or (self.is_past and self._has_ended and len(found) < len(held)):
            return False
        is_message_whole = self._has_ended if len(found) == size else self._is_all_held
        follows = held[size : size + 1] or found[size : size + 1]
        return self._unwrapper is None or not is_message_whole or follows in (b"", b",")


def _close_up(text: bytes) -> bytes:
    """JSON messages joined by commas, without the white space around these commas and after the last message.  The last
    message may be cut off."""
    out = bytearray()
    depth = at = position = 0
    while (token := (_INNER if depth else _OUTER).search(text, position)) is not None:
        position = token.end()
        first = token[0][:1]
        if first == b'"':
            rest = _REST_OF_STRING.match(text, position)
            position = len(text) if rest is None else rest.end()
        elif first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        else:
            out += text[at : token.start()]
            at = position
            if text[at : at + 1] not in (b"", b",") and not out.endswith(b","):
                # It is inside of something that is no JSON value.
                out += b" "
    return bytes(out + text[at:])
