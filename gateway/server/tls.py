"""TLS between a connection's transport and its protocol, after the handshake.

In asyncio's terms, `TlsTransport` is the protocol of the transport below, and the transport of the protocol above.
OpenSSL works on two memory buffers (`ssl.MemoryBIO`).  Input is fed to OpenSSL in slices, and plain text is read until
no whole record is left.

Output is encrypted while the transport below is not full.  The rest of the output waits in plain text, because all
clients of an answer share its plain bytes, but encrypted records belong to one client.

Input is held here only while reading is paused, or while the input waits for its turn.  Decrypting a short record takes
about as long as decrypting a long record.  Each turn of the loop therefore decrypts only a part of a client's tiny
records (`gateway.server.turns`).

An idle connection takes 18.6 KB of memory with this module.  OpenSSL 3.0 uses 16.3 KB of it.  Other implementations
take more: uvloop 24.7 KB, aiofastnet 40 KB, and asyncio 285 KB.

OpenSSL's buffers never shrink, so records and slices are small.  Renegotiation is off (`gateway.server.certificates`).
Input that yields no plain text, such as a flood of key updates, is bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

from gateway.limits.accounts import Account
from gateway.server.timeouts import CLOSE_NOTIFY
from gateway.server.turns import INPUT_WAITS, InputWaits, Turns

SLICE_BYTES: Final = 1 << 14
"""The most bytes fed to OpenSSL at a time.  Also the most plain text in one record (RFC 8446 section 5.1)."""
_RECORD_BYTES: Final = 1 << 13
"""The most plain text in a record written here."""
_BATCH_BYTES: Final = 1 << 16
"""The most plain text encrypted between two checks of whether the transport below is full."""
_GATHERED_BYTES: Final = 1 << 12
"""Plain text of short records is joined up to this size, and passed up in one call."""
GATHERED_RECORDS: Final = 64
"""The most short records decrypted between two checks of the turn's time: about a fifth of a millisecond of work."""
_CRUMBS_BYTES: Final = 16 * GATHERED_RECORDS
"""`GATHERED_RECORDS` records with less plain text than this are crumbs (`gateway.server.turns`)."""
_MOST_SILENT_BYTES: Final = 1 << 16
"""The most bytes that may arrive without yielding plain text: four times the longest incomplete record."""
_MOST_ANSWER_BYTES: Final = 1 << 16
"""The most bytes of TLS's own messages, such as answers to key updates, that a client may cause in a connection's life
(RFC 8446 section 4.6.3).  They suffice for thousands of key updates.  An ordinary client sends one key update in many
gigabytes."""


class _State(Enum):
    """Which sides of the connection have ended TLS."""

    OPEN = "open"
    PEER_ENDED = "peer ended"
    """The peer sends no more."""
    ENDED = "ended"
    """This side has sent its close_notify.  Further input is dropped."""
    CLOSED = "closed"


