"""One client's connection over HTTP/2: its transport, its deadlines, and the channels of its streams.

What the protocol asks for is the session's (`gateway.http.http2`).  Here a request is answered from memory where it can
be, by the same spelling that HTTP/1.1 would give it; any other gets a channel, and goes the way of all requests.

What is written in one turn of the loop goes out as one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from multidict import CIMultiDict

from gateway.http.http2.blocks import block_of
from gateway.http.http2.events import Begun, Drained, Ended, Event, Gone, Part, Sign
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import Http2Request
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from gateway.protocol.proxies import Proxies
from gateway.server.alarm import Alarm
from gateway.server.clients import ClientConnection, Clients
from gateway.server.head import response_head
from gateway.server.http2.channel import StreamChannel
from gateway.server.remembered import RememberedAnswer
from gateway.telemetry.access_record import CloseReason

_log = logging.getLogger("gateway.server")

_LINGER_S: Final = 1.0
_LEAVE_S: Final = 1.0
"""How long a client that is told of the end may begin requests before it has heard of it."""
_LOOKS: Final = 4
"""A connection that may be idle for so long is looked at so often within that time."""
_FLUSH_BYTES: Final = 1 << 15
"""So much is not held until the end of the loop's turn."""
_BAD_REQUEST: Final = b"Bad request\n"


