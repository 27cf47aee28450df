"""The front: one handler for every request.  It reads what is asked, chooses the route, hands over to the engine and
has the answer delivered; it is the one place where errors become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion10, HttpVersion11
from multidict import CIMultiDict

from gateway.config import GatewayConfig
from gateway.engine.answer import Answer, Shown
from gateway.engine.core import Engine, route_for
from gateway.engine.relay import Passed
from gateway.engine.replies import failure_answer
from gateway.engine.request import Read, Uncacheable
from gateway.engine.route import Route
from gateway.engine.tail import TOO_LARGE, Subscription, Waiting
from gateway.errors import BadRequest, GatewayError, LoopDetected, NoRoute, VersionNotSupported
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
from gateway.server.connection import ClientConnection
from gateway.server.delivery import Aborted, Delivery
from gateway.server.live import LiveAnswers
from gateway.server.ready import Ready
from gateway.server.replay import until_up_to_date
from gateway.server.upload import Upload
from gateway.tape.stream import StreamKey
from gateway.tracing import current
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.front")

_METHODS = {"HEAD": Mode.HEAD, "PUT": Mode.CREATE, "POST": Mode.APPEND, "DELETE": Mode.DELETE}
_RESERVED = "/__ds"
"""Subscriptions live below this; they are nobody's stream."""


@dataclass(slots=True)
class Exchange:
    """One request on its way: what is known of it for the answer and for the record."""

    request: web.BaseRequest
    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    route: Route | None = None
    delivery: Delivery | None = None
    began: float = 0.0
    saved_bytes: int = 0
    """What coding spared the client of an answer that was sent whole."""
    is_replay: bool = False
    """Whether a live read is relayed for what comes before the tail, and for no longer."""
    is_parked: bool = False
    """Whether the answer has left the strict protocol, and is counted when it ends."""

    @property
    def route_name(self) -> str:
        """The route's name as the metrics have it."""
        return self.route.config.name if self.route is not None else NO_ROUTE


