"""One client's HTTP/2 connection: its transport, its deadlines, and the channels of its streams.

The session (`gateway.http.http2`) implements the protocol.  The connection answers a request from remembered bytes if
it can, by the alias that the request would have in HTTP/1.1; any other request gets a channel and goes to the handler.

Output of one turn of the loop is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from multidict import CIMultiDict

from gateway.http.http2.blocks import block_of
from gateway.http.http2.events import (
    BodyEnded,
    ConnectionEvent,
    DataReceived,
    Event,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import Http2Request
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from gateway.limits.usage import NetUse
from gateway.protocol.proxies import Proxies
from gateway.server.clients import ClientConnection, Clients
from gateway.server.handling import REFUSALS
from gateway.server.head import response_head
from gateway.server.http2.channel import StreamChannel
from gateway.server.remembered import RememberedAnswer
from gateway.server.timer import Timer
from gateway.telemetry.access_record import CloseReason

_log = logging.getLogger("gateway.server")

_LINGER_S: Final = 1.0
_LEAVE_S: Final = 1.0
"""Seconds in which a client may still begin requests after a GOAWAY, before it has heard of it."""
_IDLE_CHECKS: Final = 4
"""Checks of an idle connection per keep-alive timeout; this many quiet ones in a row close it."""
_FLUSH_BYTES: Final = 1 << 15
"""Output of this size is written without waiting for the end of the loop's turn."""