class Http2Connection(asyncio.Protocol):
    """Owner of its transport, its session and its channels."""

    def __init__(
        self,
        clients: Clients,
        told: str | None = None,
        *,
        is_secure: bool = False,
        is_expected: bool = True,
        is_local: bool = False,
    ) -> None:
        """`told` and `is_local` are as over HTTP/1.1; `is_expected` is False where another connection has come before
        this one, which has been admitted."""
        self.clients = clients
        if is_expected:
            clients.expect()
        self.session = Session(clients.limits.http2_streams, clients.http2)
        self.transport: asyncio.Transport | None = None
        self.scheme = "https" if is_secure else "http"
        self._channels: dict[Stream, StreamChannel] = {}
        self._begun: list[StreamChannel] = []
        """Those that are to be answered when all that has come is looked at, so that small bodies are whole by then."""
        self._client = told
        self._is_local = is_local
        self._is_reading = False
        """Whether what has come is being looked at: what is written goes out after that."""
        self._is_due = False
        """Whether what is written goes out at the end of the loop's turn."""
        self._is_ended = False
        """Whether it has failed, and that has been seen to."""
        self._is_active = False
        """Whether the client has asked for anything since the last look at the time."""
        self._quiet_looks = 0
        self._unsent = 0
        wheel = clients.wheel
        self._idle = Alarm(wheel, self._look_idle)
        self._head = Alarm(wheel, self._give_up)
        self._stuck = Alarm(wheel, self._look_stuck)
        self._leaving = Alarm(wheel, self._leave_finally)

    def __repr__(self) -> str:
        return f"<Http2Connection {len(self._channels)} channels, {self.session}>"

    @property
    def client(self) -> str | None:
        """The client's address, without its port."""
        if self._client is None and self.transport is not None:
            peer = self.transport.get_extra_info("peername")
            self._client = peer[0] if isinstance(peer, tuple) else None
        return self._client

    @property
    def proxies(self) -> Proxies | None:
        """Who is believed about whom they pass on; None where nobody is."""
        return self.clients.proxies if not self._is_local else None

    @property
    def unsent_bytes(self) -> int:
        """What the client has left unread, as far as this process holds it."""
        if self.transport is None:
            return 0
        queued = sum(stream.queued_bytes for stream in self._channels)
        return self.transport.get_write_buffer_size() + self.session.out_bytes + queued

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        made = cast("asyncio.Transport", transport)
        self.transport = made
        if not self.clients.admit(self):
            made.abort()
            return
        self._begin(made)

    def take_over(self, predecessor: ClientConnection, transport: asyncio.Transport, data: bytes) -> None:
        """Have what came with `data` as HTTP/1.1, and turned out to be HTTP/2."""
        self.transport = transport
        self.clients.replace(predecessor, self)
        transport.set_protocol(self)
        self._begin(transport)
        self.data_received(data)

    def _begin(self, transport: asyncio.Transport) -> None:
        limits = self.clients.limits
        self.clients.http2.opened(self.session)
        transport.set_write_buffer_limits(high=limits.send_buffer_bytes // 2)
        self._head.set(limits.client_header_timeout_s)
        self._idle.set(limits.keepalive_timeout_s / _LOOKS)

    def data_received(self, data: bytes) -> None:
        self._is_reading = True
        try:
            # After an error nothing is read.
            for event in self.session.receive(data, self.clients.now()):
                self._take(event)
            begun, self._begun = self._begun, []
            for channel in begun:
                if channel.stream.gone is None and not self.session.has_failed:
                    channel.answer()
        finally:
            self._is_reading = False
        self._flush()
        self._regard()

    def _regard(self) -> None:
        """See what is to be waited for next."""
        session = self.session
        if session.has_failed:
            self._end()
        elif session.is_mid_head or not session.is_greeted:
            if not self._head.is_set:
                self._head.set(self.clients.limits.client_header_timeout_s)
        else:
            if self._head.is_set:
                self._head.clear()
            if session.is_left:
                self._close_if_over()

    def _take(self, event: Event) -> None:
        match event:
            case Begun(stream, asked, is_whole):
                self._is_active = True
                if stream.gone is not None or self.session.has_failed:
                    # Taken back in the same breath.
                    return
                if not asked.is_answered:
                    self._refuse(stream, asked)
                elif not (is_whole and asked.alias is not None and self._is_remembered(stream, asked)):
                    begun = self._channels[stream] = StreamChannel(self, stream, asked)
                    if not is_whole:
                        begun.read_body()
                    self._begun.append(begun)
            case Part(stream, data, size):
                if (channel := self._channels.get(stream)) is not None:
                    channel.feed(data, size)
                else:
                    self.session.acknowledge(stream, size)
            case Ended(stream):
                if (channel := self._channels.get(stream)) is not None:
                    channel.end_body()
            case Gone(stream, is_by_client):
                if (channel := self._channels.get(stream)) is not None:
                    channel.gone(is_by_client=is_by_client)
                    self.check(channel)
                elif not is_by_client:
                    self.clients.on_bad_request(400, 0, self.client)
            case Drained(stream):
                if (channel := self._channels.get(stream)) is not None:
                    channel.drain()
                    self.check(channel)
            case Sign.PONG:
                if self._leaving.is_set:
                    self._leaving.clear()
                    self._leave_finally()

    # -- requests

    def _is_remembered(self, stream: Stream, asked: Http2Request) -> bool:
        """Whether the request was answered, or its live answer begun, from memory."""
        clients, alias = self.clients, asked.alias
        assert alias is not None
        if clients.join is not None and (join := clients.joins.get(alias)) is not None:
            channel = self._channels[stream] = StreamChannel(self, stream, asked)
            try:
                if clients.join(channel, join):
                    return True
            except Exception:
                _log.exception("unhandled error")
                channel.abort()
                return True
            del self._channels[stream]
        if clients.remembered is None or (answer := clients.remembered.find(alias)) is None:
            return False
        answer.hits += 1
        self._give(stream, answer, asked)
        if clients.on_hit is not None:
            clients.on_hit(answer, self, alias)
        return True

    def _give(self, stream: Stream, answer: RememberedAnswer, asked: Http2Request) -> None:
        session = self.session
        body = answer.body
        session.send_head(stream, answer.block(), ends=not body)
        left = len(body)
        for piece in body:
            left -= 1
            session.send(stream, piece, ends=not left)
        self._see_off(stream, asked)

    def _see_off(self, stream: Stream, asked: Http2Request) -> None:
        """Where the answer is not out, there has to be somebody to see that the client takes it."""
        if stream.queued_bytes:
            channel = self._channels[stream] = StreamChannel(self, stream, asked)
            channel.watch()

    def _refuse(self, stream: Stream, asked: Http2Request) -> None:
        """The request is beyond the bounds, or of a kind that is not answered here."""
        self.clients.on_bad_request(400, len(_BAD_REQUEST), self.client)
        headers = CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
        headers["Content-Length"] = str(len(_BAD_REQUEST))
        self.session.send_head(stream, block_of(response_head(400, headers, self.clients.wall(), keeps=True)))
        self.session.send(stream, _BAD_REQUEST, ends=True)
        self._see_off(stream, asked)

    # -- what channels ask for

    def check(self, channel: StreamChannel) -> None:
        """See whether the channel is over, and what that was the last of."""
        if channel.is_over and self._channels.pop(channel.stream, None) is not None:
            channel.close()
        if not self._channels:
            if self.transport is None:
                self.clients.leave(self)
            else:
                self._close_if_over()

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """End one stream at once."""
        self.session.reset(channel.stream, code)
        channel.gone(is_by_client=False)
        self.wake()
        self.check(channel)

    def wake(self) -> None:
        """Have what is written go out: now where it is much, else at the end of the loop's turn."""
        if self._is_reading:
            if self.session.out_bytes >= _FLUSH_BYTES:
                self._write()
        elif self.session.out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self.clients.loop.call_soon(self._flush)

    # -- what goes

    def _write(self) -> None:
        out = self.session.take_out()
        if out and self.transport is not None:
            self.transport.write(b"".join(out))

    def _flush(self) -> None:
        self._is_due = False
        session = self.session
        drained: list[Stream] = []
        self._write()
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
            self._expect_taken(self.transport)
            # What it asks for would have to be answered.
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.session.is_blocked = False
        transport = self.transport
        if transport is None:
            return
        if transport.is_closing():
            # What is left has to be taken as well, and this is not said again.
            self._expect_taken(transport)
            return
        self._stuck.clear()
        self._flush()
        for channel in list(self._channels.values()):
            channel.drain()
        if not self.session.is_blocked and not transport.is_closing():
            transport.resume_reading()

    # -- time

    def _look_idle(self) -> None:
        limits, transport = self.clients.limits, self.transport
        if transport is not None and transport.is_closing():
            # It may be the client that has ended it, and does not take what is left.
            if not self._stuck.is_set:
                self._expect_taken(transport)
            return
        if self._channels or self.session.streams or self._is_active:
            self._is_active = False
            self._quiet_looks = 0
        else:
            self._quiet_looks += 1
        if self._quiet_looks >= _LOOKS:
            self.session.leave(is_final=True)
            self._close()
        else:
            self._idle.set(limits.keepalive_timeout_s / _LOOKS)

    def _give_up(self) -> None:
        """The client has not finished what it began to say."""
        if self.transport is not None and self.session.is_greeted:
            self.session.fail(ErrorCode.ENHANCE_YOUR_CALM)
            self._flush()
            self._end()
        elif self.transport is not None:
            self.transport.abort()

    def _expect_taken(self, transport: asyncio.Transport) -> None:
        """Look after a while whether the client has taken anything."""
        self._unsent = transport.get_write_buffer_size()
        self._stuck.set(self.clients.limits.client_write_timeout_s)

    def _look_stuck(self) -> None:
        """See whether the client has taken anything; where it has not, let it go."""
        transport = self.transport
        if transport is None:
            return
        unsent, self._unsent = self._unsent, transport.get_write_buffer_size()
        if self._unsent < unsent:
            self._stuck.set(self.clients.limits.client_write_timeout_s)
        else:
            self.clients.metrics.slow_consumer()
            self._cut(CloseReason.SLOW)

    # -- the end

    def close_if_idle(self) -> None:
        """Used when the gateway leaves: what is being answered is left to end, and what is on its way is answered."""
        if self.session.has_failed or self.transport is None:
            return
        self.session.leave(is_final=False)
        self._flush()
        self._leaving.set(_LEAVE_S)

    def _leave_finally(self) -> None:
        self.session.leave(is_final=True)
        self._flush()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Close the connection where no more is asked, and nothing left to be answered."""
        session = self.session
        if (session.is_left or session.is_leaving) and not self._channels and not session.streams:
            self._close()

    def _close(self) -> None:
        """End the connection when the client has taken what is written, for which there is a bound."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._flush()
            transport.close()
            self._expect_taken(transport)

    def _end(self) -> None:
        """The connection has failed: whatever is open is over, and the client gets the time to read why."""
        if self._is_ended:
            return
        self._is_ended = True
        self._head.clear()
        self._leaving.clear()
        self.clients.on_bad_request(400, 0, self.client)
        self._drop_channels(is_by_client=False)
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._leaving = Alarm(self.clients.wheel, self._close)
        self._leaving.set(_LINGER_S)

    def _drop_channels(self, *, is_by_client: bool) -> None:
        for stream, channel in list(self._channels.items()):
            self.session.reset(stream, ErrorCode.CANCEL)
            channel.gone(is_by_client=is_by_client)
            if channel.is_over:
                self._channels.pop(stream, None)

    def drop(self) -> None:
        """Used when the gateway's time to leave is over."""
        self._cut(CloseReason.DRAINED)

    def _cut(self, why: CloseReason) -> None:
        for channel in self._channels.values():
            channel.why_cut = why
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for alarm in (self._idle, self._head, self._stuck, self._leaving):
            alarm.clear()
        self.session.abandon()
        self.clients.http2.closed(self.session)
        self._drop_channels(is_by_client=True)
        if not self._channels:
            self.clients.leave(self)