class Front:
    """Answers clients.  Owns nothing: the engine does."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        routes: Sequence[Route],
        recorder: Recorder,
        journal: Journal,
    ) -> None:
        self._node = config.server.node_name
        self._limits = config.limits
        self._engine = engine
        self._routes = sorted(routes, key=lambda route: route.precedence, reverse=True)
        self._recorder = recorder
        self._live = LiveAnswers(self._node, self._dress, engine.clock, engine.drain, journal)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        began = self._engine.clock.now()
        exchange = Exchange(request, began=began)
        try:
            return await self._answer(exchange)
        except Aborted as error:
            exchange.outcome = Outcome.ABORTED
            raise ConnectionError from error
        except (asyncio.CancelledError, ConnectionError):
            exchange.outcome = Outcome.ABORTED
            raise
        except Exception:
            exchange.outcome = Outcome.FAILED
            raise
        finally:
            if not exchange.is_parked:
                self._tell(exchange)

    def _tell(self, exchange: Exchange) -> None:
        """What became of the request, for those who count, log and trace."""
        mode, outcome, delivery, span = exchange.mode, exchange.outcome, exchange.delivery, current()
        route = exchange.route.config.name if exchange.route is not None else None
        first_byte_s, sent_bytes = None, 0
        if delivery is not None:
            sent_bytes = delivery.sent_bytes
            if delivery.first_byte_at is not None:
                first_byte_s = delivery.first_byte_at - exchange.began
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

    async def _answer(self, exchange: Exchange) -> web.StreamResponse:
        exchange.delivery = Delivery(
            exchange.request, self._recorder, self._limits.client_write_timeout_s, self._engine.clock.now
        )
        try:
            return await self._dispatch(exchange)
        except BadTarget as error:
            return await self._refuse(exchange, BadRequest(str(error)))
        except GatewayError as error:
            return await self._refuse(exchange, error)

    async def _refuse(self, exchange: Exchange, error: GatewayError) -> web.StreamResponse:
        """The one place where an error becomes a response: a status and one line."""
        answer = failure_answer(self._node, error)
        exchange.outcome, headers = answer.outcome, answer.headers
        self._finish(exchange, headers)
        assert exchange.delivery is not None
        if not exchange.request.content.is_eof():
            # What is left of the body is not worth reading: the connection goes with this answer.
            headers["Connection"] = "close"
        return await exchange.delivery.text(answer.status, headers, answer.body)

    def _finish(self, exchange: Exchange, headers: CIMultiDict[str]) -> None:
        self._dress(exchange.route, exchange.request.headers.get(hdrs.ORIGIN), headers)

    def _dress(self, route: Route | None, origin: str | None, headers: CIMultiDict[str]) -> None:
        """What every response carries."""
        config = route.config.cors if route is not None else None
        if config is not None:
            cors.apply(config, origin, headers)
        if hdrs.VIA not in headers:
            headers[hdrs.VIA] = f"1.1 {self._node}"
        headers.setdefault(hdrs.SERVER, self._node)

    async def _dispatch(self, exchange: Exchange) -> web.StreamResponse:
        request = exchange.request
        if request._message.version > HttpVersion11:
            # A response says the version that it is written in (RFC 9112 §2.5), aiohttp's that of the request.
            request._version = HttpVersion11
            raise VersionNotSupported
        target = parse_target(request._message.path)
        exchange.mode = _mode(request.method, target)
        route = exchange.route = route_for(self._routes, _host(request, target), target.path)
        if route is None:
            raise NoRoute
        if is_looping(request.headers, self._node):
            raise LoopDetected
        nodes = passed_nodes(request.headers)
        if (preflight := self._preflight(exchange, route)) is not None:
            return await preflight
        credentials = route.credentials(request.headers)
        key = route.key(target, credentials, nodes)
        name = route.config.name
        note_asked(
            exchange.mode,
            Place.of(name, target, key.partition),
            target.offset,
        )
        shares = route.config.cache and not (credentials and route.config.credentials == "bypass")
        is_read = request.method in ("GET", "HEAD") and not request.can_read_body and exchange.mode is not Mode.OTHER
        read: Read | None = None
        if shares and is_read and not route.relays(target.offset or ""):
            read = Read(
                route,
                key,
                route.source(target, credentials, nodes),
                _start(target, exchange.mode),
                target.cursor,
                _joined(request, hdrs.IF_NONE_MATCH),
                is_private=bool(credentials) and route.config.credentials != "shared",
                wish=negotiate(
                    _joined(request, hdrs.ACCEPT_ENCODING), _joined(request, hdrs.CACHE_CONTROL), route.codings
                ),
                is_live=exchange.mode in (Mode.LONGPOLL, Mode.SSE),
            )
            if (response := await self._shared(exchange, read)) is not None:
                return response
        return await self._pass(exchange, route, target, key, read, shares=shares)

    def _preflight(self, exchange: Exchange, route: Route) -> Awaitable[web.StreamResponse] | None:
        request = exchange.request
        origin = request.headers.get(hdrs.ORIGIN)
        wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
        if route.config.cors is None or not cors.is_preflight(request.method, origin, wanted):
            return None
        answer = cors.preflight_headers(
            route.config.cors, origin, wanted, request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
        )
        assert exchange.delivery is not None
        exchange.outcome = Outcome.HIT if answer is not None else Outcome.REFUSED
        headers = CIMultiDict(answer or {"Vary": "Origin"})
        headers["Cache-Status"] = cache_status(self._node, exchange.outcome)
        return exchange.delivery.text(204 if answer is not None else 403, headers, b"")

    # -- reads

    async def _shared(self, exchange: Exchange, read: Read) -> web.StreamResponse | None:
        """Answer as one of many; None where the request has to go to the origin by itself."""
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

    async def _read(self, exchange: Exchange, read: Read) -> web.StreamResponse:
        if exchange.mode is Mode.SSE:
            opened = await self._engine.open_sse(read)
            if isinstance(opened, Subscription):
                parked = self._live.subscribe(exchange.request, opened, exchange.route, exchange.began)
                exchange.is_parked = True
                return parked
            answer: Answer = opened
        elif exchange.mode is Mode.LONGPOLL:
            polled = await self._engine.long_poll(read)
            if isinstance(polled, Waiting):
                parked = self._live.wait(exchange.request, polled, exchange.route, exchange.began)
                exchange.is_parked = True
                return parked
            answer = polled
        else:
            answer = await self._engine.catch_up(read)
        return await self._deliver(exchange, read, answer)

    async def _deliver(self, exchange: Exchange, read: Read, answer: Answer) -> web.StreamResponse:
        assert exchange.delivery is not None
        exchange.outcome = answer.outcome
        self._finish(exchange, answer.headers)
        if answer.stream is not None and answer.shown is not None:
            self._teach(exchange, read, answer, answer.shown)
        try:
            response = await exchange.delivery.answer(answer)
        finally:
            answer.close()
        exchange.saved_bytes = answer.saved_bytes
        return response

    def _teach(self, exchange: Exchange, read: Read, answer: Answer, shown: Shown) -> None:
        """Let the door remember a plain hit, so that the next such request need not come here."""
        connection = exchange.request.protocol
        body = answer.parts.held(answer.is_json) if answer.parts is not None else [answer.body] if answer.body else []
        if body is None or not isinstance(connection, ClientConnection):
            return
        headers = answer.headers.copy()
        if answer.status == 200:
            headers["Content-Length"] = str(sum(map(len, body)))
        age = headers.get("Age")
        laid_at = self._engine.clock.now() - int(age) if age is not None else None
        connection.door.learn(
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
                    applied(headers.get(hdrs.CONTENT_ENCODING)),
                    sum(map(len, body)),
                    answer.saved_bytes,
                ),
            ),
            read.route.credential_names,
        )

    # -- everything else

    async def _pass(
        self, exchange: Exchange, route: Route, target: Target, key: StreamKey, read: Read | None, *, shares: bool
    ) -> web.StreamResponse:
        request, delivery = exchange.request, exchange.delivery
        assert delivery is not None
        # Before the client is told to go on: a body that is announced as too large need not be sent.
        upload = Upload(request, self._limits) if request.can_read_body else None
        expects = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        if expects and request.can_read_body and request.version != HttpVersion10:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # That was no part of the response: an error may still be answered properly.
            request.writer.output_size = 0
        headers = request_headers_for_origin(
            request.headers,
            node=self._node,
            client=request.remote,
            host=request.host,
            scheme=request.scheme,
            http_version=f"{request.version.major}.{request.version.minor}",
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
            upload.chunks() if upload is not None else None,
            Place.of(route.config.name, target, key.partition),
            lambda: upload is not None and upload.error is not None,
        )
        write_turns = self._engine.absences.write_turns
        try:
            reply = await self._send(passed)
        except GatewayError:
            if upload is not None and upload.error is not None:
                raise upload.error from None
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
            if (location := passed_on.get(hdrs.LOCATION)) is not None:
                passed_on[hdrs.LOCATION] = route.public_location(location, f"{request.scheme}://{request.host}")
            self._finish(exchange, passed_on)
            response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=passed_on)
            body = self._counted(exchange, reply)
            return await delivery.stream(response, until_up_to_date(body) if exchange.is_replay else body)

    async def _counted(self, exchange: Exchange, reply: Reply) -> AsyncIterator[bytes]:
        async for chunk in reply.chunks():
            self._recorder.upstream_bytes(
                len(chunk), exchange.mode, exchange.route.config.name if exchange.route else NO_ROUTE
            )
            note_fetched(len(chunk))
            yield chunk

    async def _send(self, passed: Passed) -> Reply:
        """Send a request to the origin; a client that leaves does not take a write back that may have happened, so
        what it changed is recorded all the same."""
        task = self._engine.tasks.start(self._relayed(passed), f"{passed.method} {passed.path}")
        try:
            reply: Reply | GatewayError = await asyncio.shield(task)
        except asyncio.CancelledError:
            if passed.mode in (Mode.CREATE, Mode.APPEND, Mode.DELETE):
                task.add_done_callback(_close_unwanted)
            else:
                task.cancel()
            raise
        if isinstance(reply, GatewayError):
            raise reply
        return reply

    async def _relayed(self, passed: Passed) -> Reply | GatewayError:
        """An origin's failure is this task's result: it is told to the client, and no reason for a line in the log."""
        try:
            return await self._engine.relay.send(passed)
        except GatewayError as error:
            return error


def _close_unwanted(task: asyncio.Task[Reply | GatewayError]) -> None:
    if not task.cancelled() and task.exception() is None and isinstance(reply := task.result(), Reply):
        reply.close()


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


def _host(request: web.BaseRequest, target: Target) -> str:
    """The host that is asked for, lower case, without a port (RFC 9112 §3.2)."""
    hosts = request.headers.getall(hdrs.HOST, [])
    if len(hosts) > 1 or (not hosts and request.version >= HttpVersion11):
        raise BadRequest("Exactly one Host header is needed")
    host = target.authority or (hosts[0].lower() if hosts else "")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _joined(request: web.BaseRequest, name: str) -> str | None:
    """All lines of a header as one, None where there is none (RFC 9110 §5.3)."""
    lines = request.headers.getall(name, None)
    return ", ".join(lines) if lines is not None else None


def _raw_query(request: web.BaseRequest) -> str:
    return request._message.path.partition("?")[2].partition("#")[0]
