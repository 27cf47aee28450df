"""Answers the shared requests of the other workers, at this worker's own Unix socket (`gateway.engine.owner_upstream`).

The asking worker has accepted the client.  It applies limits and authorisation, and records the request.  It sends the
read to this worker, the owner of the stream, and describes the read in a header field
(`gateway.protocol.worker_headers`).  The owner's engine answers the read.  The answer looks like the origin's own, with
the additional field `HOP_RECORD`.  If the asking worker passes the answer on unchanged, the answer looks like any
answer to a client.

The owner relays nothing for other workers.  If the origin's reply is for one reader alone, the owner's answer states
the reason, and the asking worker relays its clients' requests itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from multidict import CIMultiDict

from gateway.config.limits import LimitsConfig
from gateway.engine.answer import Answer
from gateway.engine.cold_reads import FirstRead
from gateway.engine.core import Engine
from gateway.engine.long_poll_waiter import WaitingPoll
from gateway.engine.read import Read, Uncacheable
from gateway.engine.route import Route
from gateway.engine.s2.request import S2Request
from gateway.engine.s2.unary_read import S2RefusedToAnother
from gateway.engine.sse import Subscription
from gateway.errors import BadRequest, Fault, GatewayError, NoRoute
from gateway.http.outgoing import RenderedHeaders
from gateway.http.request_parser import RequestParser
from gateway.limits.accounts import Accounts, client_nets
from gateway.limits.rate_limits import RateLimits
from gateway.live.frames import LiveReader
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import PLAIN
from gateway.protocol.freshness_headers import requested_max_age
from gateway.protocol.header_forwarding import joined
from gateway.protocol.mode import Mode
from gateway.protocol.names import START
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.target import BadTarget, Target, parse_target
from gateway.protocol.worker_headers import HOP, HOP_RECORD, Alone, HopAsk, HopSaid
from gateway.server.authorising import Authoriser
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.delivery import Delivery
from gateway.server.handler import RequestHandler
from gateway.server.handling import DeferredRequest, WaitingRead
from gateway.server.header_meanings import Sections
from gateway.server.hop_s2 import HopS2Answers, s2_read
from gateway.server.hop_statements import OWN, HopStatements
from gateway.server.interpreting import LIVE, HeaderFacts, RequestMeaning, mode_of
from gateway.server.joins import Joins
from gateway.server.live import LiveAnswers, LiveRequest
from gateway.server.live_requests import LiveRequests
from gateway.server.poll_group import PollGroup, Rendering
from gateway.server.request import Answered, Request, Work
from gateway.server.request_admission import Admission
from gateway.server.request_records import Observers
from gateway.server.sockets import serve_on
from gateway.telemetry.access_record import NO_ACCESS_LOG
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.tracing import NO_TRACER
from gateway.upstream.flight import METADATA
from gateway.upstream.origin_call import Handed

_PASSED: Final = ("Accept-Encoding", "Via", "CDN-Loop")
"""The headers of the asking worker's request that the origin gets, in addition to the credentials."""
_MANY: Final = 1 << 20
_BACKLOG: Final = 1_024

C = TypeVar("C", bound=Clients)

HEAD_TIMES: Final = 4
"""The bounds on heads from other workers, as a multiple of the bounds on clients' heads.  The field `HOP` repeats the
query, and quoting turns each of its bytes into three."""

# Enum members are slow to reach in Python 3.11.
_CATCHUP, _HEAD = Mode.CATCHUP, Mode.HEAD


class HopSection(NamedTuple):
    """The meaning of a header section, which many requests of another worker have in common."""

    asked: HopAsk
    route: Route
    headers: RenderedHeaders
    """The headers for the origin."""
    max_age_s: float | None


