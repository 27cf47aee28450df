"""The phases of channels over both versions of HTTP: whatever happens in any order, only legal transitions are made."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, cast
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.limits import LimitsConfig
from gateway.http.request_parser import Fields, RequestHead
from gateway.limits.memory import NOTHING, Holding, SharedBytes
from gateway.protocol.mode import Mode
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.header_meanings import NO_SECTION, Presented, Section
from gateway.server.http2.connection import Http2Connection
from gateway.server.joins import Join
from gateway.server.phase import TRANSITIONS, Phase, PhasedChannel
from gateway.server.request import Answered, Channel, LiveAnswer, Request
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import NoMetrics
from tests.effort import examples
from tests.http.http2.peer import GET, NO_SETTINGS, POST, data, reset
from tests.http.http2.peer import request as http2_request
from tests.server.memory_transport import MemoryTransport
from tests.waiting import pass_turns

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WHOLE = b"GET /s HTTP/1.1\r\nHost: edge\r\n\r\n"
KNOWN = b"GET /known HTTP/1.1\r\nHost: edge\r\n\r\n"
JOIN = Join(cast(Any, None), Mode.LONGPOLL, None)
BODY = b"POST /s HTTP/1.1\r\nHost: edge\r\nContent-Length: 4\r\n\r\n"
HEAD = RequestHead("GET", "/s", "1.1", Fields(CIMultiDict(Host="edge"), True, 0))
WAYS = st.sampled_from(["at once", "in a task", "relayed", "waiting", "poll", "sse", "error"])
"""How a handler answers."""


class Answer:
    """The answer to one request: a handler's, or that of a `LiveAnswer`."""

    def __init__(self, machine: Phases, request: Request, way: str, known: bytes | None = None) -> None:
        """`known` are the request's bytes if it was not parsed."""
        self.machine, self.request, self.way, self.known = machine, request, way, known
        self.channel = request.channel
        self.done: asyncio.Future[str] | None = None
        """Resolved with the way in which a task goes on."""

    def begin(self) -> Coroutine[Any, Any, Answered | None] | None:
        """As a handler does."""
        match self.way:
            case "at once":
                self.write()
                return None
            case "error":
                raise ValueError("a fault of the handler")
            case "in a task":
                self.machine.open.append(self)
                return self._answer_later()
            case "poll":
                self.channel.park(self, keeps=True)
            case "sse":
                self.channel.follow(self, "default", 0.0, None, keeps=True, is_chunked=True)
                self.channel.write_head(b"HTTP/1.1 200 OK\r\n\r\n")
            case _:
                self.channel.hand_over(self)
        self.machine.open.append(self)
        return None

    def write(self) -> None:
        """Write a whole answer, as a handler or a relay does."""
        self.channel.respond(self.request, 200, CIMultiDict(), b"x")
        self.channel.response_written(self.request)

    async def _answer_later(self) -> Answered | None:
        self.done = asyncio.get_running_loop().create_future()
        try:
            self.way = await self.done
        finally:
            self.done = None
            self.machine.forget(self)
        if self.way == "in a task":
            self.channel.respond(self.request, 200, CIMultiDict(), b"x")
            return Answered(200, CIMultiDict())
        self.begin()
        return None

    def finish(self, way: str) -> None:
        """The event has come that the answer waits for; a handler that goes on answers in this way."""
        if self.done is not None:
            if not self.done.done():
                self.done.set_result(way)
            return
        if self.way == way == "poll":
            # Its group is divided.
            self.channel.park(self, keeps=True)
            return
        self.machine.forget(self)
        match self.way:
            case "relayed":
                self.write()
            case "waiting":
                self.channel.go_on(self.request, lambda request: Answer(self.machine, request, way).begin())
            case "poll" if way == "relayed":
                self.channel.begin_again(self.known, "4", self)
            case "poll":
                self.channel.write_response(b"HTTP/1.1 204 No Content\r\n\r\n", (), 0, SharedBytes(0))
                self.channel.release()
            case _:
                self.channel.over(CloseReason.CLOSED, in_order=True)

    # -- as a `LiveAnswer`

    def holdings(self) -> tuple[Holding, ...]:
        return NOTHING

    def pump(self) -> None:
        pass

    def client_left(self, channel: Channel) -> None:
        self.machine.forget(self)
        if self.way == "relayed":
            self.channel.response_written(self.request)
        elif self.way == "sse":
            self.channel.over(CloseReason.LEFT, in_order=False)

    def handed_over(self, channel: Channel) -> None:
        pass


