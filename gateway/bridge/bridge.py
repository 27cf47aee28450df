"""The `Upstream` of all routes: translates the requests of bridged routes, and passes on all other requests.

Each request of a bridged route runs in a task, which ends when the head of the reply has arrived, or when the requester
gives up.  An SSE answer has a second task, which ends with its body.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from multidict import CIMultiDict
from yarl import URL

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.bridge import live, reads, writes
from gateway.bridge.content import BytesContent, Content, EnvelopeContent, JsonContent
from gateway.bridge.origin import Call
from gateway.bridge.replies import BridgedRequest, Made, text
from gateway.bridge.streams import BadName, BadOffset, S2Sightings, offset_at, parse_name
from gateway.config.routes import RouteConfig
from gateway.errors import GatewayError, UpstreamBroken
from gateway.protocol.names import LIVE_LONG_POLL, LIVE_SSE, NOW
from gateway.protocol.target import BadTarget, parse_target
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Body, OriginCall
from gateway.upstream.origin_pool import ROUTE_URL, route_url
from gateway.upstream.reply import PendingRequest, Reply, Requester, Upstream, answer_to
from gateway.upstream.s2_client import S2Client

ALLOWED: Final = "GET, HEAD, PUT, POST, DELETE, OPTIONS"

_PASSED: Final = ("Via", "CDN-Loop", "Forwarded", "X-Forwarded-For", "traceparent", "tracestate")
"""The headers of the engine's request that the S2 requests repeat, in addition to the credentials."""

_MOST_WAIT_S: Final = 60
"""The longest wait of a unary read in S2, in seconds."""


@dataclass(frozen=True, slots=True)
class _Bridged:
    """The settings of one bridged route."""

    name: str
    base: str
    """The URL of the route, including the path of the origin."""
    public: str
    """The URL of an origin, for Location headers."""
    content: Content
    credentials: tuple[str, ...]
    wait_s: int
    lifetime_s: float