# Module names are faster to look up than enum members, and every request needs these states.
_OPEN: Final = _State.OPEN
_PEER_ENDED: Final = _State.PEER_ENDED
_ENDED: Final = _State.ENDED
_CLOSED: Final = _State.CLOSED
_WRITE_CLOSED: Final = (_ENDED, _CLOSED)


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One connection under TLS.  It owns its OpenSSL objects.  `connect` starts it."""

    __slots__ = (
        "_answer_bytes",
        "_finish",
        "_has_close_notify",
        "_has_paused_writing",
        "_held",
        "_incoming",
        "_is_full",
        "_is_paused",
        "_is_waiting",
        "_outgoing",
        "_protocol",
        "_raw",
        "_silent_bytes",
        "_ssl",
        "_state",
        "_turns",
        "_unwritten",
        "_unwritten_bytes",
        "use",
        "waits",
    )

    def __init__(
        self,
        raw: asyncio.Transport,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        protocol: asyncio.Protocol,
        turns: Turns | None = None,
    ) -> None:
        """`turns` bounds the input read in one turn of the loop; None for no bound."""
        super().__init__()
        self._turns = turns
        self.waits = InputWaits()
        self.use: Account | None = None
        """The account of the client's network; None if the connection belongs to no network."""
        self._raw = raw
        self._ssl = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._protocol = protocol
        self._state = _OPEN
        self._has_close_notify = False
        """Whether the peer has sent a close_notify."""
        self._is_paused = False
        """Whether the protocol has paused reading."""
        self._is_waiting = False
        """Whether the input waits for its turn."""
        self._held: memoryview | None = None
        """Input that OpenSSL has not been given."""
        self._silent_bytes = 0
        """Bytes given to OpenSSL since OpenSSL last yielded plain text."""
        self._answer_bytes = 0
        """Bytes of TLS's own messages that were sent, such as answers to key updates."""
        self._is_full = False
        """Whether the transport below has paused writing."""
        self._has_paused_writing = False
        """Whether the protocol's writing is paused."""
        self._unwritten: deque[memoryview] | None = None
        """Output that has not been encrypted; None if there is none."""
        self._unwritten_bytes = 0
        self._finish: Callable[[], None] | None = None
        """The call to make once all output has been passed down.  None unless the protocol has ended or closed its
        side."""

    def __repr__(self) -> str:
        return f"<TlsTransport {self._state.value}{', paused' * self._is_paused}>"

    def connect(self) -> None:
        """Attach transport and protocol, and pass on input that followed the handshake."""
        self._raw.set_protocol(self)
        self._protocol.connection_made(self)
        self.use = getattr(self._protocol, "use", None)
        if self._incoming.pending:
            self._pump()

    # -- as the protocol of the transport below

    def data_received(self, data: bytes) -> None:
        if self._state is not _OPEN:
            return
        if self._is_paused or self._is_waiting or self._held is not None or len(data) > SLICE_BYTES:
            self._held = memoryview(data if self._held is None else bytes(self._held) + data)
        else:
            self._silent_bytes += len(data)
            self._incoming.write(data)
        if not self._is_paused and not self._is_waiting:
            self._pump()

    def _pump(self) -> None:
        """Pass plain text to the protocol, until the protocol pauses reading or the input has to wait for its turn."""
        incoming, read, has_read, has_crumbs = self._incoming, self._ssl.read, False, False
        try:
            # One read takes all of a record's plain text, so OpenSSL holds at most an incomplete record.
            while incoming.pending or (self._held is not None and self._feed()):
                if has_read and self._must_wait(has_crumbs):
                    break
                has_read = True
                try:
                    plain = read(SLICE_BYTES)
                except ssl.SSLWantReadError:
                    continue
                has_ended = not plain
                if plain:
                    if incoming.pending and len(plain) < _GATHERED_BYTES:
                        plain, has_ended, has_crumbs = self._gathered(plain)
                    self._silent_bytes = 0
                    self._protocol.data_received(plain)
                if has_ended:
                    if self._state is _OPEN:
                        self._on_peer_end()
                    break
                if self._is_paused or self._state is not _OPEN:
                    break
        except ssl.SSLError:
            self._fail()
            return
        if self._outgoing.pending and self._state is not _CLOSED:
            answer = self._outgoing.read()
            self._answer_bytes += len(answer)
            self._raw.write(answer)
        if self._silent_bytes > _MOST_SILENT_BYTES or self._answer_bytes > _MOST_ANSWER_BYTES:
            self._fail()

    def _gathered(self, plain: bytes) -> tuple[bytes, bool, bool]:
        """Join the plain text of a short record with the plain text of the short records after it.  Also returns
        whether the peer has ended after these records, and whether they are crumbs.
        """
        incoming, read = self._incoming, self._ssl.read
        pieces, size = [plain], len(plain)
        has_ended = False
        try:
            while incoming.pending and size < _GATHERED_BYTES and len(pieces) < GATHERED_RECORDS:
                piece = read(SLICE_BYTES)
                if not piece:
                    has_ended = True
                    break
                pieces.append(piece)
                size += len(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._protocol.data_received(b"".join(pieces))
            raise
        return b"".join(pieces), has_ended, len(pieces) == GATHERED_RECORDS and size < _CRUMBS_BYTES

    def _must_wait(self, has_crumbs: bool) -> bool:
        """Return whether the rest of the input has to wait for its turn.  If it has to wait, pause reading from the
        transport below.  `has_crumbs` means that the latest records were crumbs.
        """
        if self._turns is None:
            return False
        if has_crumbs:
            self._turns.defer_crumbs(self)
        elif not self._turns.must_wait(self, is_request=False):
            return False
        self._is_waiting = True
        self._raw.pause_reading()
        return True

    def take_turn(self) -> None:
        """Read the input that had to wait for its turn."""
        self._is_waiting = False
        self._resume()

    def _feed(self) -> bool:
        """Give OpenSSL the next slice of the held input.  Returns False if there is none."""
        held = self._held
        if held is None:
            return False
        piece, rest = held[:SLICE_BYTES], held[SLICE_BYTES:]
        self._held = rest or None
        self._silent_bytes += len(piece)
        self._incoming.write(piece)
        return True

    def _fail(self) -> None:
        """Close because of malformed input or too much input without content.  Send OpenSSL's alert, if there is
        one."""
        if self._state is _CLOSED:
            return
        self._state = _CLOSED
        self._drop_unwritten()
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())
            self._raw.close()
        else:
            self._raw.abort()

    def _on_peer_end(self, *, says_so: bool = True) -> None:
        """Handle the peer's end (RFC 8446 section 6.1).  `says_so` means that the peer has sent a close_notify."""
        self._state = _PEER_ENDED
        self._has_close_notify = says_so
        if not self._protocol.eof_received():
            self.close()

    def eof_received(self) -> bool:
        # An end without close_notify is acceptable, because HTTP's own framing shows whether a message is complete.
        if self._state is _OPEN:
            self._on_peer_end(says_so=False)
        elif self._state is not _PEER_ENDED:
            return False
        return True

    def pause_writing(self) -> None:
        self._is_full = True
        if not self._has_paused_writing:
            self._has_paused_writing = True
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._unwritten is not None:
            self._write_on()
        if self._has_paused_writing and not self._is_full:
            self._has_paused_writing = False
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _CLOSED
        self._held = None
        self._drop_unwritten()
        self._protocol.connection_lost(exc)

    # -- as the transport of the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._state in _WRITE_CLOSED:
            return
        if self._unwritten is not None:
            self._unwritten.append(memoryview(data))
            self._unwritten_bytes += len(data)
        elif len(data) <= _RECORD_BYTES:
            try:
                self._ssl.write(data)
            except ssl.SSLError:
                self.abort()
                return
            self._raw.write(self._outgoing.read())
        else:
            self._unwritten = deque((memoryview(data),))
            self._unwritten_bytes = len(data)
            self._write_on()

    def _write_on(self) -> None:
        """Encrypt the waiting output and pass it down, until the transport below is full."""
        try:
            while (unwritten := self._unwritten) is not None and not self._is_full:
                piece = unwritten.popleft()
                if len(piece) > _BATCH_BYTES:
                    unwritten.appendleft(piece[_BATCH_BYTES:])
                    piece = piece[:_BATCH_BYTES]
                if not unwritten:
                    self._unwritten = None
                self._unwritten_bytes -= len(piece)
                # This call may lead to a call of `pause_writing`, which ends the loop.
                self._raw.writelines(self._records(piece))
        except ssl.SSLError:
            self.abort()
            return
        finish, self._finish = (self._finish, None) if self._unwritten is None else (None, self._finish)
        if finish is not None:
            finish()

    def _drop_unwritten(self) -> None:
        self._unwritten = self._finish = None
        self._unwritten_bytes = 0

    def _once_written(self, finish: Callable[[], None]) -> None:
        """Call `finish` once all output has been passed down."""
        if self._unwritten is None:
            finish()
        else:
            self._finish = finish

    def _records(self, data: memoryview) -> list[bytes]:
        records = []
        for at in range(0, len(data), _RECORD_BYTES):
            self._ssl.write(data[at : at + _RECORD_BYTES])
            records.append(self._outgoing.read())
        return records

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        pieces = list(list_of_data)
        if sum(map(len, pieces)) <= _RECORD_BYTES:
            self.write(b"".join(pieces))
            return
        for piece in pieces:
            self.write(piece)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send close_notify and half-close.  Further input is dropped."""
        if self._state not in _WRITE_CLOSED:
            self._state = _ENDED
            self._held = None
            self._once_written(self._end)

    def _end(self) -> None:
        self._send_close_notify()
        self._raw.write_eof()

    def _send_close_notify(self) -> None:
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            # Usually SSLWantReadError, because OpenSSL would wait for the peer's close_notify.
            pass
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        state, self._state = self._state, _CLOSED
        if state is _ENDED and self._unwritten is None:
            self._raw.close()
        elif state is not _CLOSED:
            self._once_written(self._close)

    def _close(self) -> None:
        self._send_close_notify()
        self._raw.close()

    def abort(self) -> None:
        self._state = _CLOSED
        self._drop_unwritten()
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._state is _CLOSED or self._raw.is_closing()

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_paused:
            return
        self._is_paused = False
        if self._is_waiting:
            return
        if self._held is None and not self._incoming.pending:
            self._raw.resume_reading()
        else:
            # Wait for the loop's next turn, because the caller may still be handling its latest input.
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._state is _CLOSED:
            return
        if not (self._is_paused or self._is_waiting) and self._state is not _ENDED:
            self._pump()
        if not (self._is_paused or self._is_waiting or self.is_closing()):
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + self._unwritten_bytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == CLOSE_NOTIFY:
            return self._has_close_notify
        if name == INPUT_WAITS:
            return self.waits
        return self._raw.get_extra_info(name, default)
