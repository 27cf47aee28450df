"""Replies as they arrive: what they hold."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import cast

from gateway.upstream.incoming import MOST_READ_BYTES, Carrier, IncomingReply, Line


def test_a_body_in_tiny_pieces_takes_little_more_than_its_bytes() -> None:
    """An origin may send each byte pair in a chunk or frame of its own, and the reader may be slow."""
    incoming = IncomingReply(cast("Carrier", SimpleNamespace(is_reading=True)), cast("Line", None))
    pieces = [number.to_bytes(2) for number in range(MOST_READ_BYTES // 4)]
    body = b"".join(pieces)
    del pieces
    tracemalloc.start()
    try:
        for number in range(MOST_READ_BYTES // 4):
            incoming.received([number.to_bytes(2)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert incoming.unread_bytes == len(body)
    assert held < 2 * len(body)
    assert incoming.take() == body
    assert (incoming.unread_bytes, incoming.take()) == (0, None)
