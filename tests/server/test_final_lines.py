"""The line that each request and each live read leaves in the access log at its end, with a log in memory."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.route import Route
from gateway.http.request_parser import Fields, RequestHead
from gateway.ops.access_log.live_reads import JoinedRead, LiveRead
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.context import RequestContext, ResponseRecorder, Stage
from gateway.server.delivery import Delivery
from gateway.server.header_meanings import Section
from gateway.server.poll_group import PollGroup, Rendering
from gateway.server.request import Answered, Request
from gateway.server.request_records import Observers
from gateway.telemetry.access_record import CloseReason, CommonFacts, Record
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.tracing import NO_TRACER

LEFT = CloseReason.LEFT


class Log:
    """Keeps each line; where a test asks for no more, a line is its client, outcome and reason."""

    is_kept = True

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.lines: list[tuple[str | None, Outcome, CloseReason | None]] = []

    def record(self, record: Record) -> None:
        self.records.append(record)

    def record_of(self, record: Record, began: float, client: str | None, section: Section) -> None:
        self.lines.append((client, record.outcome, record.close_reason))

    def note(self, record: Record, began: float) -> None:
        self.lines.append((record.client, record.outcome, record.close_reason))

    def note_join(self, line: Any, began: float, client: Any, first_byte_s: float, subscribers: int) -> None:
        self.lines.append((client[0], line.record.outcome, line.record.close_reason))

    def unclaimed(self, place: object, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        pass

    def watch(self, began: float, write: object) -> None:
        return None


class MemoryChannel:
    """A client's channel; counts how often it was freed."""

    client, proxies, use, scheme = "192.0.2.1", None, None, "http"
    cut_reason: CloseReason | None = None

    def __init__(self) -> None:
        self.freed = 0

    def respond(self, *answer: object) -> None:
        pass

    def park(self, live: object, *, keeps: bool) -> None:
        pass

    def response_written(self, request: Request) -> None:
        self.freed += 1

    def abort(self) -> None:
        pass

    def release(self) -> None:
        self.freed += 1


class Server:
    """The recorder of one server's requests, and its log."""

    def __init__(self) -> None:
        self.clock, self.log, metrics = ManualClock(), Log(), NoMetrics()
        observers = Observers(cast(Any, self.log), NO_TRACER, self.clock)
        charging = SimpleNamespace(charge=lambda *_: None)
        self.recorder = ResponseRecorder("edge", metrics, self.clock.now, cast(Any, charging), observers)
        self.observers, self.channel = observers, MemoryChannel()

    def begin(self, method: str) -> RequestContext:
        """A request has been read."""
        head = RequestHead(method, "/s", "1.1", Fields(CIMultiDict(Host="edge"), True, 0))
        request = Request(cast(Any, self.channel), head, None)
        delivery = Delivery(request, NoMetrics(), self.clock.now)
        return RequestContext(request, delivery, self.clock.now(), self.observers.request_arrived(request))


@pytest.mark.parametrize("stage", [Stage.HANDLED, Stage.RELAYED])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_request_has_one_line_whether_its_answer_is_whole_or_cut_off(stage: Stage, is_whole: bool) -> None:
    server = Server()
    context = server.begin("GET")
    context.stage, context.outcome = stage, Outcome.PASS if is_whole else Outcome.ABORTED
    answered = Answered(200, CIMultiDict()) if is_whole else None
    server.recorder.record_end(context, answered)
    server.recorder.record_end(context, answered)
    assert [(one.status, one.outcome) for one in server.log.records] == [(200 if is_whole else 0, context.outcome)]
    # What the handler has cut off frees no channel: its connection is dropped.
    assert server.channel.freed == (is_whole or stage is Stage.RELAYED)


def test_a_request_that_is_answered_live_has_its_line_at_the_end_of_the_live_read() -> None:
    server = Server()
    context = server.begin("GET")
    context.stage = Stage.LIVE
    server.recorder.record_end(context, None)
    assert server.log.records == []


