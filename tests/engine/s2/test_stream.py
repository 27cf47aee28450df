"""What a stream's readers ask the origin for, and what they share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.engine.route import Route
from gateway.engine.s2.fetch import S2Fetched, S2Origin, S2Source
from gateway.engine.s2.reads import start_read
from gateway.engine.s2.request import S2Read
from gateway.engine.s2.stream import VERIFIED_S, S2Shared, S2Stream
from gateway.errors import TailMovedBack
from gateway.limits.queues import Askers
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2.read_query import FromSeqNum, FromTimestamp, ReadQuery, Start
from gateway.s2.records import Record, StreamPosition
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits
from gateway.tape.store import TapeStore
from gateway.telemetry.access_record import RecordedStream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.origin_call import Bounds, Handed, Shared
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused
from tests.waiting import pass_turns

KEY = StreamKey(Group("http://o", "/v1/streams/s"), "", Partition("r"))
SOURCE = S2Source(cast(Route, None), cast(RecordedStream, None), "http://o/s", CIMultiDict(), Bounds(), Bounds())


class Origin:
    """A stream of ten records; each read waits at a gate of its own."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int | None, list[str]]] = []
        self.gates: list[asyncio.Future[None]] = []
        self.is_open = False
        self.end = 10
        self.refusal: S2Refused | None = None

    async def read(self, source: S2Source, start: Start, limits: Limits, askers: Askers) -> FoundRecords | S2Refused:
        assert isinstance(start, FromSeqNum)
        self.reads.append((start.seq_num, limits.count, list(askers.nets)))
        if not self.is_open:
            self.gates.append(asyncio.get_running_loop().create_future())
            await self.gates[-1]
        if self.refusal is not None:
            return self.refusal
        end = min(self.end, start.seq_num + (limits.count or 10))
        return FoundRecords(tuple(Record(number, number, (), b"x") for number in range(start.seq_num, end)))


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stream(origin: Origin, clock: ManualClock) -> S2Stream:
    store = TapeStore(1 << 20, POLICIES["s3-fifo"](), lambda: "i", NoMetrics())
    shared = S2Shared(cast("S2Origin", origin), store, clock, Tasks(), lambda call: None)
    record = store.open_as(RecordStream, KEY, clock.now())
    record.hold()
    return S2Stream(shared, record, cast("S2Source", CIMultiDict()))


def fetch(stream: S2Stream, start: int, count: int, client: str = "a") -> asyncio.Future[S2Fetched]:
    return asyncio.ensure_future(stream.fetch(FromSeqNum(start), Limits(count), client))


def numbers(fetched: S2Fetched) -> list[int]:
    assert isinstance(fetched.outcome, FoundRecords)
    return [record.seq_num for record in fetched.outcome.records]


async def test_readers_that_come_before_it_is_sent_widen_a_fetch(origin: Origin, stream: S2Stream) -> None:
    both = [fetch(stream, 0, 1, "a"), fetch(stream, 0, 5, "b")]
    await pass_turns()
    assert origin.reads == [(0, 5, ["a", "b"])]
    origin.gates[0].set_result(None)
    for fetched in await asyncio.gather(*both):
        assert (numbers(fetched), fetched.is_fresh, fetched.is_all) == ([0, 1, 2, 3, 4], True, True)


async def test_a_reader_that_comes_later_shares_records_and_not_the_end(origin: Origin, stream: S2Stream) -> None:
    first = fetch(stream, 0, 5)
    await pass_turns()
    later = [fetch(stream, 0, 5, "b"), fetch(stream, 4, 5, "c")]
    await pass_turns()
    assert len(origin.reads) == 1
    origin.gates[0].set_result(None)
    assert (await first).is_all
    for fetched in await asyncio.gather(*later):
        assert (fetched.is_fresh, fetched.is_all) == (False, False)


async def test_a_reader_beyond_what_a_fetch_may_bring_waits_for_none(origin: Origin, stream: S2Stream) -> None:
    reads = [fetch(stream, 2, 3)]
    await pass_turns()
    reads += [fetch(stream, 5, 1), fetch(stream, 1, 1)]
    await pass_turns()
    assert [start for start, _, _ in origin.reads] == [2, 5, 1]
    origin.is_open = True
    for gate in origin.gates:
        gate.set_result(None)
    await asyncio.gather(*reads)


async def test_what_is_held_is_not_fetched_again(origin: Origin, stream: S2Stream) -> None:
    origin.is_open = True
    await fetch(stream, 4, 2)
    fetched = await fetch(stream, 1, 8)
    # The last one is the record at the joint.
    assert origin.reads[1:] == [(1, 3, ["a"]), (4, 1, ["a"])]
    assert (numbers(fetched), fetched.is_all) == ([1, 2, 3], False)


