"""An HTTP/2 connection to an origin, which carries many exchanges at a time, each on one stream.

Requests are sent only after the origin's SETTINGS have arrived, which show that the origin speaks HTTP/2 and how many
requests it accepts at once.  A failure before the SETTINGS counts as a failure to connect, so the requests may go to
another origin.  Over TLS the origin must agree to `h2` by ALPN.  Without TLS, the configuration states that the origin
speaks HTTP/2 (RFC 9113 section 3.3).

The connection is used until the origin sends GOAWAY, violates the protocol, or stops answering.  A timeout of one
exchange does not end the connection, because the other exchanges may still succeed.  Instead the connection sends a
PING, and starts no exchange until the PING is answered.

The connection also starts no exchange while its send window is exhausted.  If the origin does not read an upload, the
window may stay exhausted for long, and the body of a new request would wait behind the upload.

The connection has one deadline, which moves: for the answer to a PING, or for the end of the idle time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol, cast

from gateway.aio.timers import Deadline
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.streams import (
    BodyEnded,
    ConnectionEvent,
    DataReceived,
    Event,
    InterimReceived,
    ReplyReceived,
    Stream,
    StreamDrained,
    StreamReset,
)
from gateway.http.reply_parser import ReplyBroken
from gateway.upstream.failures import ConnectionLost, NoHttp2, NotConnected
from gateway.upstream.http2_stream import Http2Stream
from gateway.upstream.incoming import HIGH_WATER_BYTES, Carrier, Intake
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import Endpoint

ALPN: Final = "h2"
PONG_S: Final = 5.0
"""The seconds within which the origin must answer a PING."""
_LINGER_S: Final = 1.0
"""The seconds that the origin has to read a GOAWAY before the connection is aborted."""


class Http2Owner(Protocol):
    """The owner of a connection, which is notified of its changes."""

    keep_alive: KeepAlive
    intake: Intake

    def ended(self, carrier: Carrier) -> None:
        """An exchange has ended."""

    def went_away(self, connection: Http2OriginConnection) -> None:
        """The connection takes no more requests.  Called once."""


class Http2OriginConnection(asyncio.Protocol):
    """An HTTP/2 connection.  Owner of its transport, its session, and its exchanges."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Http2Owner, endpoint: Endpoint, counts: SessionCounts
    ) -> None:
        self.endpoint = endpoint
        self.made_at = loop.time()
        self.address = ""
        """The origin's address, from the resolver."""
        self.outdated_at = inf
        """When the connection is too old for another exchange (the loop's clock)."""
        self.session = ClientSession(counts)
        self.greeting: asyncio.Future[type[NotConnected] | None] = loop.create_future()
        """A future that is resolved with None when the origin's SETTINGS arrive, or with an exception type if the
        connection ends first.
        """
        self.lost_by: Exception | None = None
        """The transport's error that ended the connection."""
        self.deadline = Deadline(loop, self._on_deadline)
        self.exchanges = 0
        """The number of exchanges in progress."""
        self.is_reused = False
        """Whether the connection has carried a complete exchange."""
        self._counts = counts
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._carriers: dict[Stream, Http2Stream] = {}
        self._repetitions = 0
        """The number of failed requests that may be repeated: one for each complete reply."""
        self._is_doubted = False
        """Whether a PING has not been answered yet."""
        self._has_left = False
        """Whether the connection takes no more requests."""
        self._is_lost = False

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "leaving" if self._has_left else "open"
        return f"<Http2OriginConnection {self.endpoint} {state}: {self.exchanges} exchanges>"

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    def is_outdated(self, now: float, named: frozenset[str] | None) -> bool:
        """Return whether the connection is too old for another exchange at `now`, or its address is not one of
        `named`.
        """
        # Any connection may carry one exchange, however small the age bound is.  Otherwise requests could dial for
        # ever.
        return (now >= self.outdated_at and self.is_reused) or (named is not None and self.address not in named)

    @property
    def has_room(self) -> bool:
        """Whether another exchange can start."""
        session = self.session
        if self._has_left or self._is_doubted or session.is_shut or self.exchanges >= session.most_streams:
            return False
        return session.is_greeted and self.is_open

    def carrier(self) -> Http2Stream:
        """Return the carrier of a new exchange.  The connection must have room."""
        self.exchanges += 1
        if not self._is_doubted:
            self.deadline.at = inf
        return Http2Stream(self._loop, self)

    # -- from the exchanges

    def add_stream(self, stream: Stream, carrier: Http2Stream) -> None:
        """Pass the stream's events to `carrier`."""
        self._carriers[stream] = carrier

    def ended(self, carrier: Http2Stream, *, is_complete: bool) -> None:
        """Remove an exchange that has ended."""
        self.exchanges -= 1
        self._repetitions += is_complete
        self.is_reused |= is_complete
        if carrier.stream is not None:
            self._carriers.pop(carrier.stream, None)
        if not self.exchanges and not self._is_lost:
            if self._has_left or not self.session.most_streams:
                self._leave()
            elif not self._is_doubted:
                self.deadline.move(self._loop.time() + self._owner.keep_alive.idle_s)
        self._owner.ended(carrier)

    def take_repetition(self) -> bool:
        """Return whether a failed request may be repeated, and count the repetition."""
        if not self._repetitions:
            return False
        self._repetitions -= 1
        return True

    def doubt(self) -> None:
        """Check by a PING that the origin still answers, because an exchange has timed out."""
        if not self._is_doubted and not self._is_lost:
            self._is_doubted = True
            self.session.ping()
            self.deadline.move(self._loop.time() + PONG_S)

    def flush(self) -> None:
        """Write the session's output until the transport's buffer is full."""
        session, transport = self.session, self._transport
        if transport is None or transport.is_closing():
            session.take_out()
            return
        drained: list[Stream] = []
        while True:
            if out := session.take_out():
                transport.write(b"".join(out))
            if session.is_blocked or not session.can_pump:
                break
            drained += session.send_queued()
        for stream in drained:
            if (carrier := self._carriers.get(stream)) is not None:
                carrier.drained()

    # -- the end

    def retire(self) -> None:
        """Start no more exchanges, and close the connection after the last one."""
        self._leave_owner()
        if not self.exchanges and not self._is_lost:
            self._leave()

    def drop(self) -> None:
        """Close the connection at once.  Its exchanges fail."""
        self._lose(ConnectionLost)
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        """Close the connection, which has no exchanges, with a GOAWAY."""
        self.session.send_goaway()
        self._close(ConnectionLost)

    def _close(self, why: Callable[[], ConnectionLost | ReplyBroken]) -> None:
        """Write the remaining output and close the connection.  Its exchanges fail."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
        self._lose(why, is_http2=self.session.is_greeted)
        self.deadline.move(self._loop.time() + _LINGER_S)

    def _leave_owner(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._owner.went_away(self)

    def _lose(self, why: Callable[[], ConnectionLost | ReplyBroken], *, is_http2: bool = True) -> None:
        """Fail all exchanges, each with a new error made by `why`.  `is_http2`: the origin speaks HTTP/2."""
        if self._is_lost:
            return
        self._is_lost = True
        self.session.abandon()
        self._counts.closed(self.session)
        self._leave_owner()
        if not self.greeting.done():
            self.greeting.set_result(NotConnected if is_http2 else NoHttp2)
        for number, carrier in enumerate(tuple(self._carriers.values())):
            failure = why()
            # Mark all failures but the first as reported: one lost connection counts as one failure of the origin, even
            # if it ends several exchanges.
            failure.is_reported = number > 0
            carrier.fail(failure)

    def _on_deadline(self) -> None:
        if self._is_lost:
            if self._transport is not None:
                self._transport.abort()
        elif self._is_doubted:
            self.drop()
        elif not self.exchanges:
            self._leave()

    def read_on(self) -> None:
        """Read again after a large read.  Called by the intake."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast("asyncio.Transport", transport)
        tls = made.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != ALPN:
            self._lose(ConnectionLost, is_http2=False)
            made.abort()
            return
        self._counts.opened(self.session)
        self.flush()

    def data_received(self, data: bytes) -> None:
        session = self.session
        if self._is_lost:
            return
        if len(data) >= HIGH_WATER_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._owner.intake.resume_later(self)
        events = session.receive(data, self._loop.time())
        changed: dict[Http2Stream, None] = {}
        for event in events:
            self._take(event, changed)
        if not self.greeting.done() and session.is_greeted:
            self.greeting.set_result(None)
            # Leave time for the first request, even if idle connections are not kept.
            self.deadline.move(self._loop.time() + max(self._owner.keep_alive.idle_s, PONG_S))
        self.flush()
        if session.has_goaway:
            self._leave_owner()
        for carrier in changed:
            carrier.notify()
        if session.failed is not None and not self._is_lost:
            self._close(_broken)
        elif session.has_goaway and not self.exchanges and not self._is_lost:
            self._leave()

    def _take(self, event: Event, changed: dict[Http2Stream, None]) -> None:
        if isinstance(event, ConnectionEvent):
            if self._is_doubted:
                self._is_doubted = False
                self.deadline.move(inf if self.exchanges else self._loop.time() + self._owner.keep_alive.idle_s)
            return
        carrier = self._carriers.get(event.stream)
        if carrier is None:
            if isinstance(event, DataReceived):
                self.session.acknowledge(event.stream, event.size)
            return
        match event:
            case DataReceived(stream, data, size):
                carrier.received_data(stream, data, size)
            case ReplyReceived(_, head, is_whole):
                carrier.received(head)
                if is_whole:
                    carrier.received_end()
            case BodyEnded():
                carrier.received_end()
            case InterimReceived(_, interim):
                carrier.interim(interim)
            case StreamReset(stream, is_by_peer):
                assert stream.reset_code is not None
                carrier.was_reset(stream.reset_code, is_by_peer=is_by_peer)
            case StreamDrained():
                carrier.drained()
                return
        changed[carrier] = None

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost_by = error

        def lost() -> ConnectionLost:
            failure = ConnectionLost()
            failure.__cause__ = error
            return failure

        self._lose(lost)
        self._transport = None
        self.deadline.close()

    def pause_writing(self) -> None:
        self.session.is_blocked = True

    def resume_writing(self) -> None:
        self.session.is_blocked = False
        self.flush()


def _broken() -> ReplyBroken:
    return ReplyBroken("HTTP/2 broken")
