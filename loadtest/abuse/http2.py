"""The parts of HTTP/2 that an abusive client needs: requests without bodies, resets, and which requests have ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Self

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from loadtest.abuse.wire import Cut, Wire

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4)
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_ENDS_STREAM, _ENDS_HEADERS, _ACK = 0x1, 0x4, 0x1
_WINDOW: Final = 4
_CANCEL: Final = (8).to_bytes(4, "big")


class Http2:
    """One connection.  Raises Cut when it has ended."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._next_id = 1
        self._rest = b""

    @classmethod
    async def open(cls, port: int, source: str) -> Self:
        """Connect with prior knowledge."""
        wire = await Wire.open(port, source)
        await wire.send(_PREFACE)
        return cls(wire)

    async def ask(self, target: str, *, resets: bool = False) -> None:
        """Send a request, and reset it at once if asked."""
        fields = ((":method", "GET"), (":scheme", "http"), (":authority", "edge.test"), (":path", target))
        data = _frame(_HEADERS, _ENDS_STREAM | _ENDS_HEADERS, self._next_id, self._encoder.encode(fields))
        if resets:
            data += _frame(_RST_STREAM, 0, self._next_id, _CANCEL)
        self._next_id += 2
        await self._wire.send(data)

    async def upload_in_bytes(self, target: str, size: int) -> None:
        """Send a request whose body of `size` bytes, less than a window, comes in DATA frames of one byte."""
        fields = (
            (":method", "POST"), (":scheme", "http"), (":authority", "edge.test"), (":path", target),
            ("content-type", "text/plain"),
        )  # fmt: skip
        stream, self._next_id = self._next_id, self._next_id + 2
        head = _frame(_HEADERS, _ENDS_HEADERS, stream, self._encoder.encode(fields))
        last = _frame(_DATA, _ENDS_STREAM, stream, b"x")
        await self._wire.send(head + _frame(_DATA, 0, stream, b"x") * (size - 1) + last)

    async def resize_windows(self, settings: int, times: int) -> None:
        """Send SETTINGS frames that each change the window of every stream `settings` times."""
        values = (_WINDOW.to_bytes(2, "big") + (65_535 + n % 2).to_bytes(4, "big") for n in range(settings))
        await self._wire.send(_frame(_SETTINGS, 0, 0, b"".join(values)) * times)

    async def ended(self, got: Counter[str], for_s: float) -> int:
        """Read for that long; return the number of requests that have ended, and count their statuses."""
        count = 0
        try:
            async with asyncio.timeout(for_s):
                while True:
                    data = await self._wire.some()
                    if not data:
                        raise Cut("the connection has ended")
                    self._rest += data
                    count += await self._taken(got)
        except TimeoutError:
            return count

    async def _taken(self, got: Counter[str]) -> int:
        count = 0
        while len(self._rest) >= 9 and len(self._rest) >= 9 + (size := int.from_bytes(self._rest[:3], "big")):
            kind, flags, payload = self._rest[3], self._rest[4], self._rest[9 : 9 + size]
            self._rest = self._rest[9 + size :]
            if kind == _HEADERS:
                got[self._status(payload)] += 1
            if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _ENDS_STREAM):
                count += 1
            if kind == _RST_STREAM:
                got["reset"] += 1
            if kind == _GOAWAY:
                got["GOAWAY"] += 1
            if kind == _SETTINGS and not flags & _ACK:
                await self._wire.send(_frame(_SETTINGS, _ACK, 0, b""))
        return count

    def _status(self, block: bytes) -> str:
        try:
            return next(
                bytes(value).decode() for name, value in self._decoder.decode(block, raw=True) if name == b":status"
            )
        except (HPACKError, StopIteration) as error:
            raise Cut(str(error)) from error

    def close(self) -> None:
        """Drop the connection."""
        self._wire.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
