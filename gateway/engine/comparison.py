"""Compares bytes that are held with the bytes that the origin has at the same offset.

Offsets alone do not show that held bytes are the stream's.  A stream that was deleted and re-created may have equal
offsets, a start sentinel stands for another position once the origin has trimmed the stream, and an origin may have
sent another stream's reply.  The first bytes show all of these, so only `MOST_COMPARED` of them are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from gateway.protocol.json_array import ArrayUnwrapper
from gateway.tape.tape import Tape

MOST_COMPARED: Final = 1 << 16
"""Bytes compared.  A reply with at most as many more is read to its end, so that its connection can be kept."""


class Comparison:
    """One comparison.  Give it the origin's body with `feed` until `is_over`; then `agrees`."""

    def __init__(self, tape: Tape, start: str) -> None:
        """Compare with the bytes that the tape holds after `start`."""
        reading = tape.read(start, MOST_COMPARED)
        held = bytearray()
        for piece in reading.pieces:
            held += piece[: MOST_COMPARED - len(held)]
            if len(held) == MOST_COMPARED:
                break
        self._held = bytes(held)
        self._is_all_held = len(held) == sum(map(len, reading.pieces))
        self._unwrapper = ArrayUnwrapper() if tape.is_json else None
        self._found = bytearray()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether more of the body would make no difference."""
        return self._has_ended or len(self._found) > len(self._held)

    def feed(self, chunk: bytes) -> None:
        """A part of the body has arrived.  Raises NotAnArray."""
        if not self.is_over:
            found = chunk if self._unwrapper is None else self._unwrapper.feed(chunk)
            self._found += found[: len(self._held) + 1 - len(self._found)]

    def finish(self) -> None:
        """The body is complete.  Raises NotAnArray."""
        if not self.is_over:
            if self._unwrapper is not None:
                self._found += self._unwrapper.finish()[: len(self._held) + 1 - len(self._found)]
            self._has_ended = True

    @property
    def agrees(self) -> bool:
        """Whether the origin has the bytes that are held, as far as both are known; if none are held, there is nothing
        to contradict."""
        held, found = self._held, bytes(self._found)
        if not held:
            return True
        size = min(len(held), len(found))
        if not size:
            return False
        is_equal = held[:size] == found[:size]
        if self._unwrapper is None:
            return is_equal
        follows = held[size : size + 1] if self._has_ended else found[size : size + 1] if self._is_all_held else b""
        if is_equal and follows in (b"", b","):
            return True
        # Answers that differ in kind may differ in the whitespace between messages.
        pairs = zip(_messages(held, self._is_all_held), _messages(found, self._has_ended), strict=False)
        return all([one == other for one, other in pairs] or [False])


def _messages(text: bytes, is_whole: bool) -> Iterator[object]:
    """The JSON values in messages joined by commas, up to the first that is not complete."""
    decoder, source, at = json.JSONDecoder(), text.decode("utf-8", "replace"), 0
    while at < len(source):
        try:
            value, at = decoder.raw_decode(source, at)
        except (ValueError, RecursionError):
            return
        rest = source[at : at + 1_000].lstrip(" \t\r\n")
        if not rest.startswith(",") and not (is_whole and not rest):
            return
        yield value
        at = source.find(",", at) + 1 or len(source)
        while source[at : at + 1] in (" ", "\t", "\r", "\n"):
            at += 1
