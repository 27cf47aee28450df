"""One client's HTTP/2 connection: its transport, its deadlines, and the channels of its streams.

The session (`gateway.http.http2`) implements the protocol.  Each request is looked up by its alias, the bytes of the
same request in HTTP/1.1.  A remembered answer is sent at once.  A request without a remembered answer gets a channel
(`gateway.server.http2.channel`) and goes to the request handler.

All output of one turn of the loop is written together.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import Final, cast

from gateway.http.http2.blocks import block_of
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import Http2Request
from gateway.http.http2.streams import (
    BodyEnded,
    ConnectionEvent,
    DataReceived,
    Event,
    RequestReceived,
    Stream,
    StreamDrained,
    StreamReset,
)
from gateway.http.outgoing import response_head
from gateway.server.client_connections import ClientConnection, Clients
from gateway.server.handling import REFUSALS, refusal
from gateway.server.header_meanings import Presented
from gateway.server.http2.channel import StreamChannel
from gateway.server.http2.timeouts import TimedHttp2Connection
from gateway.server.joins import Join
from gateway.server.remembered import RememberedAnswer

_log = logging.getLogger("gateway.server")
_numbers: Final = count(1)

HEADS: Final = 2
"""The number of heads that are read between two checks of the turn's time: about a quarter of a millisecond of work if
no field of them is known."""
FRAMES: Final = 64
"""The number of other frames that are read between two checks: about a fifth of a millisecond of work."""
_CRUMBS_BYTES: Final = 25 * FRAMES
"""A run of `FRAMES` frames with fewer bytes than this, and without a request, counts as crumbs
(`gateway.server.turns`).  A frame's header has 9 bytes."""
REMEMBERED_HEADS: Final = 16
"""Replaces `HEADS` if all requests of the latest input had remembered answers.  Such requests take a tenth of the time
of others.  The first batch of such input is read without a check of the turn's time.
"""
MOST_INPUT: Final = 1 << 16
"""The most bytes of input that may wait.  With more, the transport is not read."""
_FLUSH_BYTES: Final = 1 << 15
"""Output of this size is written before the end of the loop's turn."""