async def test_a_read_behind_a_full_answer_begins_one_record_earlier(origin: Origin, stream: S2Stream) -> None:
    origin.is_open = True
    await fetch(stream, 0, 4)
    fetched = await fetch(stream, 4, 4)
    assert (numbers(fetched), fetched.is_all) == ([4, 5, 6, 7], False)
    assert origin.reads == [(0, 4, ["a"]), (3, 5, ["a"])]


async def test_a_read_behind_a_short_answer_asks_for_the_record_before_it_afterwards(
    origin: Origin, stream: S2Stream
) -> None:
    origin.is_open = True
    await fetch(stream, 0, 4)
    await fetch(stream, 4, 9)
    origin.end = 12
    fetched = await fetch(stream, 10, 9)
    assert (numbers(fetched), fetched.is_all) == ([10, 11], True)
    assert origin.reads[2:] == [(10, 9, ["a"]), (9, 1, ["a"])]


@pytest.mark.parametrize("status", [429, 500])
async def test_a_refused_read_behind_a_full_answer_confirms_nothing(
    origin: Origin, stream: S2Stream, clock: ManualClock, status: int
) -> None:
    origin.is_open = True
    await fetch(stream, 0, 4)
    clock.advance(VERIFIED_S + 1)
    origin.refusal = S2Refused(status, CIMultiDict(), b"")
    assert (await fetch(stream, 4, 4)).outcome is origin.refusal
    origin.refusal = None
    origin.reads.clear()
    assert numbers(await fetch(stream, 8, 1)) == [8]
    assert origin.reads == [(3, 1, ["a"]), (8, 1, ["a"])]


async def test_a_record_found_by_its_time_is_not_unwritten_by_the_tail_of_before(
    stream: S2Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    tails = [StreamPosition(5, 50)]

    async def found(*_: object) -> S2Fetched:
        tails.append(StreamPosition(6, 100))
        return S2Fetched(FoundRecords((Record(5, 100, (), b"x"),)), is_fresh=True, is_all=False)

    monkeypatch.setattr(stream, "trusted_tail", lambda _: tails[-1])
    monkeypatch.setattr(stream, "fetch_or_tail", found)
    begun = await start_read(
        stream, ReadQuery(FromTimestamp(100), count=1), S2Read(KEY, stream.source, "net", 0.0, 1.0)
    )
    assert not isinstance(begun, S2Refused)
    assert (begun[0].at, begun[0].tail) == (5, StreamPosition(6, 100))


@pytest.mark.parametrize(("told", "is_replaced"), [(10, False), (2, True)])
async def test_only_the_origin_proves_that_a_stream_was_created_again(
    origin: Origin, stream: S2Stream, monkeypatch: pytest.MonkeyPatch, told: int, *, is_replaced: bool
) -> None:
    """The stream's owner, another worker, remembers an earlier tail; the origin says `told`."""
    origin.is_open, asked, ended = True, list[Shared | None](), list[StreamKey]()
    await fetch(stream, 0, 10)
    stream.source = replace(SOURCE, shared=Shared(KEY, Handed.NO))

    async def tail(source: S2Source, askers: Askers) -> AtTail:
        asked.append(source.shared)
        return (
            AtTail(StreamPosition(9, 8), is_remembered=True)
            if source.shared
            else AtTail(StreamPosition(told, told - 1))
        )

    monkeypatch.setattr(origin, "tail", tail, raising=False)
    monkeypatch.setattr(stream, "_shared", replace(stream._shared, ended=ended.append))
    if is_replaced:
        with pytest.raises(TailMovedBack):
            await stream.tail("a")
    else:
        assert await stream.tail("a") == StreamPosition(told, told - 1)
    assert asked == [Shared(KEY, Handed.NO), None]
    assert ended == [KEY] * is_replaced


@pytest.mark.parametrize("known", [0, 3])
async def test_only_the_end_of_a_known_stream_is_reported_to_other_workers(
    origin: Origin, stream: S2Stream, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """Any client can ask for names of streams that do not exist."""
    ended: list[StreamKey] = []
    monkeypatch.setattr(stream, "_shared", replace(stream._shared, ended=ended.append))
    origin.is_open, origin.end = True, known
    await fetch(stream, 0, 5)
    origin.refusal = S2Refused(404, CIMultiDict(), b"")
    assert (await fetch(stream, known, 5)).outcome is origin.refusal
    assert ended == [KEY] * bool(known)
