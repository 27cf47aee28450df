"""The front: one handler for every request.  It reads what is asked, chooses the route, hands over to the engine and
has the answer delivered; it is the one place where errors become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.config import GatewayConfig
from gateway.engine.answer import Answer, Shown
from gateway.engine.core import Engine, route_for
from gateway.engine.relay import WRITES, Passed
from gateway.engine.replies import failure_answer
from gateway.engine.request import Read, Uncacheable
from gateway.engine.route import Route
from gateway.engine.tail import TOO_LARGE, Subscription
from gateway.engine.waiter import Waiting
from gateway.errors import BadRequest, BodyTooLarge, GatewayError, LoopDetected, NoRoute, VersionNotSupported
from gateway.journal import Journal, Place, note_answered, note_asked, note_fetched, note_repeated
from gateway.metrics_seam import NO_ROUTE, Recorder
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied, negotiate
from gateway.protocol.forwarding import (
    is_looping,
    passed_nodes,
    request_headers_for_origin,
    response_headers_for_client,
)
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.protocol.offsets import START, is_well_formed
from gateway.protocol.target import BadTarget, Target, parse_target
from gateway.server import cors
from gateway.server.body import RequestBody
from gateway.server.crowd import Rendering
from gateway.server.delivery import Delivery
from gateway.server.joins import Join, Joins
from gateway.server.live import LiveAnswers
from gateway.server.ready import Ready
from gateway.server.replay import until_up_to_date
from gateway.server.request import Answered, Channel, Request
from gateway.tape.stream import StreamKey
from gateway.tracing import current
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.front")

_METHODS = {"HEAD": Mode.HEAD, "PUT": Mode.CREATE, "POST": Mode.APPEND, "DELETE": Mode.DELETE}
_RESERVED = "/__ds"
"""Subscriptions live below this; they are nobody's stream."""
_LIVE = frozenset({Mode.LONGPOLL, Mode.SSE})
_VERSIONS = frozenset({"1.0", "1.1"})
"""A response says the version that it is written in (RFC 9112 section 2.5); these two can be answered in that."""


@dataclass(slots=True)
class Exchange:
    """One request on its way: what is known of it for the answer and for the record."""

    request: Request
    delivery: Delivery
    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    route: Route | None = None
    began: float = 0.0
    saved_bytes: int = 0
    """What coding spared the client of an answer that was sent whole."""
    is_replay: bool = False
    """Whether a live read is relayed for what comes before the tail, and for no longer."""
    is_parked: bool = False
    """Whether the answer is live, and counted when it ends."""

    @property
    def route_name(self) -> str:
        """The route's name as the metrics have it."""
        return self.route.config.name if self.route is not None else NO_ROUTE


class _Asked(NamedTuple):
    """What a request asks for."""

    route: Route
    target: Target
    key: StreamKey
    shares: bool
    """Whether it may be answered as one of many, and what it changes be recorded of the writer's own tape."""
    read: Read | None
    """As the engine is asked; None for what is no read, or may not be shared."""