@pytest.mark.parametrize(
    ("method", "status", "counted"), [("GET", 200, 5), ("GET", 404, 5), ("HEAD", 404, 0), ("GET", 304, 0)]
)
def test_only_body_bytes_that_are_sent_are_counted(method: str, status: int, counted: int) -> None:
    server = Server()
    context = server.begin(method)
    server.recorder.record_end(context, context.delivery.text(status, CIMultiDict(), b"12345"))
    assert [one.sent_bytes for one in server.log.records] == [counted]


@pytest.mark.parametrize("reason", CloseReason)
def test_a_live_read_has_one_final_line_whatever_ends_it(reason: CloseReason) -> None:
    log = Log()
    read = LiveRead(log, Record(client="192.0.2.1"), 0.0, lambda record: None)
    read.record_end(Outcome.FOLLOWED, reason)
    read.record_end(Outcome.FOLLOWED, reason)
    assert log.lines == [("192.0.2.1", Outcome.FOLLOWED, reason)]


@pytest.mark.parametrize("reason", CloseReason)
def test_a_live_read_that_joined_others_has_one_final_line_whatever_ends_it(reason: CloseReason) -> None:
    log, counted = Log(), SimpleNamespace(live_counts=lambda: (0.0, "4", 2, 1))
    read = JoinedRead(log, CommonFacts(Record()), 0.0, counted, ("192.0.2.1", Section(b"")))
    read.record_end(Outcome.FOLLOWED, reason)
    read.record_end(Outcome.FOLLOWED, reason)
    assert log.lines == [("192.0.2.1", Outcome.FOLLOWED, reason)]


class Waiter:
    """The waiter of a group, while all of its clients wait."""

    def join(self, now: float) -> bool:
        return True

    def leave_one(self) -> None:
        pass


def make_group(log: Log) -> PollGroup:
    clock = ManualClock()
    drain = SimpleNamespace(is_set=False)
    rendering = Rendering("edge", lambda *_: None, clock, cast(Any, drain), NoMetrics(), cast(Any, log))
    route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", clock)
    topic = SimpleNamespace(readers_now=set(), extra_clients=0)
    return PollGroup(rendering, route, None, cast(Any, topic), Record(mode=Mode.LONGPOLL), keeps=True)


def test_a_long_poll_that_leaves_its_group_has_a_line_of_its_own_client() -> None:
    log = Log()
    group = make_group(log)
    channels = [MemoryChannel() for _ in range(3)]
    first, *others = [(cast(Any, one), (0.0, f"192.0.2.{at}", Section(b""), None)) for at, one in enumerate(channels)]
    group.add_first(cast(Any, Waiter()), *first, None)
    for channel, client in others:
        assert group.join(channel, client)
    channels[2].cut_reason = CloseReason.SLOW
    for at in (1, 2):
        group.client_left(cast(Any, channels[at]))
    assert log.lines == [
        ("192.0.2.1", Outcome.ABORTED, LEFT),
        ("192.0.2.2", Outcome.ABORTED, CloseReason.SLOW),
    ]


def test_a_group_keeps_no_clients_that_it_no_longer_answers() -> None:
    group, channels = make_group(Log()), [MemoryChannel() for _ in range(3)]
    for at, channel in enumerate(channels):
        client = (0.0, "192.0.2.1", Section(b""), b"GET /s?signature=%d HTTP/1.1" % at)
        if at == 0:
            group.add_first(cast(Any, Waiter()), cast(Any, channel), client, None)
        else:
            assert group.join(cast(Any, channel), client)
    seen = [weakref.ref(channel) for channel in channels]
    del channels, channel
    for alone in group.split():
        alone.has_gone()
    del alone
    gc.collect()
    assert [one() is not None for one in seen] == [True, False, False]
    group.has_gone()
    gc.collect()
    assert seen[0]() is None
