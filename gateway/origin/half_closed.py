"""Detects clients that have closed their connection, rather than only shut down their sending side.

A half-closed client may still read its answer.  A closed connection looks the same until something is written to it.
So bytes without effect are written to a client that waits for its answer.  If the client's machine rejects them, the
connection is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Bytes that have no effect before an answer's head (RFC 9110 section 15.2)."""
LEADING_ZERO: Final = b"0"
"""A byte that has no effect before a chunk size (RFC 9112 section 7.1)."""
_LOOK_S: Final = 0.1
_AGAIN_S: Final = 5.0


def watch(transport: asyncio.Transport, probe: Callable[[], bytes | None]) -> None:
    """Drop the connection of a half-closed client once the client is gone.

    `probe` returns the bytes that may be written now.  It returns None to drop the client, if the body has stopped and
    nothing may be written within it.
    """
    loop = asyncio.get_running_loop()

    def look(has_probed: bool) -> None:
        if transport.is_closing():
            return
        if transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
            return
        if has_probed:
            loop.call_later(_AGAIN_S, look, False)
            return
        data = probe()
        if data is None:
            transport.abort()
            return
        if data:
            transport.write(data)
        loop.call_later(_LOOK_S, look, bool(data))

    loop.call_later(_LOOK_S, look, False)