class Http2Connection(TimedHttp2Connection):
    """One client's HTTP/2 connection: its input and its output."""

    __slots__ = (
        "_heads",
        "_is_flush_scheduled",
        "_is_held",
        "_is_reading",
        "_is_waiting",
        "_next_heads",
        "_unanswered",
        "number",
        "scheme",
    )

    def __init__(
        self,
        clients: Clients,
        client: str | None = None,
        *,
        is_secure: bool = False,
        is_expected: bool = True,
        is_local: bool = False,
    ) -> None:
        """`client` and `is_local` mean the same as in HTTP/1.1's `Connection`.  `is_expected` is False if the
        connection has been admitted already, as an HTTP/1.1 connection."""
        super().__init__(clients, client, is_local=is_local)
        if is_expected:
            clients.unadmitted += 1
        self.scheme = "https" if is_secure else "http"
        self.number = next(_numbers)
        """Identifies this connection among all connections of the process; never 0."""
        self._unanswered: list[StreamChannel] = []
        """Channels whose requests are answered after the whole input has been read, so that small bodies are whole."""
        self._heads = HEADS
        """The heads to read between two checks of the turn's time."""
        self._next_heads = 0
        """The value of `_heads` for the next input.  The current input's requests decide it; 0 before the first
        request.
        """
        self._is_waiting = False
        """Whether the first unanswered request, or further input, waits for its turn."""
        self._is_held = False
        """Whether the transport is not read because too much input waits."""
        self._is_reading = False
        """Whether input is being read.  Output is written afterwards."""
        self._is_flush_scheduled = False
        """Whether a flush is scheduled for the end of the loop's turn."""

    def __repr__(self) -> str:
        return f"<Http2Connection {len(self._channels)} channels, {self.session}>"

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        made = cast("asyncio.Transport", transport)
        self.transport = made
        if not self.clients.admit_connection(self):
            made.abort()
            return
        self._begin(made)

    def take_over(self, predecessor: ClientConnection, transport: asyncio.Transport, data: bytes) -> None:
        """Take over a connection that was accepted as HTTP/1.1, and whose input `data` is HTTP/2."""
        self.transport = transport
        self.clients.replace(predecessor, self)
        transport.set_protocol(self)
        self._begin(transport)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._is_waiting and self.session.has_more:
            # Only keep the input, because earlier input still waits.  A flood arrives in many pieces while its
            # beginning waits.
            self.session.keep(data)
            self._hold_input()
            return
        # Read several heads between two checks of the turn's time, because a check for each head would make remembered
        # answers a quarter slower.
        is_asked = self.session.has_more or (self._heads == HEADS and self.clients.turns.has_begun)
        self._read(data, 0 if is_asked else self._heads)

    def _read(self, data: bytes, most_heads: int, is_turn: bool = False) -> None:
        """Read input with up to `most_heads` heads, and answer its requests.  Read on until the turn's time is spent.
        With `is_turn`, the first request does not wait for a turn."""
        session, clients = self.session, self.clients
        self._is_reading = True
        try:
            self._receive(data, most_heads)
            if self._unanswered:
                clients.turns.count_begun()
                self._answer(is_turn=is_turn)
            if session.has_more or self._is_held:
                self._read_on()
        finally:
            self._is_reading = False
        self.flush()
        self._update_deadlines()
        if self._has_ended:
            self._end_input()

    def _receive(self, data: bytes, most_heads: int) -> None:
        """Read input with up to `most_heads` heads.  The requests in this input decide how many heads of the next input
        are read at once.
        """
        self._next_heads = 0
        # After a failure of the session, `receive` returns no events.
        for event in self.session.receive(data, self.clients.now(), most_heads, FRAMES if most_heads else 0):
            self._take(event)
        self._heads = self._next_heads or self._heads

    @property
    def _has_requests(self) -> bool:
        """Whether the waiting work counts as requests.  Unread input may be anything.  It counts as requests if the
        input before it contained a request.  Without unread input, only requests can wait.
        """
        return self._next_heads > 0 or not self.session.has_more

    def _read_on(self) -> None:
        """Read the rest of the input until the turn's time is spent.  The transport may not be read meanwhile."""
        session, clients = self.session, self.clients
        while session.has_more and not self._is_waiting:
            if not self._next_heads and 0 < session.latest_bytes < _CRUMBS_BYTES:
                clients.turns.defer_crumbs(self)
                self._is_waiting = True
                break
            if clients.turns.must_wait(self, is_request=self._has_requests):
                self._is_waiting = True
                break
            self._receive(b"", self._heads)
            self._answer()
        self._hold_input()

    def _hold_input(self) -> None:
        """Pause or resume reading from the transport, by the size of the waiting input."""
        session, transport = self.session, self.transport
        if transport is None or transport.is_closing() or session.failed is not None or self._has_ended:
            return
        if not self._is_held and session.has_more and session.input_bytes > MOST_INPUT:
            self._is_held = True
            transport.pause_reading()
        elif self._is_held and not session.has_more:
            self._is_held = False
            if not session.is_blocked:
                transport.resume_reading()

    def _answer(self, *, is_turn: bool = False) -> None:
        """Answer requests until a request has to wait for its turn.  With `is_turn`, the first request does not
        wait.
        """
        unanswered, turns = self._unanswered, self.clients.turns
        while unanswered and not self._is_waiting:
            channel = unanswered[0]
            if channel.stream.reset_code is not None or self.session.failed is not None:
                del unanswered[0]
            elif not is_turn and turns.must_wait(self, is_request=self._has_requests):
                self._is_waiting = True
            else:
                is_turn = False
                del unanswered[0]
                channel.answer()

    def take_turn(self) -> None:
        """Read the input that waited for its turn.  Without such input, answer the request that waited."""
        self._is_waiting = False
        if self.transport is None:
            self._unanswered.clear()
        elif self.session.has_more:
            # Read all input first, because the input may reset requests that wait.
            self._read(b"", self._heads)
        else:
            self._read(b"", 0, is_turn=True)

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived(stream, request, is_whole):
                self._is_active = True
                if stream.reset_code is not None or self.session.failed is not None:
                    # Do not answer the request: a later frame of the same input has reset the stream, or the session
                    # has failed.
                    self._next_heads = HEADS
                    self.clients.turns.count_begun()
                elif (
                    (use := self.use) is not None
                    and use.banned_until
                    and self.session.last_answered_id is None
                    and self.clients.is_banned(use)
                ):
                    self.session.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
                    self.finish_and_close()
                elif not request.is_answered:
                    self._refuse(stream, request)
                elif is_whole and request.alias is not None and self._is_remembered(stream, request):
                    self._next_heads = self._next_heads or REMEMBERED_HEADS
                else:
                    self._next_heads = HEADS
                    opened = self._channels[stream] = StreamChannel(self, stream, request)
                    if not is_whole:
                        opened.read_body()
                    self._unanswered.append(opened)
                if self.clients.is_draining:
                    # The connection may be newer than the drain (the orderly end of all connections).  Send its GOAWAY
                    # only after its first request, because a client could otherwise reconnect for ever.
                    self.begin_leaving()
            case DataReceived(stream, data, size):
                if (channel := self._channels.get(stream)) is not None:
                    channel.feed(data, size)
                else:
                    self.session.acknowledge(stream, size)
            case BodyEnded(stream):
                if (channel := self._channels.get(stream)) is not None:
                    channel.end_body()
            case StreamReset(stream, is_by_peer):
                if (channel := self._channels.get(stream)) is not None:
                    channel.gone(is_by_client=is_by_peer)
                    self.check(channel)
                elif not is_by_peer:
                    self.clients.on_bad_request(400, 0, self)
            case StreamDrained(stream):
                if (channel := self._channels.get(stream)) is not None:
                    channel.drain()
                    self.check(channel)
            case ConnectionEvent.PING_ACK:
                # Requests in unread input after the PING are still answered.  If input is unread, the timer sends the
                # GOAWAY later.
                if self._leave_timer.is_set and not self.session.has_more:
                    self._leave_timer.clear()
                    self._send_last_goaway()

    # -- requests

    def _is_remembered(self, stream: Stream, request: Http2Request) -> bool:
        """Send a remembered answer, or begin a live answer for a remembered live request (a join).  Returns False if
        the request has to go to the request handler.
        """
        clients, alias = self.clients, request.alias
        assert alias is not None
        if (find := clients.find) is None:
            return False
        # Try `exact` first.  Equal requests share one alias object, whose hash is computed only once, but `find` reads
        # all bytes of the alias.
        if (found := clients.exact.get(alias) or find(alias, None)) is None:
            return False
        known, section = found
        presented = None
        if isinstance(known, Presented):
            presented, known = known, known.known
        if isinstance(known, Join):
            channel = self._channels[stream] = StreamChannel(self, stream, request)
            try:
                if clients.join(channel, known, section, presented):
                    return True
            except Exception:
                _log.exception("unhandled error")
                channel.abort()
                return True
            del self._channels[stream]
        if not isinstance(known, RememberedAnswer):
            return False
        key = known.verdict_key if presented is None else presented.key
        began = clients.now()
        if (
            began >= known.until or known.version is not known.stream.version or clients.refusals
        ) and not clients.is_current(known, alias):
            return False
        if (clients.limits_hits or known.is_guarded) and not clients.admits(known, self, section, key):
            return False
        known.hits += 1
        self._send_remembered(stream, known, request)
        if (on_hit := clients.on_hit) is not None:
            on_hit(known, self, alias, section, began, key)
        return True

    def _send_remembered(self, stream: Stream, answer: RememberedAnswer, request: Http2Request) -> None:
        self.session.send_answer(stream, answer.block(), answer.body)
        self._track_unsent(stream, request, answer)

    def _track_unsent(self, stream: Stream, request: Http2Request, answer: RememberedAnswer | None = None) -> None:
        """Make a channel that enforces the write deadline, if a part of the answer has not been sent yet.  `answer` is
        the remembered answer; None for any other answer.
        """
        if stream.queued_bytes:
            channel = self._channels[stream] = StreamChannel(self, stream, request)
            if answer is not None:
                channel.shared, channel.shared_bytes = answer.shared, answer.body_bytes
            channel.watch()

    def _refuse(self, stream: Stream, request: Http2Request) -> None:
        """Refuse a request that exceeds the bounds or is not supported."""
        status, body = REFUSALS[request.refusal]
        headers, body = refusal(status, body, is_s2=self.clients.speaks_s2)
        self.clients.on_bad_request(status, len(body), self)
        block = block_of(response_head(status, headers, self.clients.wall(), keeps=True))
        self.session.send_answer(stream, block, (body,))
        self._track_unsent(stream, request)

    # -- called by channels

    def check(self, channel: StreamChannel) -> None:
        """Remove the channel if it is over.  Close the connection if it is ending and has no other channel."""
        if channel.is_over and self._channels.pop(channel.stream, None) is not None:
            channel.close()
        if not self._channels:
            if self.transport is None:
                self.clients.unregister(self)
            else:
                self._close_if_over()

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """Reset one stream."""
        self.session.reset(channel.stream, code)
        channel.gone(is_by_client=False)
        self.wake()
        self.check(channel)

    def finish_and_close(self) -> None:
        """Answer the requests that have arrived, then close."""
        self.session.send_goaway(is_final=True)
        self.wake()

    def wake(self) -> None:
        """Schedule the writing of the session's output at the end of the loop's turn.  Write large output now.

        Output queued in streams always waits for the end of the turn.  Writing it here would make room in the stream.
        The stream's writer would then be called to write more before its present call returns.
        """
        if self.session.out_bytes >= _FLUSH_BYTES:
            self._write()
        if not (self._is_reading or self._is_flush_scheduled):
            self._is_flush_scheduled = True
            self.clients.flush_soon(self)

    # -- output

    def _write(self) -> None:
        out = self.session.take_out()
        if out and self.transport is not None:
            self.transport.write(b"".join(out))

    def flush(self) -> None:
        """Write the session's output, as far as the transport has room."""
        self._is_flush_scheduled = False
        session = self.session
        self._write()
        if not session.can_pump:
            return
        drained: list[Stream] = []
        while not session.is_blocked and session.can_pump:
            drained += session.send_queued()
            self._write()
        for stream in drained:
            if (channel := self._channels.get(stream)) is not None:
                channel.drain()
                self.check(channel)

    def pause_writing(self) -> None:
        self.session.is_blocked = True
        if self.transport is not None:
            self._expect_progress(self.transport)
            # Further requests would produce more output.
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.session.is_blocked = False
        transport = self.transport
        if transport is None:
            return
        if transport.is_closing():
            # Set a deadline for the client to read the rest, because no other event will follow.
            self._expect_progress(transport)
            return
        self._write_timer.clear()
        self.flush()
        for channel in list(self._channels.values()):
            channel.drain()
        is_held = self._is_held or self._has_ended
        if not self.session.is_blocked and not is_held and not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for timer in (self._idle_timer, self._head_timer, self._write_timer, self._leave_timer):
            timer.dispose()
        self.session.abandon()
        self.clients.http2.closed(self.session)
        self._drop_channels(is_by_client=True)
        if not self._channels:
            self.clients.unregister(self)
