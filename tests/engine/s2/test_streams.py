"""How the session of a followed stream begins at the origin, and how it goes on after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Self, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.aio.signal import Signal
from gateway.aio.tasks import Tasks
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.engine.s2.fetch import S2Origin, S2Source
from gateway.engine.s2.streams import S2Streams
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested, UpstreamTimeout, UpstreamUnreachable
from gateway.limits.accounts import Accounts, client_nets
from gateway.limits.queues import Askers
from gateway.live.followed_streams import LiveTable
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.worker_headers import HopSaid
from gateway.s2 import protobuf
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.session import encode_message
from gateway.tape.eviction import POLICIES
from gateway.tape.store import TapeStore
from gateway.telemetry.access_record import NO_ACCESS_LOG, Record, RecordedStream, record_now
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.surroundings import Surroundings
from gateway.telemetry.tracing import NO_REQUEST, RequestSpan, request_now
from gateway.upstream.origin_call import Bounds
from tests.memory_upstream import MemoryUpstream
from tests.waiting import eventually, pass_turns

KEY = StreamKey(Group("http://o", "/v1/streams/s"), "", Partition("r"))


class Failures(NoMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    def upstream_failure(self, mode: Mode, fault: str, route: str = "") -> None:
        self.failed.append(fault)


class Session:
    """A session that names the tail, and then sends nothing more.  `said` is what another worker says of it."""

    def __init__(self, said: HopSaid | None) -> None:
        self.said = said

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def chunks(self) -> AsyncIterator[bytes]:
        yield encode_message(protobuf.encode_read_batch(ReadBatch((), StreamPosition(0, 0))))
        await asyncio.get_running_loop().create_future()


class Origin:
    """Sessions that wait, each until the test fails it or lets it begin."""

    def __init__(self) -> None:
        self.sessions: list[asyncio.Future[Session]] = []
        self.contexts: list[tuple[object, object]] = []

    def received(self, *_: object) -> None:
        pass

    async def session(self, source: S2Source, seq_num: int, client: str) -> Session:
        self.contexts.append((request_now.get(), record_now.get()))
        self.sessions.append(asyncio.get_running_loop().create_future())
        return await self.sessions[-1]


class Bench:
    """One stream with one reader, which is followed."""

    def __init__(self) -> None:
        self.clock, self.tasks, self.origin, self.metrics = ManualClock(), Tasks(), Origin(), Failures()
        store = TapeStore(1 << 20, POLICIES["s3-fifo"](), lambda: "i", NoMetrics())
        surroundings = Surroundings(self.clock, Random(0), self.tasks, self.metrics)
        self.table = LiveTable(store, surroundings, 10, Accounts(client_nets(32, 64), self.clock.now))
        self.streams = S2Streams(cast("S2Origin", self.origin), store, surroundings, self.table)
        self.stream = self.streams.open(KEY, cast("S2Source", SimpleNamespace(route="r")))

    def join(self) -> None:
        self.streams.attach(self.stream, StreamPosition(0, 0), "net")

    async def fail(self, error: GatewayError) -> None:
        """Fail the session that waits, once there is one."""
        await eventually(lambda: bool(self.origin.sessions) and not self.origin.sessions[-1].done(), look_s=0)
        self.origin.sessions[-1].set_exception(error)
        await pass_turns()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    one = Bench()
    yield one
    one.table.close()
    await one.tasks.close()


async def test_a_session_at_the_origin_is_no_part_of_the_request_that_began_it(bench: Bench) -> None:
    tokens = request_now.set(cast("RequestSpan", object())), record_now.set(cast("Record", object()))
    bench.join()
    request_now.reset(tokens[0])
    record_now.reset(tokens[1])
    await pass_turns()
    assert bench.origin.contexts == [(NO_REQUEST, None)]


@pytest.mark.parametrize(("said", "tail"), [(None, StreamPosition(0, 0)), (HopSaid("0.1.9", 1.0), None)])
async def test_the_sessions_of_another_worker_do_not_vouch_for_the_tail(
    bench: Bench, said: HopSaid | None, tail: StreamPosition | None
) -> None:
    bench.join()
    await pass_turns()
    bench.origin.sessions[0].set_result(Session(said))
    await pass_turns()
    assert bench.stream.topic is not None
    assert bench.stream.topic.tail == StreamPosition(0, 0)
    assert bench.stream.trusted_tail(60.0) == tail


async def test_a_stream_with_another_owner_is_followed_anew_and_keeps_its_readers(bench: Bench) -> None:
    bench.join()
    await pass_turns()
    topic = bench.stream.topic
    bench.streams.restart(bench.stream.stream)
    await pass_turns()
    assert (len(bench.origin.sessions), bench.origin.sessions[0].cancelled()) == (2, True)
    assert topic is not None
    assert (bench.stream.topic, topic.error, bench.table.followed) == (topic, None, 1)


async def test_a_session_goes_on_when_a_probe_has_found_its_origin_back(bench: Bench) -> None:
    """It does not wait for the end of its pause, and the failures before count no more."""
    recovered = Signal()
    bench.join()
    await bench.fail(UpstreamTimeout())
    bench.clock.advance(2)
    await bench.fail(UpstreamTimeout())
    bench.clock.advance(2)
    await bench.fail(CircuitOpen(1.0, recovered))
    assert len(recovered) == 1
    recovered.fire()
    await pass_turns()
    bench.clock.advance(0.5)
    await pass_turns()
    assert len(bench.origin.sessions) == 4
    for _ in range(4):
        await bench.fail(UpstreamTimeout())
        bench.clock.advance(3)
    await eventually(lambda: len(bench.origin.sessions) == 8, look_s=0)


async def test_only_requests_that_were_sent_count_as_failures_of_the_origin(bench: Bench) -> None:
    bench.join()
    await bench.fail(CircuitOpen(1.0))
    bench.clock.advance(2)
    await bench.fail(UpstreamTimeout())
    assert bench.metrics.failed == ["UpstreamTimeout"]
    upstream = MemoryUpstream()
    origin = S2Origin(upstream, bench.clock, bench.metrics, NO_ACCESS_LOG, cast("NegativeCache", None))
    source = S2Source(
        cast("Route", SimpleNamespace(config=SimpleNamespace(name="r"))),
        cast("RecordedStream", None),
        "http://o",
        CIMultiDict(),
        Bounds(),
        Bounds(),
    )
    for number, error in enumerate((CircuitOpen(1.0), UpstreamCongested(), UpstreamUnreachable()), 1):
        asking = asyncio.ensure_future(origin.tail(source, Askers("net")))
        await eventually(lambda number=number: len(upstream.asked) == number, look_s=0)
        upstream.asked[-1].fail(error)
        with pytest.raises(type(error)):
            await asking
    assert bench.metrics.failed == ["UpstreamTimeout", "UpstreamUnreachable"]
