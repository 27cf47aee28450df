"""TLS as an abusive client speaks it: any certificate will do, and each byte is sent in a record of its own."""

from __future__ import annotations

import ssl
from typing import Final, Self

from loadtest.abuse.wire import Cut, Wire

_SENT_AT_ONCE: Final = 1_000
"""Records in one write."""


class Tls:
    """One connection.  Raises Cut when it has ended."""

    def __init__(self, wire: Wire) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._wire = wire
        self._arrived = ssl.MemoryBIO()
        self._made = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._made)

    @classmethod
    async def open(cls, port: int, source: str) -> Self:
        """Connect, and shake hands."""
        made = cls(await Wire.open(port, source))
        try:
            while not made._shakes_hands():
                await made._flush()
                await made._receive()
            await made._flush()
        except BaseException:
            made.close()
            raise
        return made

    def _shakes_hands(self) -> bool:
        """Go on with the handshake; return whether it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise Cut(str(error)) from error
        return True

    async def send_in_bytes(self, data: bytes) -> None:
        """Send each byte in a record of its own."""
        for at in range(0, len(data), _SENT_AT_ONCE):
            for byte in data[at : at + _SENT_AT_ONCE]:
                self._tls.write(bytes((byte,)))
            await self._flush()

    async def status(self) -> str:
        """The status of the reply."""
        head = b""
        while b"\r\n" not in head:
            try:
                head += self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                await self._receive()
            except ssl.SSLError as error:
                raise Cut(str(error)) from error
        return head.split(b" ")[1].decode()

    async def _flush(self) -> None:
        await self._wire.send(self._made.read())

    async def _receive(self) -> None:
        data = await self._wire.some()
        if not data:
            raise Cut("the connection has ended")
        self._arrived.write(data)

    def close(self) -> None:
        """Drop the connection."""
        self._wire.close()
