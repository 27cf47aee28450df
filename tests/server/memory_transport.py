"""A client's connection without a socket: its input is given by calls, and its output is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

PEER = "192.0.2.1"


class MemoryTransport(asyncio.Transport):
    """Takes all output at once, unless the test has paused its protocol."""

    def __init__(self, protocol: asyncio.BaseProtocol, peer: str = PEER) -> None:
        super().__init__({"peername": (peer, 40_000)})
        self.protocol = protocol
        self.output = bytearray()
        self.reads = True
        self.has_written_eof = False
        self._is_closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.output += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_written_eof = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close; the protocol learns of it in the next turn, as with a socket."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close
