"""One request in the form that handlers use, and the channel for its answer: an HTTP/1.1 connection or an HTTP/2
stream.

A client may wait for 100 Continue before it sends its body (RFC 9110 section 10.1.1).  The origin gets the expectation
with the head of the request.  The gateway passes its 100 Continue on to the client.  The origin can therefore refuse a
body before any of it is sent.  Some origins ignore the expectation and wait for the body.  If an origin stays silent
for a while, the gateway itself asks the client for the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol

from multidict import CIMultiDict

from gateway.auth.remembered_verdicts import Allowed, LiveRenewal
from gateway.engine.route import HeaderRules
from gateway.http.outgoing import Fields
from gateway.http.request_parser import RequestHead
from gateway.limits.accounts import Account
from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.client_address import Proxies
from gateway.protocol.target import authority_of
from gateway.server.remembered import RememberedAnswer
from gateway.server.request_body import RequestBody
from gateway.telemetry.access_record import CloseReason


class Answered(NamedTuple):
    """The head of an answer that was sent, for the access log and the tracer."""

    status: int
    headers: Fields


class Holder(Protocol):
    """The source of the body of an answer in progress."""

    def holdings(self) -> Iterable[Holding]:
        """Return the buffers that the source keeps in memory, except for buffers that are already written."""


class LiveAnswer(Holder, Protocol):
    """An answer without a task.  The channel calls its methods when the answer can continue."""

    def pump(self) -> None:
        """Called when the connection has room again."""

    def client_left(self, channel: Channel) -> None:
        """Called when the channel's client has left."""


class LiveUse(Protocol):
    """Counts one live read against its client's limits."""

    def end_live(self, sent_bytes: int) -> None:
        """Called when the live read ends, with the number of its body bytes."""