class Front:
    """Answers clients.  Owns nothing: the engine does."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        routes: Sequence[Route],
        recorder: Recorder,
        journal: Journal,
        joins: Joins,
    ) -> None:
        self._node = config.server.node_name
        self._limits = config.limits
        self._engine = engine
        self._routes = sorted(routes, key=lambda route: route.precedence, reverse=True)
        self._recorder = recorder
        self._joins = joins
        self._live = LiveAnswers(Rendering(self._node, self._dress, engine.clock, engine.drain, recorder), journal)

    async def __call__(self, request: Request) -> Answered | None:
        exchange = self._exchange(request)
        try:
            return await self._answer(exchange)
        except (asyncio.CancelledError, ConnectionError):
            exchange.outcome = Outcome.ABORTED
            raise
        except Exception:
            exchange.outcome = Outcome.FAILED
            raise
        finally:
            if not exchange.is_parked:
                self._tell(exchange)

    def _exchange(self, request: Request) -> Exchange:
        now = self._engine.clock.now
        return Exchange(request, Delivery(request, self._recorder, now), began=now())

    def _tell(self, exchange: Exchange) -> None:
        """What became of the request, for those who count, log and trace."""
        mode, outcome, delivery, span = exchange.mode, exchange.outcome, exchange.delivery, current()
        route = exchange.route.config.name if exchange.route is not None else None
        sent_bytes = delivery.sent_bytes
        first_byte_s = delivery.first_byte_at - exchange.began if delivery.first_byte_at is not None else None
        self._recorder.request(
            mode,
            outcome,
            self._engine.clock.now() - exchange.began,
            exchange.route_name,
            first_byte_s=first_byte_s,
            sent_bytes=sent_bytes,
            saved_bytes=exchange.saved_bytes,
        )
        span.tell(mode, outcome, route)
        note_answered(mode, outcome, first_byte_s, sent_bytes, exchange.saved_bytes)

    async def _answer(self, exchange: Exchange) -> Answered | None:
        try:
            return await self._dispatch(exchange)
        except BadTarget as error:
            return self._refuse(exchange, BadRequest(str(error)))
        except GatewayError as error:
            return self._refuse(exchange, error)

    def _refuse(self, exchange: Exchange, error: GatewayError) -> Answered:
        """The one place where an error becomes a response: a status and one line."""
        answer = failure_answer(self._node, error)
        exchange.outcome, headers = answer.outcome, answer.headers
        self._finish(exchange, headers)
        return exchange.delivery.text(answer.status, headers, answer.body)

    def _finish(self, exchange: Exchange, headers: CIMultiDict[str]) -> None:
        self._dress(exchange.route, exchange.request.headers.get("Origin"), headers)

    def _dress(self, route: Route | None, origin: str | None, headers: CIMultiDict[str]) -> None:
        """What every response carries."""
        config = route.config.cors if route is not None else None
        if config is not None:
            cors.apply(config, origin, headers)
        if "Via" not in headers:
            headers["Via"] = f"1.1 {self._node}"
        headers.setdefault("Server", self._node)

    async def _dispatch(self, exchange: Exchange) -> Answered | None:
        asked = self._understand(exchange)
        if (preflight := self._preflight(exchange, asked.route)) is not None:
            return preflight
        note_asked(
            exchange.mode,
            Place.of(asked.route.config.name, asked.target, asked.key.partition),
            asked.target.offset,
        )
        if asked.read is not None:
            answered = await self._shared(exchange, asked.read)
            if answered is not None or exchange.is_parked:
                return answered
        return await self._pass(exchange, asked)

    def _understand(self, exchange: Exchange) -> _Asked:
        """What the request asks for, of which route.  Raises BadTarget and GatewayError."""
        request = exchange.request
        if request.version not in _VERSIONS:
            raise VersionNotSupported
        target = parse_target(request.target)
        mode = exchange.mode = _mode(request.method, target)
        route = exchange.route = route_for(self._routes, _host(request, target), target.path)
        if route is None:
            raise NoRoute
        if is_looping(request.headers, self._node):
            raise LoopDetected
        nodes = passed_nodes(request.headers)
        credentials = route.credentials(request.headers)
        key = route.key(target, credentials, nodes)
        shares = route.config.cache and not (credentials and route.config.credentials == "bypass")
        is_read = request.method in ("GET", "HEAD") and request.body is None and mode is not Mode.OTHER
        read: Read | None = None
        if shares and is_read and not route.relays(target.offset or ""):
            read = Read(
                route,
                key,
                route.source(target, credentials, nodes),
                _start(target, mode),
                target.cursor,
                request.joined("If-None-Match"),
                is_private=bool(credentials) and route.config.credentials != "shared",
                wish=negotiate(request.joined("Accept-Encoding"), request.joined("Cache-Control"), route.codings),
                is_live=mode in _LIVE,
            )
        return _Asked(route, target, key, shares, read)

    def _preflight(self, exchange: Exchange, route: Route) -> Answered | None:
        request = exchange.request
        origin = request.headers.get("Origin")
        wanted = request.headers.get("Access-Control-Request-Method")
        if route.config.cors is None or not cors.is_preflight(request.method, origin, wanted):
            return None
        answer = cors.preflight_headers(
            route.config.cors, origin, wanted, request.headers.get("Access-Control-Request-Headers")
        )
        exchange.outcome = Outcome.HIT if answer is not None else Outcome.REFUSED
        headers = CIMultiDict(answer or {"Vary": "Origin"})
        headers["Cache-Status"] = cache_status(self._node, exchange.outcome)
        return exchange.delivery.text(204 if answer is not None else 403, headers, b"")

    # -- reads

    async def _shared(self, exchange: Exchange, read: Read) -> Answered | None:
        """Answer as one of many; None where the request has to go to the origin by itself, or the answer is live."""
        if exchange.mode is Mode.HEAD:
            answer = await self._engine.head(read)
            return await self._deliver(exchange, read, answer) if answer is not None else None
        if read.route.unshared.reason(read.key, read.shape) is not None:
            return None
        try:
            return await self._read(exchange, read)
        except Uncacheable as error:
            exchange.is_replay = exchange.mode is Mode.SSE and error.why is TOO_LARGE
            return None

    async def _read(self, exchange: Exchange, read: Read) -> Answered | None:
        if exchange.mode is Mode.SSE:
            opened = await self._engine.open_sse(read)
            if isinstance(opened, Subscription):
                self._subscribe(exchange, opened)
                return None
            answer: Answer = opened
        elif exchange.mode is Mode.LONGPOLL:
            polled = await self._engine.long_poll(read)
            if isinstance(polled, Waiting):
                self._wait(exchange, polled)
                return None
            answer = polled
        else:
            answer = await self._engine.catch_up(read)
        return await self._deliver(exchange, read, answer)

    def _subscribe(self, exchange: Exchange, place: Subscription) -> None:
        request = exchange.request
        origin, is_chunked = request.headers.get("Origin"), request.version != "1.0"
        join = Join(place.read, Mode.SSE, origin)
        self._live.subscribe(
            request.channel, join, place, exchange.began, keeps=request.keeps_alive, is_chunked=is_chunked
        )
        exchange.is_parked = True
        self._remember(request.channel, join)

    def _wait(self, exchange: Exchange, place: Waiting) -> None:
        request = exchange.request
        origin = request.headers.get("Origin")
        crowd = self._live.wait(request.channel, origin, place, exchange.began, keeps=request.keeps_alive)
        exchange.is_parked = True
        self._remember(request.channel, Join(place.read, Mode.LONGPOLL, origin, crowd))

    def _remember(self, channel: Channel, join: Join) -> None:
        if (spelling := channel.spelling) is not None:
            self._joins.remember(spelling, join)

    def join(self, channel: Channel, join: Join) -> bool:
        """Begin a live answer to a request that is known by its bytes, which are those of an HTTP/1.1 GET that keeps
        its connection; False, and nothing has happened, where it has to be answered like any other."""
        began = self._engine.clock.now()
        return (join.crowd is not None and join.crowd.join(channel, began)) or self._join(channel, join, began)

    def at_once(self, request: Request) -> bool:
        """The same for a request that has been parsed."""
        if "live=" not in request.target:
            return False
        exchange = self._exchange(request)
        try:
            read = self._understand(exchange).read
        except (BadTarget, GatewayError):
            # To be told by whoever answers it.
            return False
        if read is None or exchange.mode not in _LIVE:
            return False
        join = Join(read, exchange.mode, request.headers.get("Origin"))
        keeps, is_chunked = request.keeps_alive, request.version != "1.0"
        if not self._join(request.channel, join, exchange.began, keeps=keeps, is_chunked=is_chunked):
            return False
        self._remember(request.channel, join)
        return True

    def _join(self, channel: Channel, join: Join, began: float, *, keeps: bool = True, is_chunked: bool = True) -> bool:
        if join.mode is Mode.SSE:
            subscription = self._engine.subscribe_at_once(join.read)
            if subscription is None:
                return False
            try:
                self._live.subscribe(channel, join, subscription, began, keeps=keeps, is_chunked=is_chunked)
            except GatewayError:
                return False
        else:
            waiting = self._engine.wait_at_once(join.read)
            if waiting is None:
                return False
            join.crowd = self._live.wait(channel, join.origin, waiting, began, keeps=keeps)
        return True

    async def _deliver(self, exchange: Exchange, read: Read, answer: Answer) -> Answered:
        exchange.outcome = answer.outcome
        self._finish(exchange, answer.headers)
        if answer.stream is not None and answer.shown is not None:
            self._teach(exchange, read, answer, answer.shown)
        try:
            answered = await exchange.delivery.answer(answer)
        finally:
            answer.close()
        exchange.saved_bytes = answer.saved_bytes
        return answered

    def _teach(self, exchange: Exchange, read: Read, answer: Answer, shown: Shown) -> None:
        """Have a plain hit remembered, so that the next such request need not come here."""
        body = answer.parts.held(answer.is_json) if answer.parts is not None else [answer.body] if answer.body else []
        if body is None:
            return
        headers = answer.headers.copy()
        if answer.status == 200:
            headers["Content-Length"] = str(sum(map(len, body)))
        age = headers.get("Age")
        laid_at = self._engine.clock.now() - int(age) if age is not None else None
        exchange.request.channel.learn(
            Ready(
                shown,
                read.route.config.trust_s,
                answer.tail,
                exchange.mode,
                answer.outcome,
                answer.status,
                headers,
                body,
                answer.saved_bytes,
                answer.parts.copied if answer.parts is not None else 0,
                laid_at,
                read.route.config.name,
                note_repeated(
                    answer.outcome,
                    answer.status,
                    headers.get(STREAM_NEXT_OFFSET),
                    applied(headers.get("Content-Encoding")),
                    sum(map(len, body)),
                    answer.saved_bytes,
                ),
            ),
            read.route.credential_names,
        )

    # -- everything else

    async def _pass(self, exchange: Exchange, asked: _Asked) -> Answered:
        request, body = exchange.request, exchange.request.body
        route, target, key, shares, read = asked
        if body is not None:
            # Before the client is told to go on: a body that is announced as too large need not be sent.
            body.check(request.head, self._limits)
            if request.headers.get("Expect", "").lower() == "100-continue" and request.version != "1.0":
                request.channel.proceed()
        headers = request_headers_for_origin(
            request.headers,
            node=self._node,
            client=request.peer,
            is_from_proxy=request.is_from_proxy,
            host=request.host,
            scheme=request.scheme,
            http_version=request.version,
        )
        if request.method in ("GET", "HEAD") and exchange.mode is not Mode.OTHER:
            # Origins give the same strong ETag to every coding; what passes here is not to be confused by that.
            headers["Accept-Encoding"] = "identity"
        passed = Passed(
            route,
            key.group,
            key if shares else None,
            exchange.mode,
            request.method,
            target.path,
            target.query,
            _raw_query(request),
            headers,
            await self._upload(body) if body is not None else None,
            Place.of(route.config.name, target, key.partition),
            lambda: body is not None and body.error is not None,
        )
        write_turns = self._engine.absences.write_turns
        try:
            reply = await self._send(request, passed)
        except GatewayError:
            if body is not None and body.error is not None:
                raise body.error from None
            raise
        async with reply:
            exchange.outcome = Outcome.PASS if reply.status < 500 else Outcome.FAILED
            if read is not None and exchange.mode is Mode.HEAD and reply.status in (404, 410):
                self._engine.absences.add_relayed(
                    key, reply.status, read.source.headers, route, exchange.began, write_turns
                )
            passed_on = response_headers_for_client(reply.headers, node=self._node, http_version="1.1")
            status = cache_status(self._node, Outcome.PASS, fwd_status=reply.status, by_method=request.method != "GET")
            passed_on["Cache-Status"] = ", ".join([*passed_on.popall("Cache-Status", []), status])
            if (location := passed_on.get("Location")) is not None:
                passed_on["Location"] = route.public_location(location, f"{request.scheme}://{request.host}")
            self._finish(exchange, passed_on)
            chunks = self._counted(exchange, reply)
            return await exchange.delivery.stream(
                reply.status,
                reply.reason,
                passed_on,
                None,
                until_up_to_date(chunks) if exchange.is_replay else chunks,
            )

    async def _counted(self, exchange: Exchange, reply: Reply) -> AsyncIterator[bytes]:
        async for chunk in reply.chunks():
            self._recorder.upstream_bytes(
                len(chunk), exchange.mode, exchange.route.config.name if exchange.route else NO_ROUTE
            )
            note_fetched(len(chunk))
            yield chunk

    async def _upload(self, body: RequestBody) -> AsyncIterator[bytes] | bytes:
        whole = await body.gather(self._limits)
        if whole is None:
            return body.chunks(self._limits)
        if len(whole) > self._limits.max_request_bytes:
            raise BodyTooLarge
        return whole

    async def _send(self, request: Request, passed: Passed) -> Reply:
        """Send a request to the origin; a client that leaves does not take a write back that may have happened, so
        what it changed is recorded all the same."""
        request.is_detached = passed.mode in WRITES
        try:
            return await self._engine.relay.send(passed)
        finally:
            request.is_detached = False


def _mode(method: str, target: Target) -> Mode:
    path = target.path
    if f"{_RESERVED}/" in path or path.endswith(_RESERVED):
        return Mode.OTHER
    if method != "GET":
        return _METHODS.get(method, Mode.OTHER)
    match target.live:
        case None:
            return Mode.CATCHUP
        case "long-poll":
            return Mode.LONGPOLL
        case "sse":
            return Mode.SSE
        case _:
            return Mode.OTHER


def _start(target: Target, mode: Mode) -> str:
    offset = target.offset
    if mode is Mode.HEAD:
        return START
    if offset is None:
        if mode is not Mode.CATCHUP:
            raise BadRequest("A live read needs an offset")
        return START
    if not is_well_formed(offset):
        raise BadRequest("Invalid offset format")
    return offset


def _host(request: Request, target: Target) -> str:
    """The host that is asked for, lower case, without a port (RFC 9112 §3.2)."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1 or (not hosts and request.version != "1.0"):
        raise BadRequest("Exactly one Host header is needed")
    host = target.authority or (hosts[0].lower() if hosts else "")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _raw_query(request: Request) -> str:
    return request.target.partition("?")[2].partition("#")[0]
