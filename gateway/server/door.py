"""The front door: every client's connection begins and ends here.

A door answers by itself only what it has a ready answer for: one complete request in one piece, nothing in flight,
nothing behind it.  Everything else it hands over, in the client's own bytes, to an aiohttp protocol that is made when
it is first needed and kept for the connection.  Two parsers on one port would be a way to smuggle requests past one of
them; there is one, and what it has judged is remembered byte for byte (`ready`).

A door goes back to answering by itself only when the strict protocol is idle and every byte it was given was one
complete request without a body, so that nothing can be left in its parser.  After anything else the connection stays
strict to its end, which costs speed and nothing more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, cast

from gateway.journal import CloseReason
from gateway.metrics_seam import NO_ROUTE
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.connection import ClientConnection
from gateway.server.ready import MAX_REQUEST_BYTES, Ready
from gateway.server.timed import NOT_SEEN, TimedConnection

if TYPE_CHECKING:
    from gateway.server.doorkeeper import Doorkeeper

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_UNPLAIN = (b"\r\ncontent-length:", b"\r\ntransfer-encoding:", b"\r\nupgrade:", b"\r\nexpect:")


class LiveReader(Protocol):
    """Who writes to a connection without the strict protocol."""

    def pump(self) -> None:
        """The connection has room again."""

    def gone(self) -> None:
        """The client has gone."""


class Note(Protocol):
    """Where one live answer is noted."""

    @property
    def trace_id(self) -> str | None:
        """The trace that its figures are an example of."""

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """It has ended."""


class Door(TimedConnection):
    """One client's connection.  Owner of its transport."""

    __slots__ = (
        "_candidate",
        "_candidate_era",
        "_client",
        "_exact",
        "_held",
        "_is_busy",
        "_is_chunked",
        "_is_clean",
        "_is_retiring",
        "_keeps",
        "_live",
        "_live_began",
        "_live_mode",
        "_live_note",
        "_live_route",
        "_now",
        "_parked",
        "_strict",
        "live_bytes",
        "live_first_byte_s",
    )

    def __init__(self, keeper: Doorkeeper) -> None:
        super().__init__(keeper)
        self._exact = keeper.exact
        self._now = keeper.now
        self._strict: ClientConnection | None = None
        self._is_clean = True
        """Whether the strict protocol's parser holds nothing: all it was given were whole requests without bodies."""
        self._is_busy = False
        """Whether a request may find something before it here: a look is due before it is answered by itself."""
        self._candidate: bytes | None = None
        self._candidate_era = 0
        """That of the ready answers when the candidate was read."""
        self._client: str | None = None
        self._live: LiveReader | None = None
        """Who is being answered without the strict protocol."""
        self._live_mode = Mode.SSE
        self._live_route = NO_ROUTE
        self._live_began = 0.0
        self._live_note: Note | None = None
        """Where the live answer is noted, if anywhere."""
        self.live_bytes = 0
        """Body bytes of the live answer."""
        self.live_first_byte_s = 0.0
        """How long after the request was read its head was written."""
        self._held = b""
        """What the client sent while it could not be taken yet."""
        self._is_chunked = True
        self._keeps = True
        """Whether the connection is kept after the live answer."""
        self._is_retiring = False
        """Whether the strict protocol is about to be taken down: what comes is for its successor."""
        self._parked: asyncio.Future[None] | None = None
        """What a strict protocol that is kept waits for while a live answer is given."""

    @property
    def is_live(self) -> bool:
        return self._live is not None

    @property
    def is_idle(self) -> bool:
        return self._live is None and (self._strict is None or self._strict.is_idle)

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        keeper = self._keeper
        if not keeper.admit(self):
            transport.abort()
            return
        # Unsent bytes are to be seen here, not in the kernel: half the bound there, half in the transport.
        half = keeper.limits.send_buffer_bytes // 2
        transport.set_write_buffer_limits(high=half)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, half)
        self._watch(keeper.limits.client_header_timeout_s)

    def data_received(self, data: bytes) -> None:
        # The one place where every attribute counts: a hit that nothing stands before.
        answer = self._exact.get(data)
        if (
            answer is None
            or self._is_busy
            or self._now() >= answer.until
            or answer.doubts != answer.stream.doubts
            or ((tail := answer.tail) is not None and tail.turn != answer.stream.tail_turns)
            or self.transport is None
        ):
            self._receive(data)
            return
        self._is_active = True
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self.transport.writelines(answer.pieces)
        if self._keeper.on_hit is not None:
            self._keeper.on_hit(answer, self.client, data)

    def _receive(self, data: bytes) -> None:
        strict = self._strict
        if self._live is not None or self._held or self._is_retiring:
            self._hold(data)
            return
        if self._is_clean and strict is not None and strict.is_settling:
            # A quick client answers a response before its writer is done with it: wait those two turns of the loop, or
            # no request on a busy connection would ever find this door free.
            self._hold(data)
            self._keeper.loop.call_soon(self._take_held)
            return
        self._candidate = None
        self._is_active = True
        if self._is_clean and (strict is None or strict.is_idle):
            ready = self._keeper.ready
            if ready is not None and not self.is_full and (answer := ready.find(data)) is not None:
                self._is_busy = False
                self._serve(answer, data)
                return
            if _is_one_plain_get(data):
                self._candidate = data
                if ready is not None:
                    self._candidate_era = ready.era
            else:
                self._is_clean = False
        else:
            self._is_clean = False
        self._is_busy = True
        if strict is None:
            strict = self._strict = self._keeper.strict(self)
            assert self.transport is not None
            strict.connection_made(self.transport)
            if self.is_full:
                # It was told before this protocol was there to hear it.
                strict.pause_writing()
        strict.data_received(data)

    def eof_received(self) -> None:
        """The client has said its last word: with None the transport closes, as aiohttp has it too."""

    def pause_writing(self) -> None:
        self.is_full = self._is_busy = True
        if self._strict is not None:
            self._strict.pause_writing()
        if self._live is not None:
            # It is sent no more until it has read: moved back to reading the tape.
            self._keeper.recorder.slow_consumer(is_closed=False)
        if self.is_idle or self._live is not None:
            # A ready answer that the client does not take: nobody awaits it, so its deadline is kept here.
            self._unsent = NOT_SEEN
            self._expect_progress()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._strict is not None:
            self._strict.resume_writing()
        self._unwatch()
        if self._live is None:
            self._watch_idle()
        else:
            self._live.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeper.leave(self)
        self._unwatch()
        self.transport = None
        strict, self._strict = self._strict, None
        if strict is not None:
            strict.connection_lost(exc)
        live, self._live = self._live, None
        if live is not None:
            live.gone()

    # -- answers

    def _serve(self, answer: Ready, request: bytes) -> None:
        assert self.transport is not None
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self.transport.writelines(answer.pieces)
        if self._keeper.on_hit is not None:
            self._keeper.on_hit(answer, self.client, request)

    @property
    def client(self) -> str | None:
        """The address of the connection's other end, where there is one."""
        if self._client is None and self.transport is not None:
            peer = self.transport.get_extra_info("peername")
            self._client = str(peer[0]) if isinstance(peer, tuple) else None
        return self._client

    def learn(self, answer: Ready, credential_headers: Collection[str]) -> None:
        """The strict way has answered the request that came in last; remember it if it was one to remember, and if
        what it came by still holds."""
        candidate, ready = self._candidate, self._keeper.ready
        if candidate is not None and ready is not None and ready.era == self._candidate_era:
            ready.remember(candidate, answer, credential_headers)

    # -- live answers

    def take_over(
        self,
        live: LiveReader,
        mode: Mode,
        route: str,
        began: float,
        note: Note | None,
        *,
        keeps: bool,
        is_chunked: bool,
    ) -> asyncio.Future[None] | None:
        """Answer without the strict protocol from here on, until `over` or `answered`.

        It is not kept for that long where all that it was given is this one request.  Otherwise it stays as it is, with
        what it has read already, and goes on when the future that is given is done.
        """
        self._live = live
        self._live_mode = mode
        self._live_route = route
        self._live_began = began
        self._live_note = note
        self.live_bytes = 0
        self._keeps = keeps
        self._is_chunked = is_chunked
        self._is_busy = True
        self._keeper.recorder.subscribers(mode, 1, route)
        self._unwatch()
        if self.is_full:
            self._unsent = NOT_SEEN
            self._expect_progress()
        if self._is_clean:
            self._is_retiring = True
            self._keeper.loop.call_soon(self._retire)
        else:
            self._parked = self._keeper.loop.create_future()
        return self._parked

    def _retire(self) -> None:
        """Take the strict protocol down without the transport, which is no longer its own."""
        self._is_retiring = False
        strict, self._strict = self._strict, None
        if strict is not None:
            strict.transport = None
            strict.connection_lost(None)
        if self._live is None:
            self._resume()

    def write_head(self, head: bytes) -> None:
        """Write the head of a response."""
        self.live_first_byte_s = self._now() - self._live_began
        if self.transport is not None:
            self.transport.write(head)

    def send(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of the body, framed as a chunk."""
        transport = self.transport
        if transport is None:
            return
        if not self._is_chunked:
            chunk = chunk[chunk.index(b"\r\n") + 2 : -2]
        transport.write(chunk)
        self.live_bytes += size
        self._keeper.sent_bytes += size

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The live body is whole; or it is not, and never will be."""
        outcome = Outcome.FOLLOWED if in_order else Outcome.ABORTED
        if self.transport is not None:
            if not in_order:
                # Only the end of the connection tells a part from the whole.
                self.transport.abort()
                self.transport = None
            elif self._is_chunked:
                self.transport.write(_LAST_CHUNK)
        self._over(outcome, self._why_cut or reason if reason is CloseReason.LEFT else reason)

    def write_response(self, response: bytes, body_bytes: int) -> None:
        """Write a whole response, where the client is still there; `answered` is owed."""
        if self.transport is not None:
            self.transport.write(response)
            self.live_bytes += body_bytes
            self._keeper.sent_bytes += body_bytes

    def answered(self, outcome: Outcome, reason: CloseReason, saved_bytes: int) -> None:
        """The whole response has been written, whose body had so many bytes more before it was coded."""
        self._over(outcome, reason, saved_bytes)

    def _over(self, outcome: Outcome, reason: CloseReason, saved_bytes: int = 0) -> None:
        """A live answer has ended: the connection is free for the next request, or goes."""
        recorder, mode, route = self._keeper.recorder, self._live_mode, self._live_route
        recorder.subscribers(mode, -1, route)
        lived_s = self._now() - self._live_began
        # A long-poll's response begins when it is over.
        first_byte_s = self.live_first_byte_s if mode is Mode.SSE else lived_s
        note, self._live_note = self._live_note, None
        recorder.request(
            mode,
            outcome,
            lived_s,
            route,
            first_byte_s=first_byte_s,
            sent_bytes=self.live_bytes,
            saved_bytes=saved_bytes,
            # None would mean: that of whoever is being answered here, and that is somebody else.
            trace_id=(note.trace_id if note is not None else None) or "",
        )
        if note is not None:
            note.end(outcome, reason)
        self._live = None
        if self.transport is None:
            return
        parked, self._parked = self._parked, None
        if not self._keeps or self._keeper.is_leaving:
            self._close()
        elif parked is not None:
            if not parked.done():
                parked.set_result(None)
            self._watch_idle()
            self._hand_on_held()
        elif not self._is_retiring:
            self._resume()

    def _resume(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._is_clean = True
        self._is_busy = self.is_full
        self._is_active = True
        self._watch_idle()
        if self._held:
            self._take_held()

    def _take_held(self) -> None:
        held, self._held = self._held, b""
        if held and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            self._receive(held)

    def _hand_on_held(self) -> None:
        """Give the strict protocol, which was kept, what has come since."""
        held, self._held = self._held, b""
        if held and self._strict is not None and self.transport is not None:
            self._strict.data_received(held)
            if not self._strict.is_reading_paused:
                self.transport.resume_reading()

    def _hold(self, data: bytes) -> None:
        """Keep what belongs to the next request; it is not read beyond a bound."""
        self._held += data
        self._is_busy = True
        if len(self._held) > MAX_REQUEST_BYTES and self.transport is not None:
            self.transport.pause_reading()


def _is_one_plain_get(data: bytes) -> bool:
    """Whether `data` is one whole HTTP/1.1 GET that leaves nothing behind in a parser and keeps its connection."""
    if len(data) > MAX_REQUEST_BYTES or not data.startswith(b"GET ") or data.find(_HEAD_END) != len(data) - 4:
        return False
    if not data.startswith(b" HTTP/1.1\r\n", data.find(b"\r\n") - 9):
        return False
    lower = data.lower()
    if any(sign in lower for sign in _UNPLAIN):
        return False
    lines = lower.count(b"\r\nconnection:")
    return lines == 0 or (lines == 1 and b"\r\nconnection: keep-alive\r\n" in lower)