class Note(Protocol):
    """A live answer's record in the log and the trace."""

    @property
    def trace_id(self) -> str | None:
        """The trace's id, for exemplars in the metrics; None without a sampled trace."""

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Record the end of the answer."""

    def discard(self) -> None:
        """End without a record, because the request is handled again."""


class Peer(Protocol):
    """The remote end of a connection."""

    use: Account | None
    """The account of the client's network; None if the connection belongs to no network."""

    @property
    def client(self) -> str | None:
        """The client's address without its port, from the socket or the PROXY header; None without an address."""

    @property
    def scheme(self) -> str:
        """The scheme of the connection's URLs, http or https."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""


class Channel(Protocol):
    """Receives the answer to one request, and represents its client.

    An answer takes one of three forms:

    - one call of `respond`;
    - `start_response`, any number of `send_part`, and `end_response`;
    - after `park` or `follow`, a live answer.

    An answer of the first two forms can also be given without a task.  It then begins with `hand_over` and ends with
    `response_written`.
    """

    versions: frozenset[str]
    """The versions of HTTP that requests may have on this connection (RFC 9112 section 2.5)."""
    live_bytes: int
    """Body bytes of the live answer."""
    live_began: float
    """The time at which the request of the SSE answer, or of the live read with a verdict, was read (monotonic
    seconds)."""
    live_first_byte_s: float
    """Seconds from reading the request to writing the live answer's head."""
    cut_reason: CloseReason | None
    """The reason why the gateway cuts the connection; None while the connection is not cut."""
    live_use: LiveUse | None
    """Counts the live read in progress.  The channel ends this count when the channel is free again, for any reason."""
    verdict: Allowed | None
    """The verdict of the live read in progress; None on a route without rules.  The channel drops the verdict when it
    ends `live_use`."""
    renewing: LiveRenewal | None
    """The verdict renewal that an HTTP/1.1 connection keeps between its reads (`gateway.server.verdict_renewal`); None
    if the connection keeps no renewal."""
    outlasts_reads: bool
    """Whether further reads may follow on the channel.  True for HTTP/1.1 connections, False for HTTP/2 streams."""

    @property
    def carrier(self) -> int:
        """The number of the HTTP/2 connection of which the channel is a stream, by which readers on one connection are
        recognised; 0 for an HTTP/1.1 connection."""

    @property
    def use(self) -> Account | None:
        """The account of the client's network; None if the connection belongs to no network."""

    @property
    def is_full(self) -> bool:
        """Whether the client has so many unread bytes that no more may be written."""

    @property
    def client(self) -> str | None:
        """The address of the connection's peer, without its port; None for a peer without an address."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""

    @property
    def alias(self) -> bytes | None:
        """The request's bytes over HTTP/1.1, if an answer may be remembered under these bytes."""

    @property
    def scheme(self) -> str:
        """The scheme of the connection's URLs, http or https."""

    def inform(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send an interim reply (RFC 9110 section 15.2), such as 100 Continue.

        Raises UpstreamBroken for headers that must not be sent, before anything is written.
        """

    def respond(self, request: Request, status: int, headers: Fields, body: bytes, reason: str | None = None) -> None:
        """Write a whole answer.  Raises UpstreamBroken for headers that must not be sent, before anything is
        written."""

    def start_response(
        self, request: Request, status: int, reason: str | None, headers: Fields, length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes; None if the length is unknown."""

    def send_part(self, piece: bytes) -> None:
        """Write a part of the body."""

    def end_response(self) -> None:
        """End the body."""

    async def drained(self) -> None:
        """Wait until more may be written.  Raises ConnectionError if the client leaves or reads too slowly."""

    def abort(self) -> None:
        """Drop the connection at once, because an orderly end would make a truncated body look complete."""

    @property
    def learns(self) -> bool:
        """Whether `learn` can remember an answer to this request."""

    def learn(self, answer: RememberedAnswer, rules: HeaderRules) -> None:
        """Remember `answer` for later requests with the same bytes, if this request may be remembered."""

    def hand_over(self, answering: LiveAnswer) -> None:
        """Let `answering` give the answer without a task, until `response_written` is called.  The channel calls
        `answering` when there is room to write and when the client leaves."""

    def go_on(
        self, request: Request, handler: Callable[[Request], Coroutine[Any, Any, Answered | None] | None]
    ) -> None:
        """Resume the handler after a `LiveAnswer` has waited on its behalf."""

    def response_written(self, request: Request) -> None:
        """Called when the answer is written, which frees the channel."""

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """Let `live` give the answer to a live read, until `release` is called."""

    def release(self, *, keeps: bool = True) -> None:
        """End a live answer.  The connection stays open if `keeps` is true, as the answer's head has stated."""

    def begin_again(self, request: bytes | None, at: str, group: GivenUp) -> None:
        """Give up a live answer before any of it is written, and relay its request instead.

        `request` holds the request's bytes, or is None for the latest request.  A read that began at the stream's tail
        (its end) continues from the offset `at`.  Until the request is handled, `group` counts the client.
        """

    def end_live_use(self, *, has_begun: bool = True) -> None:
        """Stop counting the live read, if there is one."""

    def end_early(self) -> None:
        """End the live answer in progress.  An SSE answer ends properly.  For any other answer, the connection is
        dropped.
        """

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """Let `live` give an SSE answer, until `over` is called."""

    def write_head(self, head: bytes, chunk: bytes = b"", size: int = 0) -> None:
        """Write the head of a live answer.  `chunk` and `size` are the first piece of its body, as for `send_chunk`.
        An empty `chunk` means that there is no piece yet."""

    def write_first(self, joined: bytes, chunk: bytes, size: int) -> None:
        """Write `joined`, the head of a live answer followed by the first piece of its body.  `chunk` and `size` are
        this piece, as for `send_chunk`."""

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write a piece of a live body, already framed as a chunk, with `size` bytes of data."""

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of a live body without a copy, because many clients receive the same piece."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the live answer.  `in_order` means that its body is complete."""

    def write_response(self, head: bytes, body: tuple[bytes, ...], body_bytes: int, shared: SharedBytes) -> None:
        """Write a whole live answer.  The caller must then call `release`.  A small body is a part of `head`, and
        `body` is then empty.  `shared` counts the bytes of a large `body`.
        """


class GivenUp(Protocol):
    """Counts the clients whose requests wait to be handled again."""

    def handed_over(self, channel: Channel) -> None:
        """Called when a client's request is about to be handled again."""

    def client_left(self, channel: Channel) -> None:
        """Called when a client leaves before its request is handled again."""


class Request:
    """A request and the channel for its answer."""

    __slots__ = (
        "body",
        "channel",
        "has_begun",
        "head",
        "headers",
        "held",
        "is_alone",
        "is_detached",
        "keeps_alive",
        "method",
        "target",
    )

    def __init__(self, channel: Channel, head: RequestHead, body: RequestBody | None) -> None:
        fields = head.fields
        self.channel = channel
        self.head = head
        self.method = head.method
        self.target = head.target
        """The target as sent."""
        self.headers = fields.headers
        self.body = body
        """The request's body; None if there is none."""
        self.keeps_alive = fields.keeps_alive
        """Whether the connection stays open after the answer."""
        self.has_begun = False
        """Whether any of the answer has been written."""
        self.is_detached = False
        """Whether the request is completed even if its client leaves."""
        self.held: Holder | None = None
        """The source of the answer's body, while it is being written."""
        self.is_alone = False
        """Whether the request is a live read that has waited for a shared answer, and now has to be relayed.  Such a
        request has been counted already.
        """

    @property
    def version(self) -> str:
        """The version of HTTP, as in `1.1`."""
        return self.head.version

    @property
    def peer(self) -> str | None:
        """The address of the connection's peer, without its port.  The peer may be a proxy."""
        return self.channel.client

    @property
    def is_from_proxy(self) -> bool:
        """Whether the request's `X-Forwarded-*` headers come from a trusted proxy."""
        proxies = self.channel.proxies
        return proxies is not None and proxies.writes_x_forwarded(self.channel.client)

    @property
    def client(self) -> str | None:
        """The client's address without its port; None if it is unknown."""
        proxies, peer = self.channel.proxies, self.channel.client
        return peer if proxies is None else proxies.client_address(peer, self.headers)

    @property
    def scheme(self) -> str:
        """The scheme of the URL that the client used."""
        proxies, own = self.channel.proxies, self.channel.scheme
        return own if proxies is None else proxies.scheme(self.channel.client, self.headers, own)

    @property
    def host(self) -> str:
        """The host and port of the client's URL, or an empty string.  The host and port of an absolute-form target
        replace the Host header (RFC 9112 section 3.2.2).
        """
        authority = authority_of(self.target) if not self.target.startswith("/") else None
        return self.headers.get("Host", "") if authority is None else authority

    def joined(self, name: str) -> str | None:
        """Return the values of all lines of a header, joined into one value (RFC 9110 section 5.3); None without such a
        line."""
        lines = self.headers.getall(name, None)
        return ", ".join(lines) if lines is not None else None


CONTINUE_S: Final = 1.0
"""Seconds for which an origin may leave an expectation unanswered.  Clients wait about as long."""


def is_expecting(request: Request) -> bool:
    """Return whether the client waits for 100 Continue."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version != "1.0"


def ask_for_body(request: Request) -> None:
    """Send 100 Continue."""
    request.channel.inform(100, CIMultiDict())


class Expectation:
    """A request's expectation of 100 Continue, until the client is asked for the body or gets its answer.  It owns a
    timer.
    """

    __slots__ = ("_request", "_timer")

    def __init__(self, request: Request, idle_timeout_s: float) -> None:
        """The client may be silent for `idle_timeout_s` seconds before its body fails."""
        self._request = request
        # Ask well before the body counts as late, because a late body counts as the client's fault.
        patience_s = min(CONTINUE_S, idle_timeout_s / 2)
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(patience_s, self.meet)

    def meet(self) -> None:
        """Ask the client for the body, unless the client has been asked before or has its answer."""
        if self._timer is not None:
            self.cancel()
            if not self._request.has_begun:
                ask_for_body(self._request)

    def cancel(self) -> None:
        """Stop the timer, because the client need not be asked for the body."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


Work = Coroutine[Any, Any, Answered | None]
"""The rest of the work for an answer, which a task has to do.

The work returns the answer's head if the caller must then free the channel (the HTTP/1.1 connection or HTTP/2 stream).
The work returns None if other code frees the channel, such as a live answer.  Raises ConnectionError if the connection
was dropped before the answer was complete.
"""
Handler = Callable[[Request], Work | None]
"""Answers a request as far as possible without waiting.  Returns the work that is left, or None."""
