"""One request as the handlers see it, independent of the version of HTTP, and the channel for its answer.

A client may wait for 100 Continue before it sends its body (RFC 9110 section 10.1.1).  The expectation goes to the
origin with the head of the request, and the origin's 100 Continue to the client.  So the origin may refuse a body
before any of it is sent.  An origin that ignores the expectation waits for the body, so after a while the gateway asks
the client for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol

from multidict import CIMultiDict

from gateway.engine.route import HeaderRules
from gateway.http.outgoing import Fields
from gateway.http.request import RequestHead
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
    """The source of an answer in progress."""

    def holdings(self) -> Iterable[Holding]:
        """The bytes that the source keeps in memory, except for written ones."""


class LiveAnswer(Holder, Protocol):
    """An answer that is given without a waiting task."""

    def pump(self) -> None:
        """The connection has room again."""

    def client_left(self, channel: Channel) -> None:
        """The client of this channel has left."""


class LiveUse(Protocol):
    """The count of one live read."""

    def end_live(self, sent_bytes: int) -> None:
        """The live read has ended, after `sent_bytes` body bytes."""


class Note(Protocol):
    """The record of a live answer in the log and the trace."""

    @property
    def trace_id(self) -> str | None:
        """The trace for the metrics' exemplars; None if there is none."""

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Record the end of the answer."""

    def discard(self) -> None:
        """Record nothing: the request is handled again."""


class Channel(Protocol):
    """Receives one request's answer, and represents its client.

    An answer is one `respond`; or `start_response`, any number of `send_part`, and `end_response`; or, after `park`, a
    live answer.  An answer of the first two kinds that is given without a task begins with `hand_over` and ends with
    `response_written`.
    """

    versions: frozenset[str]
    """Versions of HTTP that requests may have here (RFC 9112 section 2.5)."""
    live_bytes: int
    """Body bytes of the live answer."""
    live_first_byte_s: float
    """Seconds from the reading of the request to the writing of the live answer's head."""
    cut_reason: CloseReason | None
    """Why the gateway cuts the connection, if it does."""
    live_use: LiveUse | None
    """The count of the live read in progress.  The channel ends it when it is free again, for whatever reason."""

    @property
    def use(self) -> Account | None:
        """The account of the connection's net; None if the connection belongs to no net."""

    @property
    def is_full(self) -> bool:
        """Whether the client has left so much unread that nothing more may be written."""

    @property
    def client(self) -> str | None:
        """The address that the connection comes from, without its port; None if it has none."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""

    @property
    def alias(self) -> bytes | None:
        """The request's bytes in HTTP/1.1, if it arrived whole and alone and may be remembered."""

    @property
    def scheme(self) -> str:
        """The scheme of the connection, as in a URL."""

    def inform(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send an interim reply (RFC 9110 section 15.2), such as 100 Continue for the client to send its body.  Raises
        UpstreamBroken, with nothing written, for headers that must not be sent."""

    def respond(self, request: Request, status: int, headers: Fields, body: bytes, reason: str | None = None) -> None:
        """Write a whole answer.  Raises UpstreamBroken, with nothing written, for headers that must not be sent."""

    def start_response(
        self, request: Request, status: int, reason: str | None, headers: Fields, length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes; None if the length is not known yet."""

    def send_part(self, piece: bytes) -> None:
        """Write a part of the body."""

    def end_response(self) -> None:
        """End the body."""

    async def drained(self) -> None:
        """Wait until the client has taken enough for more to be written.  Raises ConnectionError if it does not."""

    def abort(self) -> None:
        """Drop the connection at once: after an orderly end a truncated body would look complete."""

    @property
    def learns(self) -> bool:
        """Whether `learn` would remember an answer to the request."""

    def learn(self, answer: RememberedAnswer, rules: HeaderRules) -> None:
        """Remember `answer` for the request's bytes, if the request has an alias that is still valid."""

    def hand_over(self, answering: LiveAnswer) -> None:
        """Have `answering` give the answer without a task, until `response_written`.  It is called when there is room,
        and when the client leaves."""

    def go_on(
        self, request: Request, handler: Callable[[Request], Coroutine[Any, Any, Answered | None] | None]
    ) -> None:
        """Have the handler do the remaining work of an answer that a `LiveAnswer` has waited for."""

    def response_written(self, request: Request) -> None:
        """The answer is written."""

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """Have `live` give the answer, until `release`."""

    def release(self, *, keeps: bool = True) -> None:
        """End a live answer, whose head said whether the connection `keeps` open."""

    def begin_again(self, request: bytes | None, at: str, group: GivenUp) -> None:
        """Give up a live answer of which nothing is written, and have the request handled again, to be relayed.

        `request` are its bytes, or None if it was handled before.  A read of the tail goes on from the offset `at`.
        `group` accounts for the client until then.
        """

    def end_live_use(self) -> None:
        """Stop counting the live read, if there is one."""

    def end_early(self) -> None:
        """End the live answer in progress: in order if it is an SSE answer, else by dropping the connection."""

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """Have `live` give an SSE answer, until `over`."""

    def write_head(self, head: bytes, chunk: bytes = b"", size: int = 0) -> None:
        """Write the head of a live answer, with the first piece of its body as in `send_chunk`, if there is one."""

    def write_first(self, joined: bytes, chunk: bytes, size: int) -> None:
        """Write `joined`, which is the head of a live answer and the first piece of its body; `chunk` is that piece, as
        in `send_chunk`."""

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write a piece of a live body, framed as a chunk; `size` is its number of body bytes."""

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of a live body without copying it, because many clients receive the same piece."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the live body; `in_order` if it is whole."""

    def write_response(self, head: bytes, body: tuple[bytes, ...], body_bytes: int, shared: SharedBytes) -> None:
        """Write a whole live answer if the client is still connected; a call to `release` follows.  A small body is
        part of `head`; a large one is `body`, which belongs to `shared`."""


class GivenUp(Protocol):
    """Accounts for clients whose requests wait to be handled again."""

    def handed_over(self, channel: Channel) -> None:
        """A client's request is about to be handled again."""

    def client_left(self, channel: Channel) -> None:
        """A client has left before its request was handled again."""


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
        """None if the request has no body."""
        self.keeps_alive = fields.keeps_alive
        """Whether the connection stays open after the answer."""
        self.has_begun = False
        """Whether any of the answer has been written."""
        self.is_detached = False
        """Whether the request is carried to its end even if its client leaves."""
        self.held: Holder | None = None
        """The source of its answer's body, while that is written."""
        self.is_alone = False
        """Whether the request is a live read that is to be relayed, after it was counted and has waited for a shared
        answer."""

    @property
    def version(self) -> str:
        """The version of HTTP, as in `1.1`."""
        return self.head.version

    @property
    def peer(self) -> str | None:
        """The address that the connection comes from, without its port; it may be a proxy's."""
        return self.channel.client

    @property
    def is_from_proxy(self) -> bool:
        """Whether its `X-Forwarded-*` headers come from a trusted proxy."""
        proxies = self.channel.proxies
        return proxies is not None and proxies.writes_x_forwarded(self.channel.client)

    @property
    def client(self) -> str | None:
        """The client's address without its port; None if it is not known."""
        proxies, peer = self.channel.proxies, self.channel.client
        return peer if proxies is None else proxies.client_address(peer, self.headers)

    @property
    def scheme(self) -> str:
        """The scheme that the client used, as in a URL."""
        proxies, own = self.channel.proxies, self.channel.scheme
        return own if proxies is None else proxies.scheme(self.channel.client, self.headers, own)

    @property
    def host(self) -> str:
        """Host and port as the client names them; empty if it names none.  Those of an absolute-form target replace the
        Host header (RFC 9112 section 3.2.2)."""
        authority = authority_of(self.target) if not self.target.startswith("/") else None
        return self.headers.get("Host", "") if authority is None else authority

    def joined(self, name: str) -> str | None:
        """All lines of a header joined into one; None if there is none (RFC 9110 section 5.3)."""
        lines = self.headers.getall(name, None)
        return ", ".join(lines) if lines is not None else None


CONTINUE_S: Final = 1.0
"""How long an origin may leave an expectation unanswered; clients wait about as long."""


def is_expecting(request: Request) -> bool:
    """Whether the client waits for 100 Continue."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version != "1.0"


def ask_for_body(request: Request) -> None:
    """Send 100 Continue."""
    request.channel.inform(100, CIMultiDict())


class Expectation:
    """The expectation of one request, until its client is asked for the body or answered.  Owns its timer."""

    __slots__ = ("_request", "_timer")

    def __init__(self, request: Request, idle_timeout_s: float) -> None:
        """`idle_timeout_s` is the time after which the body is late."""
        self._request = request
        # Less than the time after which the body is late, because the client would be blamed for that.
        patience_s = min(CONTINUE_S, idle_timeout_s / 2)
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(patience_s, self.meet)

    def meet(self) -> None:
        """Ask the client for the body, unless that was done or the request is answered."""
        if self._timer is not None:
            self.cancel()
            if not self._request.has_begun:
                ask_for_body(self._request)

    def cancel(self) -> None:
        """The client need not be asked any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