class HopInterpreter:
    """Converts the requests of other workers into reads."""

    def __init__(self, routes: Callable[[str], Route | None], handed: Handed) -> None:
        """`handed` states whether the requests come from workers or from members."""
        self._routes = routes
        self._handed = handed

    def interpret(self, request: Request) -> tuple[HopSection, Target]:
        """Return the meaning of the request's header section, and the target.  Raises BadRequest or NoRoute."""
        known = request.head.fields.facts
        section: HopSection | None = known.get(self)
        try:
            asked = HopAsk.parse(request.headers.get(HOP, "")) if section is None else section.asked
            target = parse_target(request.target)
        except (ValueError, BadTarget) as error:
            raise BadRequest(str(error)) from None
        route = self._routes(asked.route)
        if route is None:
            raise NoRoute
        if section is None or section.route is not route:
            max_age_s = requested_max_age(joined(request.headers, "Cache-Control"))
            sent = RenderedHeaders.of(self.sent(route, request))
            section = known[self] = HopSection(asked, route, sent, max_age_s)
        return section, target

    @staticmethod
    def sent(route: Route, request: Request) -> CIMultiDict[str]:
        """Return the headers of the other worker's request that the origin gets."""
        return CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() in route.credential_names or name in _PASSED
        )

    def read(self, request: Request, section: HopSection, target: Target) -> tuple[Mode, Read]:
        """Return the mode and the read of a Durable Stream.  Raises BadRequest."""
        asked, route, headers, max_age_s = section
        mode = mode_of(request.method, target)
        if mode not in (Mode.CATCHUP, Mode.HEAD, *LIVE):
            raise BadRequest("Workers ask each other for streams only")
        group = Group(route.authority, target.path)
        key = StreamKey(group, asked.query, route.public._replace(readers=asked.readers))
        is_live = mode in LIVE
        source = route.source(target, headers, "" if is_live else asked.client, group)
        read = Read(
            route,
            key,
            source._replace(handed=self._handed),
            START if mode is Mode.HEAD or target.offset is None else target.offset,
            target.cursor,
            None,
            False,
            asked.accepted or PLAIN,
            is_live,
            None,
            None if is_live else max_age_s,
            handed=self._handed,
        )
        return mode, read


class _HopRecorder(ResponseRecorder):
    """Adds to answers only the fields that other workers need."""

    def __init__(
        self, node: str, engine: Engine, admission: Admission, observers: Observers, statements: HopStatements
    ) -> None:
        super().__init__(node, NoMetrics(), engine.clock.now, admission, observers)
        self._statements = statements

    def refuse(self, context: RequestContext, error: GatewayError) -> Answered:
        return self.refuse_read(context, None, error)

    def refuse_read(self, context: RequestContext, key: StreamKey | None, error: GatewayError) -> Answered:
        """Report that this worker has failed to answer a read.  `key` is the key of the stream; None if it is not
        known."""
        context.outcome = Outcome.FAILED
        is_of_origin = key is not None and error.fault is Fault.UPSTREAM
        said = self._statements.failed(key) if key is not None and is_of_origin else self._statements.said(None)
        headers = CIMultiDict({HOP_RECORD: said._replace(failure=type(error).__name__).rendered()})
        return context.delivery.text(error.status, headers, b"")

    def finish(self, context: RequestContext, headers: CIMultiDict[str]) -> None:
        if HOP_RECORD not in headers:
            headers[HOP_RECORD] = self._statements.said(None).rendered()

    def dress(
        self, route: Route | None, origin: str | None, headers: CIMultiDict[str], *, is_public: bool = False
    ) -> None:
        headers[HOP_RECORD] = self._statements.said(None).rendered()


class HopLiveAnswers(LiveAnswers):
    """Begins the live answers to other workers."""

    def __init__(self, node: str, engine: Engine, statements: HopStatements) -> None:
        self._statements = statements
        self._engine = engine
        super().__init__(self._rendering_of(node, None), NO_ACCESS_LOG)
        self._node = node

    def _rendering_of(
        self, node: str, begun: Subscription | WaitingPoll | None, asked_at: float | None = None
    ) -> Rendering:
        """`asked_at` is the time at which the request arrived; None if it is unknown."""
        engine = self._engine
        dress = partial(self._dress_live, begun, asked_at)
        return Rendering(node, dress, engine.clock, engine.drain, NoMetrics(), NO_ACCESS_LOG)

    def _dress_live(
        self,
        begun: Subscription | WaitingPoll | None,
        asked_at: float | None,
        route: Route | None,
        origin: str | None,
        headers: CIMultiDict[str],
    ) -> None:
        for name in OWN:
            headers.popall(name, None)
        headers["Cache-Control"] = "no-cache"
        said = (
            self._statements.said(None)
            if begun is None
            else self._statements.live(begun.topic, begun.read.start, asked_at, is_unconfirmed=begun.is_unconfirmed)
        )
        headers[HOP_RECORD] = said.rendered()

    def subscribe(self, request: LiveRequest, subscription: Subscription) -> None:
        self._refuse_lost(subscription)
        self._rendering = self._rendering_of(self._node, subscription, request.began)
        before = set(subscription.topic.readers_now)
        super().subscribe(request, subscription)
        self._hand(request, subscription.topic, before)

    def wait(self, request: LiveRequest, waiting: WaitingPoll) -> PollGroup:
        self._refuse_lost(waiting)
        self._rendering = self._rendering_of(self._node, waiting, request.began)
        before = set(waiting.topic.readers_now)
        group = super().wait(request, waiting)
        self._hand(request, waiting.topic, before)
        return group

    @staticmethod
    def _refuse_lost(begun: Subscription | WaitingPoll) -> None:
        """Raise the error of the stream's follower if the stream cannot be followed now.

        Without this check, `_hand` would cut the answer at once, perhaps before its head.  The other worker would then
        conclude that this worker has died.
        """
        if (failure := begun.topic.failure) is not None:
            begun.close()
            raise failure.anew()

    @staticmethod
    def _hand(request: LiveRequest, topic: Topic, before: set[LiveReader]) -> None:
        """Cut the connection of the new readers as soon as the stream is no longer followed."""
        for reader in topic.readers_now - before:
            topic.hand(reader, request.channel.abort)


