"""One HTTP/2 connection to an origin: many exchanges at a time, each on a stream of its own.

A request is sent only after the origin's SETTINGS have arrived.  Only then it is known that the origin speaks HTTP/2,
and how many requests it takes at once.  An earlier failure counts as a failure to connect, so the requests may go to
another origin.  Over TLS the origin has to agree to `h2` by ALPN; without TLS the configuration says that it speaks
HTTP/2 (RFC 9113 section 3.3).

The connection is used until the origin sends GOAWAY, breaks the protocol, or is silent.  An exchange that times out
does not end the connection, because its other exchanges may be fine.  The connection sends a PING instead, and begins
no request until the PING is answered.  It begins no request either while its send window is shut: if the origin does
not read an upload, the window may stay shut for long, and the body of the request would wait behind the upload.

There is one moving deadline: for the answer to the PING, or for a connection without exchanges.
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
from gateway.http.reply import ReplyBroken
from gateway.upstream.call import Endpoint
from gateway.upstream.failures import ConnectionLost, NoHttp2, NotConnected
from gateway.upstream.http2_stream import Http2Stream
from gateway.upstream.incoming import Carrier
from gateway.upstream.keep_alive import KeepAlive

ALPN: Final = "h2"
PONG_S: Final = 5.0
"""Seconds within which a doubted origin has to answer a PING."""
_LINGER_S: Final = 1.0
"""Seconds in which an origin may read the GOAWAY before its connection is cut."""


class Http2Owner(Protocol):
    """Is notified when an exchange or the connection ends."""

    keep_alive: KeepAlive

    def ended(self, carrier: Carrier) -> None:
        """An exchange is over."""

    def went_away(self, connection: Http2Connection) -> None:
        """The connection takes no more requests.  Called once."""


class Http2Connection(asyncio.Protocol):
    """One connection.  Owns its transport, its session, and the exchanges on it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Http2Owner, endpoint: Endpoint, counts: SessionCounts
    ) -> None:
        self.endpoint = endpoint
        self.made_at = loop.time()
        self.address = ""
        """The origin's address, as the resolver gave it."""
        self.outdated_at = inf
        """When the connection becomes too old for a further exchange, in seconds of the loop's clock."""
        self.session = ClientSession(counts)
        self.greeting: asyncio.Future[type[NotConnected] | None] = loop.create_future()
        """Resolved with None once the origin's SETTINGS have arrived, or with the kind of failure if they will not."""
        self.lost_by: Exception | None = None
        """The transport's error that has ended the connection."""
        self.deadline = Deadline(loop, self._on_deadline)
        self.exchanges = 0
        """Exchanges that are not over."""
        self.is_reused = False
        """Whether the connection has carried a complete exchange."""
        self._counts = counts
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._carriers: dict[Stream, Http2Stream] = {}
        self._repetitions = 0
        """Complete replies for which no request has been repeated."""
        self._is_doubted = False
        """Whether a PING waits for its answer."""
        self._has_left = False
        """Whether the connection takes no more requests."""
        self._is_lost = False

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "leaving" if self._has_left else "open"
        return f"<Http2Connection {self.endpoint} {state}: {self.exchanges} exchanges>"

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent on the connection, as far as is known."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    def is_outdated(self, now: float, named: frozenset[str] | None) -> bool:
        """Whether the connection is too old for another exchange at `now`, or its address is not one of `named`."""
        # A connection may carry one exchange at any age: otherwise requests might open new connections for ever.
        return (now >= self.outdated_at and self.is_reused) or (named is not None and self.address not in named)

    @property
    def has_room(self) -> bool:
        """Whether another exchange may begin."""
        session = self.session
        if self._has_left or self._is_doubted or session.is_shut or self.exchanges >= session.most_streams:
            return False
        return session.is_greeted and self.is_open

    def carrier(self) -> Http2Stream:
        """A stream for one more exchange; the connection has room."""
        self.exchanges += 1
        if not self._is_doubted:
            self.deadline.at = inf
        return Http2Stream(self._loop, self)

    # -- from the exchanges

    def add_stream(self, stream: Stream, carrier: Http2Stream) -> None:
        """Pass the stream's events to `carrier` from now on."""
        self._carriers[stream] = carrier

    def ended(self, carrier: Http2Stream, *, is_complete: bool) -> None:
        """An exchange is over."""
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
        """Whether one more failed request may be repeated: each complete reply allows one."""
        if not self._repetitions:
            return False
        self._repetitions -= 1
        return True

    def doubt(self) -> None:
        """Find out whether the origin is still there, because an exchange has timed out."""
        if not self._is_doubted and not self._is_lost:
            self._is_doubted = True
            self.session.ping()
            self.deadline.move(self._loop.time() + PONG_S)

    def flush(self) -> None:
        """Write the session's output, as far as the transport takes it."""
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

    # -- its end

    def retire(self) -> None:
        """Begin no more exchanges; close once the last one is over."""
        self._leave_owner()
        if not self.exchanges and not self._is_lost:
            self._leave()

    def drop(self) -> None:
        """Close the connection at once; its exchanges fail."""
        self._lose(ConnectionLost)
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        """Close the connection in order, because it has no exchanges."""
        self.session.send_goaway()
        self._close(ConnectionLost)

    def _close(self, why: Callable[[], ConnectionLost | ReplyBroken]) -> None:
        """Write the remaining output and close; the exchanges fail."""
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
        """Fail the exchanges, each with an error of its own; `is_http2` is False if the origin does not speak it."""
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
            # One lost connection is one failure of the origin, however many exchanges it ends.
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
        events = session.receive(data, self._loop.time())
        changed: dict[Http2Stream, None] = {}
        for event in events:
            self._take(event, changed)
        if not self.greeting.done() and session.is_greeted:
            self.greeting.set_result(None)
            # Allow time for the request that the connection was made for, even if idle connections are not kept.
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
