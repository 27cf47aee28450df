"""The front: one handler for every request.  It reads what is asked, chooses the route, hands over to the engine and
has the answer delivered; it is the one place where errors become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from multidict import CIMultiDict

from gateway.config import GatewayConfig
from gateway.engine.answer import Answer, Shown
from gateway.engine.core import Engine, route_for
from gateway.engine.request import Read, Uncacheable
from gateway.engine.route import Route
from gateway.engine.tail import TOO_LARGE, Subscription
from gateway.engine.waiter import Waiting
from gateway.errors import BadRequest, GatewayError, LoopDetected, NoRoute, VersionNotSupported
from gateway.journal import Journal, Place, note_asked, note_repeated
from gateway.metrics_seam import Recorder
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.protocol.offsets import START, is_well_formed
from gateway.protocol.target import BadTarget, Target, parse_target
from gateway.server import cors
from gateway.server.clients import Work
from gateway.server.crowd import Rendering
from gateway.server.delivery import Aborted, Delivery
from gateway.server.errand import Asked, Errand, Teller
from gateway.server.facts import Facts
from gateway.server.joins import Join, Joins
from gateway.server.live import LiveAnswers
from gateway.server.ready import Ready
from gateway.server.relaying import Relays
from gateway.server.request import Answered, Channel, Request

_log = logging.getLogger("gateway.front")

_METHODS = {"HEAD": Mode.HEAD, "PUT": Mode.CREATE, "POST": Mode.APPEND, "DELETE": Mode.DELETE}
_RESERVED = "/__ds"
"""Subscriptions live below this; they are nobody's stream."""
_LIVE = frozenset({Mode.LONGPOLL, Mode.SSE})


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
        node, now = config.server.node_name, engine.clock.now
        self._node = node
        self._engine = engine
        self._routes = sorted(routes, key=lambda route: route.precedence, reverse=True)
        self._recorder = recorder
        self._joins = joins
        self._teller = teller = Teller(node, recorder, now)
        self._relays = Relays(teller, engine, journal, config.limits)
        self._live = LiveAnswers(Rendering(node, teller.dress, engine.clock, engine.drain, recorder), journal)

    async def __call__(self, request: Request) -> Answered | None:
        """Answer a request; None where the answer is live, and ends by itself."""
        errand = self._errand(request)
        over = errand.over = asyncio.get_running_loop().create_future()
        try:
            found = self._begin(errand)
            if found is not None and not isinstance(found, Answered):
                found = await self._finish(errand, found)
            if errand.is_relayed and (found := await over) is None:
                raise Aborted("connection dropped")
            return found
        except (asyncio.CancelledError, ConnectionError):
            errand.outcome = Outcome.ABORTED
            raise
        except Exception:
            errand.outcome = Outcome.FAILED
            raise
        finally:
            if not errand.is_live:
                self._teller.tell(errand)

    def begin(self, request: Request) -> Work | None:
        """Answer a request, as far as nothing has to be waited for: what is left to be done, which returns as
        `__call__` does; None where the answer is out, or is given by somebody else."""
        errand = self._errand(request)
        try:
            found = self._begin(errand)
        except Exception:
            errand.outcome = Outcome.FAILED
            self._teller.tell(errand)
            raise
        if found is None:
            return None
        if isinstance(found, Answered):
            self._teller.tell(errand)
            request.channel.answered(request)
            return None
        return self._rest(errand, found)

    async def _rest(self, errand: Errand, rest: Work) -> Answered | None:
        try:
            return await self._finish(errand, rest)
        except (asyncio.CancelledError, ConnectionError):
            errand.outcome = Outcome.ABORTED
            raise
        except Exception:
            errand.outcome = Outcome.FAILED
            raise
        finally:
            if not errand.is_live and not errand.is_relayed:
                self._teller.tell(errand)

    async def _finish(self, errand: Errand, rest: Work) -> Answered | None:
        try:
            return await rest
        except GatewayError as error:
            return self._teller.refuse(errand, error)

    def _errand(self, request: Request) -> Errand:
        now = self._engine.clock.now
        return Errand(request, Delivery(request, self._recorder, now), now())

    def _begin(self, errand: Errand) -> Answered | Work | None:
        """The answer, where it is out by now; what is left to be done; or None where it is given by somebody else."""
        try:
            asked = self._understand(errand)
            if (preflight := self._preflight(errand, asked.route)) is not None:
                return preflight
            note_asked(
                errand.mode,
                Place.of(asked.route.config.name, asked.target, asked.key.partition),
                asked.target.offset,
            )
            read = asked.read
            if read is not None:
                if errand.mode in _LIVE and self._lives_at_once(errand, read):
                    return None
                if errand.mode is not Mode.HEAD or self._engine.knows(read):
                    return self._shared(errand, asked, read)
            if not self._relays.is_ready(errand.request):
                return self._relays.until_begun(errand, asked)
            self._relays.begin(errand, asked)
            return None
        except BadTarget as error:
            return self._teller.refuse(errand, BadRequest(str(error)))
        except GatewayError as error:
            return self._teller.refuse(errand, error)

    def _understand(self, errand: Errand) -> Asked:
        """What the request asks for, of which route.  Raises BadTarget and GatewayError."""
        request = errand.request
        if request.version not in request.channel.versions:
            raise VersionNotSupported
        target = parse_target(request.target)
        mode = errand.mode = _mode(request.method, target)
        facts = self._facts(request)
        if facts.host_count > 1 or (not facts.host_count and request.version != "1.0"):
            raise BadRequest("Exactly one Host header is needed")
        route = errand.route = route_for(self._routes, _host(target.authority or facts.host.lower()), target.path)
        if route is None:
            raise NoRoute
        if facts.is_looping:
            raise LoopDetected
        shown = facts.shown(route)
        key = route.key(target, shown.partition)
        config = route.config
        shares = config.cache and not (shown.has_credentials and config.credentials == "bypass")
        is_read = request.method in ("GET", "HEAD") and request.body is None and mode is not Mode.OTHER
        read: Read | None = None
        if shares and is_read and not route.relays(target.offset or ""):
            read = Read(
                route,
                key,
                route.source(target, shown.headers),
                _start(target, mode),
                target.cursor,
                facts.if_none_match,
                is_private=shown.has_credentials and config.credentials != "shared",
                wish=shown.wish,
                is_live=mode in _LIVE,
            )
        return Asked(route, target, key, shares, facts, read)

    def _facts(self, request: Request) -> Facts:
        """What the request's header section says."""
        known = request.head.fields.facts
        facts = known.get(self)
        if facts is None:
            facts = known[self] = Facts(request.headers, self._node)
        return facts

    def _preflight(self, errand: Errand, route: Route) -> Answered | None:
        request = errand.request
        origin = request.headers.get("Origin")
        wanted = request.headers.get("Access-Control-Request-Method")
        if route.config.cors is None or not cors.is_preflight(request.method, origin, wanted):
            return None
        answer = cors.preflight_headers(
            route.config.cors, origin, wanted, request.headers.get("Access-Control-Request-Headers")
        )
        errand.outcome = Outcome.HIT if answer is not None else Outcome.REFUSED
        headers = CIMultiDict(answer or {"Vary": "Origin"})
        headers["Cache-Status"] = cache_status(self._node, errand.outcome)
        return errand.delivery.text(204 if answer is not None else 403, headers, b"")

    # -- reads

    async def _shared(self, errand: Errand, asked: Asked, read: Read) -> Answered | None:
        """Answer as one of many, or relay the request where it has to go to the origin by itself."""
        if errand.mode is Mode.HEAD:
            answer = await self._engine.head(read)
            if answer is not None:
                return await self._deliver(errand, read, answer)
        elif read.route.unshared.reason(read.key, read.shape) is None:
            try:
                return await self._read(errand, read)
            except Uncacheable as error:
                errand.is_replay = errand.mode is Mode.SSE and error.why is TOO_LARGE
        await self._relays.until_begun(errand, asked)
        return None

    async def _read(self, errand: Errand, read: Read) -> Answered | None:
        if errand.mode is Mode.SSE:
            opened = await self._engine.open_sse(read)
            if isinstance(opened, Subscription):
                self._subscribe(errand, opened)
                return None
            answer: Answer = opened
        elif errand.mode is Mode.LONGPOLL:
            polled = await self._engine.long_poll(read)
            if isinstance(polled, Waiting):
                self._wait(errand, polled)
                return None
            answer = polled
        else:
            answer = await self._engine.catch_up(read)
        return await self._deliver(errand, read, answer)

    def _subscribe(self, errand: Errand, place: Subscription) -> None:
        request = errand.request
        origin, is_chunked = request.headers.get("Origin"), request.version != "1.0"
        join = Join(place.read, Mode.SSE, origin)
        self._live.subscribe(
            request.channel, join, place, errand.began, keeps=request.keeps_alive, is_chunked=is_chunked
        )
        errand.is_live = True
        self._remember(request.channel, join)

    def _wait(self, errand: Errand, place: Waiting) -> None:
        request = errand.request
        origin = request.headers.get("Origin")
        crowd = self._live.wait(request.channel, origin, place, errand.began, keeps=request.keeps_alive)
        errand.is_live = True
        self._remember(request.channel, Join(place.read, Mode.LONGPOLL, origin, crowd))

    def _remember(self, channel: Channel, join: Join) -> None:
        if (spelling := channel.spelling) is not None:
            self._joins.remember(spelling, join)

    def join(self, channel: Channel, join: Join) -> bool:
        """Begin a live answer to a request that is known by its bytes, which are those of an HTTP/1.1 GET that keeps
        its connection; False, and nothing has happened, where it has to be answered like any other."""
        began = self._engine.clock.now()
        return (join.crowd is not None and join.crowd.join(channel, began)) or self._join(channel, join, began)

    def _lives_at_once(self, errand: Errand, read: Read) -> bool:
        """Whether a live answer has begun, because nothing had to be asked for it."""
        if errand.over is not None:
            # What is noted of it is noted one by one, by whoever waits.
            return False
        request = errand.request
        join = Join(read, errand.mode, request.headers.get("Origin"))
        keeps, is_chunked = request.keeps_alive, request.version != "1.0"
        if not self._join(request.channel, join, errand.began, keeps=keeps, is_chunked=is_chunked):
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

    async def _deliver(self, errand: Errand, read: Read, answer: Answer) -> Answered:
        errand.outcome = answer.outcome
        self._teller.finish(errand, answer.headers)
        if answer.stream is not None and answer.shown is not None:
            self._teach(errand, read, answer, answer.shown)
        try:
            answered = await errand.delivery.answer(answer)
        finally:
            answer.close()
        errand.saved_bytes = answer.saved_bytes
        return answered

    def _teach(self, errand: Errand, read: Read, answer: Answer, shown: Shown) -> None:
        """Have a plain hit remembered, so that the next such request need not come here."""
        body = answer.parts.held(answer.is_json) if answer.parts is not None else [answer.body] if answer.body else []
        if body is None:
            return
        headers = answer.headers.copy()
        if answer.status == 200:
            headers["Content-Length"] = str(sum(map(len, body)))
        age = headers.get("Age")
        laid_at = self._engine.clock.now() - int(age) if age is not None else None
        errand.request.channel.learn(
            Ready(
                shown,
                read.route.config.trust_s,
                answer.tail,
                errand.mode,
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


def _host(named: str) -> str:
    """The host that is asked for, without a port (RFC 9112 §3.2)."""
    if named.startswith("["):
        return named.partition("]")[0] + "]"
    return named.partition(":")[0]