class _HopLiveRequests(LiveRequests):
    """Begins the answers to live requests of other workers, each separately."""

    def _remember(self, alias: bytes | None, request: LiveRequest) -> None:
        """Do nothing: workers do not repeat live requests."""


class HopHandler(RequestHandler):
    """Answers the requests of other workers."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        routes: Callable[[str], Route | None],
        admission: Admission,
        authoriser: Authoriser,
        owner: str,
        *,
        is_relative: bool = False,
    ) -> None:
        """`is_relative` is as in `HopStatements`.  It also means that the requests come from other members, not from
        other workers."""
        # Do not call `super().__init__`, because this handler relays, remembers and records nothing.
        self._node = node
        self._engine = engine
        self._others = engine.others
        self._now = engine.clock.now
        self._metrics = NoMetrics()
        self._observers = Observers(NO_ACCESS_LOG, NO_TRACER, engine.clock)
        self._statements = HopStatements(engine, owner, is_relative=is_relative)
        self._hop_interpreter = HopInterpreter(routes, Handed.BY_MEMBER if is_relative else Handed.BY_WORKER)
        self._facts = HeaderFacts(CIMultiDict(), node)
        self._recorder: _HopRecorder = _HopRecorder(node, engine, admission, self._observers, self._statements)
        live = HopLiveAnswers(node, engine, self._statements)
        joins = Joins(Sections([]))
        self._s2 = HopS2Answers(engine.s2, self._recorder, live, partial(self._statements.said, None))
        self.live_requests = _HopLiveRequests(engine, live, joins, self._observers, admission, authoriser)

    def handle(self, request: Request) -> Work | None:
        context = RequestContext(request, Delivery(request, self._metrics, self._now), self._now(), None)
        return self._recorded(context)

    def _begin(self, context: RequestContext, undecided: object = None) -> Answered | Work | None:
        request = context.request
        try:
            section, target = self._hop_interpreter.interpret(request)
            context.route = route = section.route
            if route.is_s2:
                return self._begin_s2(context, route, section.asked, target)
            context.mode, read = self._hop_interpreter.read(request, section, target)
            self._look(request, read.key.group)
            if (reason := read.route.unshared.reason(read.key, read.shape)) is not None or request.is_alone:
                return self._say_alone(context, Alone(reason or "not followed", reason is not None, False), read.key)
            if context.mode in LIVE and self.live_requests.begins_at_once(context, read):
                return None
            context.is_passed = section.asked.accepted is not None
            meaning = self._meaning(context.mode, read)
            if section.asked.facts_suffice and context.mode is _HEAD:
                return self._answer_facts(context, meaning, read)
            if context.mode is _CATCHUP and self._waits(context, meaning, read):
                return None
            return self._answer_shared(context, meaning, read)
        except GatewayError as error:
            return self._recorder.refuse(context, error)

    def _look(self, request: Request, group: Group) -> None:
        """Apply the writes of other processes to the streams of the path before the read begins."""
        if self._others is not None:
            self._others.look(group)

    def _begin_s2(self, context: RequestContext, route: Route, asked: HopAsk, target: Target) -> Answered | Work:
        headers = context.request.headers
        read, wanted = s2_read(route, asked, target, headers, self._hop_interpreter.sent(route, context.request))
        if self._others is not None:
            self._others.look_at_s2(read.key.group)
        if wanted is None:
            return self._s2_answer(context, self._s2.answer_probe(context, read))
        context.mode = Mode.CATCHUP
        answered = self._s2.answer_read(context, route, S2Request(read, wanted))
        return answered if isinstance(answered, Answered) else self._s2_answer(context, answered)

    async def _s2_answer(self, context: RequestContext, work: Work) -> Answered | None:
        try:
            return await work
        except S2RefusedToAnother:
            return self._say_alone(context, Alone("refused to another reader", False, True))

    def _resume(self, context: RequestContext, waiting: DeferredRequest) -> Answered | Work | None:
        assert isinstance(waiting, WaitingRead)
        return super()._resume(context, waiting)

    async def _answer_shared(
        self, context: RequestContext, meaning: RequestMeaning, read: Read, first: FirstRead | None = None
    ) -> Answered | None:
        engine = self._engine
        try:
            if context.mode is _HEAD:
                answer = await engine.head(read) or await engine.fetched_head(read)
            elif context.mode is _CATCHUP:
                answer = await engine.catch_up(read, first)
            elif (live := await self.live_requests.begin_answer(context, read)) is not None:
                answer = live
            else:
                return None
        except Uncacheable as error:
            why = error.why
            return self._say_alone(context, Alone(why.reason, why.is_lasting, why.is_personal), read.key)
        except GatewayError as error:
            return self._recorder.refuse_read(context, read.key, error)
        return await self._deliver(context, read, answer)

    async def _answer_facts(self, context: RequestContext, meaning: RequestMeaning, read: Read) -> Answered | None:
        """Answer a HEAD from memory if possible.  The asking worker does not need the present tail."""
        fetches, stream = self._engine.fetches, self._engine.store.find(read.key)
        for start in (METADATA, START):
            if stream is not None and self._statements.facts(read) is None:
                # Another read may be fetching the same metadata from the origin.
                await fetches.join_earlier(stream, start, read.route, read.source.client)
        if (said := self._statements.facts(read)) is None:
            return await self._answer_shared(context, meaning, read)
        return self._say(context, said)

    def _say_alone(self, context: RequestContext, alone: Alone, key: StreamKey | None = None) -> Answered:
        return self._say(context, self._statements.alone(alone, key))

    @staticmethod
    def _say(context: RequestContext, said: HopSaid) -> Answered:
        headers = CIMultiDict({HOP_RECORD: said.rendered(), "Cache-Control": "no-store"})
        return context.delivery.text(200, headers, b"")

    def _begin_delivery(self, context: RequestContext, read: Read, answer: Answer) -> Answered | Work:
        context.outcome = answer.outcome
        answered: Answered | None = None
        try:
            if context.is_passed:
                self._statements.add_to_passed(answer)
            else:
                self._statements.restate(read, answer, context.began)
            answered = context.delivery.whole_answer(answer)
        except BaseException:
            answer.close()
            raise
        if answered is None:
            return self._deliver_rest(context, answer)
        answer.close()
        return answered

    def _meaning(self, mode: Mode, read: Read) -> RequestMeaning:
        source = read.source
        return RequestMeaning(mode, read.route, source.target, read.key, True, self._facts, read, source.client)


def hop_clients(
    limits: LimitsConfig, engine: Engine, make_handler: Callable[[Admission], HopHandler], most: int, kind: type[C]
) -> C:
    """Make the registry of the connections of other processes.  It admits at most `most` connections, and all of them
    share one handler."""
    unlimited = limits.model_copy(
        update={"max_connections": most, "client_connections": most, "client_live_reads": _MANY}
    )
    clock, metrics = engine.clock, NoMetrics()
    accounts = Accounts(client_nets(limits.client_v4_bits, limits.client_v6_bits), clock.now)
    rates = RateLimits(accounts, ())
    admission = Admission(unlimited, accounts, rates, metrics, engine.surroundings.rng, clock.now)
    handler = make_handler(admission)
    clients = kind(handler.handle, unlimited, None, clock, metrics, accounts=accounts)
    clients.new_parser = partial(RequestParser, HEAD_TIMES)
    return clients


class HopServer:
    """The connections of other workers.  `close` ends them."""

    def __init__(
        self,
        node: str,
        limits: LimitsConfig,
        engine: Engine,
        routes: Callable[[str], Route | None],
        authoriser: Authoriser,
        owner: str,
        kind: type[HopHandler] = HopHandler,
    ) -> None:
        """`owner` is the name of this process.  `kind` is the class of the handler."""

        def make_handler(admission: Admission) -> HopHandler:
            return kind(node, engine, routes, admission, authoriser, owner)

        self.clients = hop_clients(limits, engine, make_handler, _MANY, Clients)
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<HopServer {self.clients!r}>"

    async def open(self, sock: socket.socket) -> None:
        """Accept the connections of other workers at a listening Unix socket."""
        self._server = await serve_on(sock.dup(), lambda: Connection(self.clients, None, is_local=True), _BACKLOG)

    async def close(self) -> None:
        """Stop accepting, and cut all connections."""
        if self._server is not None:
            self._server.close()
        await self.clients.abort()