class Http2Connection(asyncio.Protocol):
    """One client's HTTP/2 connection.  Owner of its transport, its session and its channels."""

    __slots__ = (
        "_channels",
        "_client",
        "_head_timer",
        "_idle_timer",
        "_is_active",
        "_is_ended",
        "_is_flush_scheduled",
        "_is_local",
        "_is_reading",
        "_is_shed",
        "_leave_timer",
        "_quiet_checks",
        "_unanswered",
        "_unsent",
        "_write_timer",
        "clients",
        "scheme",
        "session",
        "transport",
        "use",
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
        """`client` and `is_local` are as in HTTP/1.1's `Connection`.  `is_expected` is False if the connection
        continues one that has already been admitted."""
        self.clients = clients
        self.use: NetUse | None = None
        """Where the connection is counted; None if it belongs to no net."""
        if is_expected:
            clients.expect()
        self.session = Session(clients.limits.http2_streams, clients.http2)
        self.transport: asyncio.Transport | None = None
        self.scheme = "https" if is_secure else "http"
        self._channels: dict[Stream, StreamChannel] = {}
        self._unanswered: list[StreamChannel] = []
        """Channels to be answered once the whole input has been read, so that small bodies are whole by then."""
        self._client = client
        self._is_local = is_local
        self._is_reading = False
        """Whether input is being read; output is written after that."""
        self._is_flush_scheduled = False
        """Whether a flush is scheduled for the end of the loop's turn."""
        self._is_ended = False
        """Whether the session has failed and `_end` has handled it."""
        self._is_active = False
        """Whether the client has sent a request since the last check for idleness."""
        self._is_shed = False
        """Whether it is being dropped because too much memory is held."""
        self._quiet_checks = 0
        self._unsent = 0
        wheel = clients.wheel
        self._idle_timer = Timer(wheel, self._check_idle)
        self._head_timer = Timer(wheel, self._on_head_timeout)
        self._write_timer = Timer(wheel, self._check_progress)
        self._leave_timer = Timer(wheel, self._send_last_goaway)

    def __repr__(self) -> str:
        return f"<Http2Connection {len(self._channels)} channels, {self.session}>"

    @property
    def client(self) -> str | None:
        """The client's address without its port."""
        if self._client is None and self.transport is not None:
            peer = self.transport.get_extra_info("peername")
            self._client = peer[0] if isinstance(peer, tuple) else None
        return self._client

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""
        return self.clients.proxies if not self._is_local else None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not read yet, as far as this process holds them."""
        if self.transport is None:
            return 0
        queued = sum(stream.queued_bytes for stream in self._channels)
        return self.transport.get_write_buffer_size() + self.session.out_bytes + queued

    @property
    def held_bytes(self) -> int:
        """Bytes that this client alone makes the process hold.  Of a large queued answer, which is probably shared with
        others, only the beginning is counted."""
        if self.transport is None or self._is_shed:
            return 0
        most = self.clients.limits.send_buffer_bytes
        queued = sum(min(stream.queued_bytes, most) for stream in self._channels)
        return self.transport.get_write_buffer_size() + self.session.out_bytes + self.session.input_bytes + queued

    def shed(self) -> None:
        """Close the connection because too much memory is held."""
        self._is_shed = True
        self._cut(CloseReason.SLOW)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered and nothing is left to be sent."""
        return not self._channels and not self.session.streams and not self.unsent_bytes

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        made = cast("asyncio.Transport", transport)
        self.transport = made
        if not self.clients.admit(self):
            made.abort()
            return
        self._begin(made)

    def take_over(self, predecessor: ClientConnection, transport: asyncio.Transport, data: bytes) -> None:
        """Take over a connection that was accepted as HTTP/1.1 and turned out to speak HTTP/2; `data` is its input."""
        self.transport = transport
        self.clients.replace(predecessor, self)
        transport.set_protocol(self)
        self._begin(transport)
        self.data_received(data)

    def _begin(self, transport: asyncio.Transport) -> None:
        limits = self.clients.limits
        self.clients.http2.opened(self.session)
        transport.set_write_buffer_limits(high=limits.send_buffer_bytes // 2)
        self._head_timer.set(limits.client_header_timeout_s)
        self._idle_timer.set(limits.keepalive_timeout_s / _IDLE_CHECKS)

    def data_received(self, data: bytes) -> None:
        self._is_reading = True
        try:
            # After a failure the session reads nothing.
            for event in self.session.receive(data, self.clients.now()):
                self._take(event)
            unanswered, self._unanswered = self._unanswered, []
            for channel in unanswered:
                if channel.stream.reset_code is None and not self.session.has_failed:
                    channel.answer()
        finally:
            self._is_reading = False
        self.flush()
        self._update_deadlines()

    def _update_deadlines(self) -> None:
        """Set the deadlines for what the connection waits for next."""
        session = self.session
        if session.has_failed:
            self._end()
        elif session.is_mid_head or not session.is_greeted:
            if not self._head_timer.is_set:
                self._head_timer.set(self.clients.limits.client_header_timeout_s)
        else:
            if self._head_timer.is_set:
                self._head_timer.clear()
            if session.has_goaway:
                self._close_if_over()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived(stream, request, is_whole):
                self._is_active = True
                if stream.reset_code is not None or self.session.has_failed:
                    # Reset again by a later frame of the same input.
                    return
                if not request.is_answered:
                    self._refuse(stream, request)
                elif not (is_whole and request.alias is not None and self._is_remembered(stream, request)):
                    opened = self._channels[stream] = StreamChannel(self, stream, request)
                    if not is_whole:
                        opened.read_body()
                    self._unanswered.append(opened)
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
                if self._leave_timer.is_set:
                    self._leave_timer.clear()
                    self._send_last_goaway()

    # -- requests

    def _is_remembered(self, stream: Stream, request: Http2Request) -> bool:
        """Answer the request from remembered bytes, or begin its live answer by them; False if neither is possible."""
        clients, alias = self.clients, request.alias
        assert alias is not None
        if clients.join is not None and (join := clients.joins.get(alias)) is not None:
            channel = self._channels[stream] = StreamChannel(self, stream, request)
            try:
                if clients.join(channel, join, alias):
                    return True
            except Exception:
                _log.exception("unhandled error")
                channel.abort()
                return True
            del self._channels[stream]
        if clients.remembered is None or (answer := clients.remembered.find(alias)) is None:
            return False
        if clients.admits is not None and not clients.admits(answer, self, alias):
            return False
        answer.hits += 1
        self._send_remembered(stream, answer, request)
        if clients.on_hit is not None:
            clients.on_hit(answer, self, alias)
        return True

    def _send_remembered(self, stream: Stream, answer: RememberedAnswer, request: Http2Request) -> None:
        session = self.session
        body = answer.body
        session.send_head(stream, answer.block(), ends=not body)
        left = len(body)
        for piece in body:
            left -= 1
            session.send(stream, piece, ends=not left)
        self._track_unsent(stream, request)

    def _track_unsent(self, stream: Stream, request: Http2Request) -> None:
        """Make a channel that enforces the write deadline if the answer could not be sent at once."""
        if stream.queued_bytes:
            channel = self._channels[stream] = StreamChannel(self, stream, request)
            channel.watch()

    def _refuse(self, stream: Stream, request: Http2Request) -> None:
        """Answer a request that exceeds the bounds, or is of a kind that is not supported."""
        status, body = REFUSALS[request.refusal]
        self.clients.on_bad_request(status, len(body), self)
        headers = CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
        headers["Content-Length"] = str(len(body))
        self.session.send_head(stream, block_of(response_head(status, headers, self.clients.wall(), keeps=True)))
        self.session.send(stream, body, ends=True)
        self._track_unsent(stream, request)

    # -- called by channels

    def check(self, channel: StreamChannel) -> None:
        """Remove the channel if it is over; leave or close the connection if it was the last one."""
        if channel.is_over and self._channels.pop(channel.stream, None) is not None:
            channel.close()
        if not self._channels:
            if self.transport is None:
                self.clients.leave(self)
            else:
                self._close_if_over()

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """Reset one stream."""
        self.session.reset(channel.stream, code)
        channel.gone(is_by_client=False)
        self.wake()
        self.check(channel)

    def leave(self) -> None:
        """Answer what has been asked, nothing more, and close."""
        self.session.leave(is_final=True)
        self.wake()

    def wake(self) -> None:
        """Write the session's output: now if it is large, else at the end of the loop's turn."""
        if self._is_reading:
            if self.session.out_bytes >= _FLUSH_BYTES:
                self._write()
        elif self.session.out_bytes >= _FLUSH_BYTES:
            self.flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self.clients.flush_soon(self)

    # -- output

    def _write(self) -> None:
        out = self.session.take_out()
        if out and self.transport is not None:
            self.transport.write(b"".join(out))

    def flush(self) -> None:
        """Write what the session has for the client."""
        self._is_flush_scheduled = False
        session = self.session
        self._write()
        if not session.can_pump:
            return
        drained: list[Stream] = []
        while not session.is_blocked and session.can_pump:
            drained += session.pump()
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
            # The rest still has to be taken by the client, and no other event will follow.
            self._expect_progress(transport)
            return
        self._write_timer.clear()
        self.flush()
        for channel in list(self._channels.values()):
            channel.drain()
        if not self.session.is_blocked and not transport.is_closing():
            transport.resume_reading()

    # -- deadlines

    def _check_idle(self) -> None:
        limits, transport = self.clients.limits, self.transport
        if transport is not None and transport.is_closing():
            # The client may have closed the connection without reading what is left.
            if not self._write_timer.is_set:
                self._expect_progress(transport)
            return
        if self._channels or self.session.streams or self._is_active:
            self._is_active = False
            self._quiet_checks = 0
        else:
            self._quiet_checks += 1
        if self._quiet_checks >= _IDLE_CHECKS:
            self.session.leave(is_final=True)
            self._close()
        else:
            self._idle_timer.set(limits.keepalive_timeout_s / _IDLE_CHECKS)

    def _on_head_timeout(self) -> None:
        """The preface or a head was not completed in time."""
        if self.transport is not None and self.session.is_greeted:
            self.session.fail(ErrorCode.ENHANCE_YOUR_CALM)
            self.flush()
            self._end()
        elif self.transport is not None:
            self.transport.abort()

    def _expect_progress(self, transport: asyncio.Transport) -> None:
        """Set the deadline for the client to take some of the transport's bytes."""
        self._unsent = transport.get_write_buffer_size()
        self._write_timer.set(self.clients.limits.client_write_timeout_s)

    def _check_progress(self) -> None:
        """Check whether the client has taken enough since the last check; if not, cut the connection."""
        transport = self.transport
        if transport is None:
            return
        unsent, self._unsent = self._unsent, transport.get_write_buffer_size()
        if self.clients.keeps_up(unsent - self._unsent):
            self._write_timer.set(self.clients.limits.client_write_timeout_s)
        else:
            self.clients.metrics.slow_consumer()
            self._is_shed = True
            self._cut(CloseReason.SLOW)

    # -- the end

    def close_if_idle(self) -> None:
        """Begin to leave at the start of a drain: requests in progress and on their way are answered."""
        if self.session.has_failed or self.transport is None:
            return
        self.session.leave(is_final=False)
        self.flush()
        self._leave_timer.set(_LEAVE_S)

    def _send_last_goaway(self) -> None:
        self.session.leave(is_final=True)
        self.flush()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Close the connection if either side is leaving and no request is open."""
        session = self.session
        if (session.has_goaway or session.is_leaving) and not self._channels and not session.streams:
            self._close()

    def _close(self) -> None:
        """Close once the client has taken what is written; that is bounded by the write timeout."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self.flush()
            transport.close()
            self._expect_progress(transport)

    def _end(self) -> None:
        """The session has failed: drop all channels, and give the client time to read the GOAWAY."""
        if self._is_ended:
            return
        self._is_ended = True
        self._head_timer.clear()
        self._leave_timer.clear()
        self.clients.on_bad_request(400, 0, self)
        self._drop_channels(is_by_client=False)
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._leave_timer = Timer(self.clients.wheel, self._close)
        self._leave_timer.set(_LINGER_S)

    def _drop_channels(self, *, is_by_client: bool) -> None:
        for stream, channel in list(self._channels.items()):
            self.session.reset(stream, ErrorCode.CANCEL)
            channel.gone(is_by_client=is_by_client)
            if channel.is_over:
                self._channels.pop(stream, None)

    def drop(self) -> None:
        """Close the connection at the end of a drain."""
        self._cut(CloseReason.DRAINED)

    def _cut(self, why: CloseReason) -> None:
        for channel in self._channels.values():
            channel.cut_reason = why
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for timer in (self._idle_timer, self._head_timer, self._write_timer, self._leave_timer):
            timer.end()
        self.session.abandon()
        self.clients.http2.closed(self.session)
        self._drop_channels(is_by_client=True)
        if not self._channels:
            self.clients.leave(self)