class Bridge:
    """Sends requests by `upstream`.  Owns the tasks of translated requests and the known states of their streams."""

    def __init__(self, upstream: Upstream, clock: Clock, rng: random.Random, tasks: Tasks) -> None:
        self._upstream = upstream
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._routes: dict[str, _Bridged] = {}
        self.ask: Callable[[Requester, OriginCall], PendingRequest] = upstream.ask
        """Sends one request.  The requester is notified of its outcome, possibly before this returns."""
        self.sightings = S2Sightings()
        self.on_trim: Callable[[str, str, str], object] = lambda route, path, offset: None
        """Called with a route, the path of a stream at its origin, and the first offset that a trim has kept."""

    def __repr__(self) -> str:
        return f"<Bridge of {len(self._routes)} routes, {self.sightings!r}>"

    def configure(self, routes: Sequence[RouteConfig]) -> None:
        """Set the routes.  Requests of bridged routes are translated from now on."""
        self._routes = {route.name: _bridged(route) for route in routes if route.is_bridged}
        self.ask = self._ask if self._routes else self._upstream.ask

    def _ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        if call.url.startswith(ROUTE_URL):
            route = self._routes.get(call.url[len(ROUTE_URL) :].partition("/")[0])
            if route is not None:
                return _Translated(self._run(requester, route, call), self._tasks)
        return self._upstream.ask(requester, call)

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called once.  Raises a GatewayError."""
        return await answer_to(self.ask, call, on_sent)

    async def _run(self, requester: Requester, route: _Bridged, asked: OriginCall) -> None:
        """Answer one request, and notify its requester."""
        try:
            made = await self._answer(requester, route, asked)
        except GatewayError as error:
            requester.failed(error)
        except Exception:
            # This is a bug, but the requester must not wait forever.
            requester.failed(UpstreamBroken())
            raise
        else:
            requester.head_arrived(made.reply(asked.bounds, is_head=asked.method == "HEAD"))

    async def _answer(self, requester: Requester, route: _Bridged, asked: OriginCall) -> Made:
        method, url, headers, bounds, body, is_live, client, _, _, _ = asked
        try:
            target = parse_target(url[len(route_url(route.name)) :])
            name = parse_name(target.path[len(route.base) - len(route_url(route.name)) :])
        except (BadTarget, BadName) as error:
            return text(404 if isinstance(error, BadName) else 400, str(error))
        own = _picked(headers, route.credentials)
        key = blake2b(f"{route.base}{target.path}\n{list(own.items())}".encode("utf-8", "surrogateescape"))
        own.extend(_picked(headers, _PASSED))
        own["Accept-Encoding"] = "identity"
        own["s2-basin"] = name.basin
        sent = _once(requester.sent)
        s2_client = S2Client(
            lambda call: self._upstream.send(call, sent), route.base + name.path, own, bounds, client, is_live
        )
        call = Call(s2_client, route.base, name, self.sightings.stream_of(key.digest()))
        of_stream = BridgedRequest(
            call,
            route.content,
            target.offset,
            target.cursor,
            route.wait_s,
            route.lifetime_s,
            route.public + target.path,
            self._clock,
            self._rng,
            lambda seq_num: self.on_trim(route.name, target.path, offset_at(seq_num)),
        )
        try:
            return await self._answered(of_stream, method, target.live, headers, body)
        except BadOffset:
            return text(400, "Invalid offset format")

    async def _answered(
        self, asked: BridgedRequest, method: str, mode: str | None, headers: CIMultiDict[str], body: Body
    ) -> Made:
        match method:
            case "HEAD":
                return await reads.head(asked)
            case "GET" if mode in (LIVE_SSE, LIVE_LONG_POLL) and asked.offset is None:
                # Section 5.7 requires an offset.  The gateway has checked that already, unless it relays the request.
                return text(400, "A live read needs an offset")
            case "GET" if mode == LIVE_SSE:
                return await live.open_sse(asked, self._tasks)
            case "GET" if mode == LIVE_LONG_POLL:
                return await (reads.long_poll_now(asked) if asked.offset == NOW else reads.long_poll(asked))
            case "GET":
                return await (reads.now(asked) if asked.offset == NOW else reads.catch_up(asked))
            case "PUT":
                return await writes.create(asked, headers, body)
            case "POST":
                return await writes.append(asked, headers, body)
            case "DELETE":
                return await writes.delete(asked)
            case "OPTIONS":
                return Made(204, {"Allow": ALLOWED})
            case _:
                return text(405, "Method not allowed", {"Allow": ALLOWED})


class _Translated:
    """A translated request that is waiting for the head of its reply."""

    def __init__(self, work: Coroutine[object, object, None], tasks: Tasks) -> None:
        self._task = tasks.start(work, "bridged request")

    def give_up(self) -> None:
        """Stop waiting for the head of the reply."""
        self._task.cancel()


def _bridged(config: RouteConfig) -> _Bridged:
    origin = URL(config.members[0].url)
    return _Bridged(
        config.name,
        route_url(config.name) + origin.raw_path.rstrip("/"),
        str(origin.origin()),
        _content(config),
        config.credential_headers,
        min(max(1, int(config.long_poll_timeout_s)), _MOST_WAIT_S),
        config.sse_lifetime_s,
    )


def _content(config: RouteConfig) -> Content:
    match config.bridging.records:
        case "json":
            return JsonContent()
        case "bytes":
            return BytesContent(config.bridging.content_type)
        case "envelope":
            return EnvelopeContent()


def _picked(headers: CIMultiDict[str], names: Iterable[str]) -> CIMultiDict[str]:
    """Return the fields with these names, with all their values."""
    found: CIMultiDict[str] = CIMultiDict()
    for name in names:
        for value in headers.getall(name, ()):
            found.add(name, value)
    return found


def _once(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that makes the call at most once: to the engine, several S2 requests are one request."""
    is_made = False

    def made() -> None:
        nonlocal is_made
        if not is_made:
            is_made = True
            call()

    return made
