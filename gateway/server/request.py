"""One request as the handlers see it, whatever connection it came by, and where its answer goes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from multidict import CIMultiDict

from gateway.http.request import RequestHead
from gateway.protocol.cache_status import Outcome
from gateway.protocol.proxies import Proxies
from gateway.server.body import RequestBody
from gateway.server.remembered import RememberedAnswer
from gateway.telemetry.access_record import CloseReason


class Answered(NamedTuple):
    """What a client was told, for those who note it."""

    status: int
    headers: CIMultiDict[str]


class LiveAnswer(Protocol):
    """Who gives an answer that no task waits for."""

    def pump(self) -> None:
        """The connection has room again."""

    def left(self, channel: Channel) -> None:
        """The client at the other end of this channel has gone."""


class Note(Protocol):
    """Where one live answer is noted."""

    @property
    def trace_id(self) -> str | None:
        """The trace that its figures are an example of."""

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """It has ended."""


class Channel(Protocol):
    """Where one request's answer goes, and the client behind it.

    An answer is one `respond`; or `begin`, some `send_part` and `end`; or, after `park`, a live one.  Whoever gives the
    first two without being waited for says `hand_over` before and `answered` after.
    """

    versions: frozenset[str]
    """Versions of HTTP that answers are written in here (RFC 9112 section 2.5)."""
    live_bytes: int
    """Body bytes of the live answer."""
    live_first_byte_s: float
    """How long after the request was read the live answer's head was written."""
    why_cut: CloseReason | None
    """Why the connection is cut from this side, where it is."""

    @property
    def is_full(self) -> bool:
        """Whether the client has left so much unread that nothing more is to be written."""

    @property
    def client(self) -> str | None:
        """The address that the connection has come from, without its port; None where it has none."""

    @property
    def proxies(self) -> Proxies | None:
        """Who is believed about whom they pass on; None where nobody is."""

    @property
    def alias(self) -> bytes | None:
        """The request in bytes, where it came by itself and whole, and they may be remembered."""

    @property
    def scheme(self) -> str:
        """As in a URL."""

    def proceed(self) -> None:
        """Tell the client to go on with its body (RFC 9110 section 15.2.1)."""

    def respond(self, request: Request, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        """Write a whole answer; UpstreamBroken, with nothing written, for headers that must not be."""

    def begin(
        self, request: Request, status: int, reason: str | None, headers: CIMultiDict[str], length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes, None where that is not known yet."""

    def send_part(self, piece: bytes) -> None:
        """Write a piece of the body."""

    def end(self) -> None:
        """The body is whole."""

    async def drained(self) -> None:
        """Wait until the client has taken enough for more to be written.  ConnectionError when it does not."""

    def abort(self) -> None:
        """Drop the connection at once: an orderly end would make a part look like the whole."""

    def learn(self, answer: RememberedAnswer, credential_headers: Collection[str]) -> None:
        """The request was answered so; remember it if it was one to remember, and if what it came by still holds."""

    def hand_over(self, answering: LiveAnswer) -> None:
        """The answer is given by `answering`, who is told of room and of the client's end, until `answered`."""

    def answered(self, request: Request) -> None:
        """The answer is out."""

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """The answer is given by `live` from here on, until `release`."""

    def release(self) -> None:
        """The live answer has ended."""

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """An SSE answer is given by `live` from here on, until `over`."""

    def write_head(self, head: bytes) -> None:
        """Write the head of a live answer."""

    def send(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of a live body, framed as a chunk."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The live body is whole; or it is not, and never will be."""

    def write_response(self, response: bytes, body_bytes: int) -> None:
        """Write a whole live answer, where the client is still there; `release` is owed."""


class Request:
    """A request, and the channel for its answer."""

    __slots__ = ("body", "channel", "has_begun", "head", "headers", "is_detached", "keeps_alive", "method", "target")

    def __init__(self, channel: Channel, head: RequestHead, body: RequestBody | None) -> None:
        self.channel = channel
        self.head = head
        self.method = head.method
        self.target = head.target
        """As it came."""
        self.headers = head.headers
        self.body = body
        """None where there is none."""
        self.keeps_alive = head.keeps_alive
        """Whether the connection is kept after the answer."""
        self.has_begun = False
        """Whether any of the answer has been written."""
        self.is_detached = False
        """Whether it is carried to its end even where its client has gone."""

    @property
    def version(self) -> str:
        """That of HTTP, as in `1.1`."""
        return self.head.version

    @property
    def peer(self) -> str | None:
        """The address that the connection has come from, without its port: a proxy's, maybe."""
        return self.channel.client

    @property
    def is_from_proxy(self) -> bool:
        """Whether its `X-Forwarded-*` are the word of a proxy that is believed."""
        proxies = self.channel.proxies
        return proxies is not None and proxies.writes_x_forwarded(self.channel.client)

    @property
    def client(self) -> str | None:
        """The client's address, without its port; None where nobody knows it."""
        proxies, peer = self.channel.proxies, self.channel.client
        return peer if proxies is None else proxies.client(peer, self.headers)

    @property
    def scheme(self) -> str:
        """That by which the client has asked, as in a URL."""
        proxies, own = self.channel.proxies, self.channel.scheme
        return own if proxies is None else proxies.scheme(self.channel.client, self.headers, own)

    @property
    def host(self) -> str:
        """What the client asked for; empty where it did not say."""
        return self.headers.get("Host", "")

    def joined(self, name: str) -> str | None:
        """All lines of a header as one, None where there is none (RFC 9110 section 5.3)."""
        lines = self.headers.getall(name, None)
        return ", ".join(lines) if lines is not None else None
