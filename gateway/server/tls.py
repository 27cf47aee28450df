"""TLS between a connection's transport and its protocol, once the handshake is over.

To the transport below this is the protocol, to the protocol above it is the transport.  OpenSSL works on two buffers in
memory (`ssl.MemoryBIO`): what comes is fed to it by slices and read from it until nothing more is whole; what is
written becomes records at once and is handed down, so that unsent bytes lie in the transport below alone, whose bounds
and whose back-pressure hold as they do without TLS.  Nothing is kept here but, while reading is paused, what had come.

Why not the event loop's own TLS: a connection that waits takes 18.6 KB with this (16.3 KB of them are OpenSSL 3.0's
own), 24.7 KB with uvloop's, 40 KB with aiofastnet's and 285 KB with asyncio's.

OpenSSL's buffers keep the size that they have grown to, which is why records and slices are small.  Renegotiation is
off (`gateway.server.certificates`); bytes from which nothing comes, such as a flood of key updates, are bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

SLICE_BYTES: Final = 1 << 14
"""So much is fed to OpenSSL at a time, and so much can a record hold (RFC 8446 section 5.1)."""
_RECORD_BYTES: Final = 1 << 13
"""So much goes into a record of what is written."""
_MOST_SILENT: Final = 1 << 16
"""Bytes that may come without a byte of plain text in them: a record that is not whole is a quarter of it."""
_MOST_ANSWERS: Final = 1 << 16
"""Bytes of TLS's own that a client may have the gateway send over the life of a connection, such as answers to key
updates (RFC 8446 section 4.6.3): some thousands, where a good client asks for one in many gigabytes."""
_OF_TLS: Final = frozenset({"cipher", "compression", "peercert", "ssl_object", "sslcontext"})


class _State(Enum):
    """How far the two ends have ended."""

    OPEN = "open"
    PEER_ENDED = "peer ended"
    """The other side will send no more."""
    ENDED = "ended"
    """This side has sent its last; what still comes is dropped unread."""
    CLOSED = "closed"


# Looked up for every request.
_OPEN: Final = _State.OPEN
_PEER_ENDED: Final = _State.PEER_ENDED
_ENDED: Final = _State.ENDED
_CLOSED: Final = _State.CLOSED
_MUTE: Final = (_ENDED, _CLOSED)


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One connection under TLS.  Owner of its OpenSSL objects; `connect` makes it work."""

    __slots__ = (
        "_answer_bytes",
        "_held",
        "_incoming",
        "_is_paused",
        "_outgoing",
        "_protocol",
        "_raw",
        "_silent_bytes",
        "_ssl",
        "_state",
    )

    def __init__(
        self,
        raw: asyncio.Transport,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        protocol: asyncio.Protocol,
    ) -> None:
        super().__init__()
        self._raw = raw
        self._ssl = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._protocol = protocol
        self._state = _OPEN
        self._is_paused = False
        """Whether the protocol wants no more for now."""
        self._held: memoryview | None = None
        """What has come and is not fed to OpenSSL yet."""
        self._silent_bytes = 0
        """What has been fed to it since plain text came of it."""
        self._answer_bytes = 0
        """What it has sent by itself."""

    def connect(self) -> None:
        """Go between the two, and give the protocol what came behind the handshake."""
        self._raw.set_protocol(self)
        self._protocol.connection_made(self)
        if self._incoming.pending:
            self._pump()

    # -- the protocol's side of the transport below

    def data_received(self, data: bytes) -> None:
        if self._state is not _OPEN:
            return
        if self._is_paused or self._held is not None or len(data) > SLICE_BYTES:
            self._held = memoryview(data if self._held is None else bytes(self._held) + data)
        else:
            self._silent_bytes += len(data)
            self._incoming.write(data)
        if not self._is_paused:
            self._pump()

    def _pump(self) -> None:
        """Give the protocol what is whole, until it wants no more."""
        incoming, read = self._incoming, self._ssl.read
        try:
            # A read empties the record that it opens: what OpenSSL still holds is no record yet.
            while incoming.pending or (self._held is not None and self._feed()):
                try:
                    plain = read(SLICE_BYTES)
                except ssl.SSLWantReadError:
                    continue
                if not plain:
                    self._end_of_peer()
                    break
                self._silent_bytes = 0
                self._protocol.data_received(plain)
                if self._is_paused or self._state is not _OPEN:
                    break
        except ssl.SSLError:
            self._fail()
            return
        if self._outgoing.pending and self._state is not _CLOSED:
            answer = self._outgoing.read()
            self._answer_bytes += len(answer)
            self._raw.write(answer)
        if self._silent_bytes > _MOST_SILENT or self._answer_bytes > _MOST_ANSWERS:
            self._fail()

    def _feed(self) -> bool:
        """Feed OpenSSL a slice of what is held; False when there is none."""
        held = self._held
        if held is None:
            return False
        piece, rest = held[:SLICE_BYTES], held[SLICE_BYTES:]
        self._held = rest or None
        self._silent_bytes += len(piece)
        self._incoming.write(piece)
        return True

    def _fail(self) -> None:
        """What came is no TLS, or too much of nothing: say so, as far as OpenSSL does, and go."""
        if self._state is _CLOSED:
            return
        self._state = _CLOSED
        if self._outgoing.pending:
            # The alert.
            self._raw.write(self._outgoing.read())
            self._raw.close()
        else:
            self._raw.abort()

    def _end_of_peer(self) -> None:
        """The other side has said its last (RFC 8446 section 6.1)."""
        self._state = _PEER_ENDED
        if not self._protocol.eof_received():
            self.close()

    def eof_received(self) -> bool:
        # Without the word of TLS: HTTP's own framing tells a part from the whole.
        if self._state is _OPEN:
            self._end_of_peer()
        elif self._state is not _PEER_ENDED:
            return False
        return True

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _CLOSED
        self._held = None
        self._protocol.connection_lost(exc)

    # -- the transport's side of the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._state in _MUTE:
            return
        try:
            if len(data) <= _RECORD_BYTES:
                self._ssl.write(data)
                self._raw.write(self._outgoing.read())
            else:
                self._raw.writelines(self._records(memoryview(data)))
        except ssl.SSLError:
            self.abort()

    def _records(self, data: memoryview) -> list[bytes]:
        records = []
        for at in range(0, len(data), _RECORD_BYTES):
            self._ssl.write(data[at : at + _RECORD_BYTES])
            records.append(self._outgoing.read())
        return records

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say the last; what still comes is dropped."""
        if self._state not in _MUTE:
            self._say_last()
            self._state = _ENDED
            self._held = None
            self._raw.write_eof()

    def _say_last(self) -> None:
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            # Most of the time SSLWantReadError: it would wait for the other side's last word.
            pass
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        if self._state not in _MUTE:
            self._say_last()
        if self._state is not _CLOSED:
            self._state = _CLOSED
            self._raw.close()

    def abort(self) -> None:
        self._state = _CLOSED
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._state is _CLOSED or self._raw.is_closing()

    def is_reading(self) -> bool:
        return not self._is_paused and not self.is_closing()

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_paused:
            return
        self._is_paused = False
        if self._held is None and not self._incoming.pending:
            self._raw.resume_reading()
        else:
            # Not at once: whoever resumes may be in the middle of what it has been given.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._state is _CLOSED:
            return
        if not self._is_paused and self._state is not _ENDED:
            self._pump()
        if not self._is_paused and not self.is_closing():
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name not in _OF_TLS:
            return self._raw.get_extra_info(name, default)
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return self._ssl.context
        return self._ssl.getpeercert() if name == "peercert" else getattr(self._ssl, name)()