class Phases(RuleBasedStateMachine):
    """One connection of a client; subclasses say how its requests are written."""

    seen: ClassVar[set[tuple[Phase, Phase]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Answer] = []
        self.illegal: list[str] = []
        self.way = "at once"
        self.loop = asyncio.new_event_loop()
        enter = PhasedChannel.enter_phase

        def checked(channel: PhasedChannel, phase: Phase, live: LiveAnswer | None = None) -> None:
            step = channel.phase, phase
            self.seen.add(step)
            if phase not in TRANSITIONS[channel.phase] or (live is not None) != (phase in {Phase.RELAYED, Phase.LIVE}):
                self.illegal.append(f"{step[0].name} -> {step[1].name} with {live}")
            enter(channel, phase, live)

        self._checked = patch.object(PhasedChannel, "enter_phase", checked)
        self._checked.start()
        self.do(self.connect)

    def teardown(self) -> None:
        self.do(lambda: self.transport.close())
        for answer in tuple(self.open):
            self.do(partial(answer.finish, "at once"))
        self.loop.run_until_complete(self.clients.abort())
        self._checked.stop()
        self.loop.close()

    def do(self, event: Callable[[], object]) -> None:
        """The event happens in a turn of the loop, and what follows from it in the next turns."""

        async def happen() -> None:
            event()
            await pass_turns(3)

        self.loop.run_until_complete(happen())

    def forget(self, answer: Answer) -> None:
        if answer in self.open:
            self.open.remove(answer)

    def handle(self, request: Request) -> Coroutine[Any, Any, Answered | None] | None:
        return Answer(self, request, self.way).begin()

    def connect(self) -> None:
        """A client has connected."""
        self.clients = Clients(self.handle, LimitsConfig(), None, ManualClock(), NoMetrics())
        self.clients.find = lambda received, beginning: (JOIN, NO_SECTION) if received == KNOWN else None
        self.clients.join = self.begin_join
        self.connection = self.accept()
        self.transport = MemoryTransport(self.connection)
        self.connection.connection_made(self.transport)

    def begin_join(self, channel: Channel, join: Join, section: Section, presented: Presented | None) -> bool:
        Answer(self, Request(channel, HEAD, None), "poll", KNOWN).begin()
        return True

    @abstractmethod
    def accept(self) -> Connection | Http2Connection:
        """Return the server's side of a new connection."""

    def receive(self, received: bytes) -> None:
        if not self.transport.is_closing():
            self.connection.data_received(received)

    @invariant()
    def every_transition_is_legal(self) -> None:
        assert self.illegal == []

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 9), way=WAYS)
    def finish(self, number: int, way: str) -> None:
        answer = self.open[number % len(self.open)]
        self.do(lambda: answer.finish(way))

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        if not self.transport.is_closing():
            self.do(self.connection.pause_writing if is_full else self.connection.resume_writing)

    @rule(event=st.sampled_from(["leave", "half-close", "drain", "close if idle", "shed"]), again=st.integers(0, 4))
    def end(self, event: str, again: int) -> None:
        if again:
            # Seldom, so that there is much before the end.
            return
        match event:
            case "leave":
                self.do(self.transport.close)
            case "half-close" if not self.transport.is_closing():
                self.do(self.half_close)
            case "drain":
                self.do(self.clients.begin_drain)
            case "close if idle":
                self.do(self.connection.close_if_idle)
            case _:
                self.do(self.connection.shed)

    def half_close(self) -> None:
        if not self.connection.eof_received():
            self.transport.close()


class Http1Phases(Phases):
    seen: ClassVar[set[tuple[Phase, Phase]]] = set()

    def accept(self) -> Connection:
        return Connection(self.clients)

    @rule(way=WAYS, count=st.integers(1, 3))
    def ask(self, way: str, count: int) -> None:
        self.way = way
        self.do(lambda: self.receive(WHOLE * count))

    @rule(way=WAYS, part=st.sampled_from([BODY, b"ab", WHOLE[:9], WHOLE[9:], b"\0\r\n\r\n"]))
    def send_part(self, way: str, part: bytes) -> None:
        self.way = way
        self.do(lambda: self.receive(part))

    @rule()
    def join(self) -> None:
        """A live request that is known by its bytes."""
        self.do(lambda: self.receive(KNOWN))


class Http2Phases(Phases):
    seen: ClassVar[set[tuple[Phase, Phase]]] = set()
    latest = -1

    def accept(self) -> Http2Connection:
        return Http2Connection(self.clients)

    def connect(self) -> None:
        super().connect()
        self.receive(PREFACE + NO_SETTINGS)

    @rule(way=WAYS, has_body=st.booleans())
    def ask(self, way: str, has_body: bool) -> None:
        self.way = way
        self.latest += 2
        self.do(lambda: self.receive(http2_request(self.latest, POST if has_body else GET, ends=not has_body)))

    @precondition(lambda self: self.latest > 0)
    @rule(number=st.integers(0, 3), kind=st.sampled_from(["reset", "body", "end"]))
    def send_part(self, number: int, kind: str) -> None:
        stream = max(1, self.latest - 2 * number)
        part = reset(stream) if kind == "reset" else data(stream, b"ab", ends=kind == "end")
        self.do(lambda: self.receive(part))


CHECKED = settings(max_examples=examples(30, 1_000), stateful_step_count=25, deadline=None, derandomize=True)


def test_http_1_channels_make_only_legal_transitions() -> None:
    run_state_machine_as_test(Http1Phases, settings=CHECKED)


def test_every_transition_of_the_table_is_made() -> None:
    machine = Http1Phases()
    for ways in (["at once"], ["in a task", "poll", "poll", "relayed"], ["waiting", "sse", ""], ["relayed", ""]):
        machine.ask(ways[0], 1)
        for way in ways[1:]:
            machine.finish(0, way)
    machine.join()
    machine.finish(0, "relayed")
    machine.finish(0, "")
    machine.teardown()
    for way in ("relayed", "sse"):
        machine = Http1Phases()
        machine.ask(way, 1)
        machine.end("leave", 0)
        machine.teardown()
    machine = Http1Phases()
    machine.send_part("at once", BODY)
    machine.teardown()
    assert machine.illegal == []
    assert machine.seen == {(one, other) for one, others in TRANSITIONS.items() for other in others}


def test_http_2_channels_make_only_legal_transitions() -> None:
    run_state_machine_as_test(Http2Phases, settings=CHECKED)
    assert not any(Phase.LINGERING in step for step in Http2Phases.seen)
