"""The way of lines from requests to a sink: queue, batches, lines of live reads, shutdown."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.ops.access_log.lines import Lines
from gateway.ops.access_log.live_reads import LINES_PER_TURN
from gateway.ops.access_log.sinks.descriptor import DescriptorSink
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.sinks.sink import Sink
from gateway.ops.access_log.sinks.stream import StreamSink
from gateway.ops.access_log.writer import LogWriter
from gateway.ops.partition_ids import PartitionIds
from gateway.origin.app import RunningOrigin, start_origin
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Partition
from gateway.telemetry.access_record import CloseReason, Record, Repeated
from gateway.telemetry.metrics import NoMetrics
from tests.ops.log_reading import BOUND_S, lines_of, messages
from tests.waiting import eventually, pass_turns, time_passing

REQUEST = b"GET /s?offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def counts() -> NoMetrics:
    return NoMetrics()


def drops(counts: NoMetrics) -> int:
    return counts.counts["log_drops",]


Open = Callable[..., LogWriter]


@pytest.fixture
async def open_log(clock: ManualClock, counts: NoMetrics) -> AsyncIterator[Open]:
    """Starts writers."""
    opened: list[LogWriter] = []

    def open_one(sink: Sink, **settings: Any) -> LogWriter:
        settings = {
            "queue_records": 1_000, "queue_bytes": 64 << 20, "batch_bytes": 1 << 20, "batch_s": 0.5,
            "live_interval_s": 300.0, **settings
        }  # fmt: skip
        opened.append(LogWriter(sink, Lines("edge", "masked", PartitionIds()), clock, counts, **settings))
        opened[-1].start()
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close(0.0)


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> FileSink:
    return FileSink(tmp_path / "access.log", clock, rotate_bytes=0, rotate_s=0, keep_files=0)


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin()
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=0)


@pytest.fixture
async def stream(origin: RunningOrigin, clock: ManualClock) -> StreamSink:
    return StreamSink(f"{origin.url}/log", clock, Random(5), node="edge")


def numbered(number: int) -> Record:
    return Record(method="GET", stream=f"/{number}")


def noted(folder: Path) -> list[dict[str, Any]]:
    return lines_of(folder / "access.log")


def streams(found: list[dict[str, Any]]) -> list[int]:
    return [int(line["stream"][1:]) for line in found]


async def test_lines_are_written_together_after_a_while(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file)
    for number in range(10):
        log.record(numbered(number))
    clock.advance(0.49)
    await pass_turns(1)
    assert noted(tmp_path) == []
    clock.advance(0.02)
    await eventually(lambda: len(noted(tmp_path)) == 10)
    # The same again: the wait begins with the first queued line.
    clock.advance(100)
    log.record(numbered(10))
    async with time_passing(clock):
        await eventually(lambda: len(noted(tmp_path)) == 11)
    assert streams(noted(tmp_path)) == list(range(11))


async def test_a_full_batch_is_written_at_once(open_log: Open, file: FileSink, tmp_path: Path) -> None:
    log = open_log(file, batch_bytes=4_096)
    for number in range(100):
        log.record(numbered(number))
    await eventually(lambda: len(noted(tmp_path)) == 100)
    assert streams(noted(tmp_path)) == list(range(100))


async def test_records_and_hits_keep_their_order(
    open_log: Open, file: FileSink, tmp_path: Path, counts: NoMetrics
) -> None:
    log = open_log(file, queue_records=10_000)
    hits = [Repeated(numbered(number)) for number in range(3_000)]
    for number, hit in enumerate(hits):
        if number % 3:
            log.repeat(hit, 1.0, 1.0, "192.0.2.1", REQUEST)
        else:
            log.record(numbered(number))
    await log.close(BOUND_S)
    assert streams(noted(tmp_path)) == list(range(3_000))
    assert drops(counts) == 0


async def test_a_hit_is_written_with_the_time_of_day_at_which_it_was_given(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file)
    given_at = clock.wall()
    log.repeat(Repeated(numbered(0)), clock.now(), clock.now(), None, REQUEST)
    clock.advance(7)
    await log.close(BOUND_S)
    assert noted(tmp_path)[0]["time"] == pytest.approx(given_at, abs=0.002)


async def test_a_batch_exceeds_its_bound_only_for_a_single_longer_line(
    open_log: Open, stream: StreamSink, origin: RunningOrigin
) -> None:
    log = open_log(stream, batch_bytes=2_048)
    for number in range(40):
        log.record(replace(numbered(number), next_offset="x" * (5_000 if number % 10 == 0 else 100)))
    await log.close(BOUND_S)
    assert streams(await messages(f"{origin.url}/log")) == list(range(40))
    # Each long line alone, and at most seven of the others together.
    assert origin.origin.counters.requests["append"] >= 4 + 36 // 7  # type: ignore[index]


async def test_a_full_queue_drops_and_counts_new_records_without_blocking(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: NoMetrics, clock: ManualClock
) -> None:
    log = open_log(stream, queue_records=100, batch_bytes=4_096)
    gate = origin.origin.faults.hold(kind="append")
    log.record(numbered(0))
    clock.advance(0.51)
    await gate.waiting(1)
    for number in range(1, 300):
        # Half of them as repeated hits.
        if number % 2:
            log.record(numbered(number))
        else:
            log.repeat(Repeated(numbered(number)), 1.0, 1.0, None, REQUEST)
    assert drops(counts) == 199
    gate.release()
    async with time_passing(clock):
        await eventually(lambda: not log.queued)
        await log.close(BOUND_S)
    assert streams(await messages(f"{origin.url}/log")) == list(range(101))
    assert drops(counts) == 199


async def test_the_queue_is_bounded_in_bytes_and_drops_are_counted(
    open_log: Open, file: FileSink, tmp_path: Path, counts: NoMetrics
) -> None:
    log = open_log(file, queue_records=10_000, queue_bytes=100_000)
    for number in range(200):
        # Half of them as repeated hits, each with a different user agent.
        if number % 2:
            log.record(replace(numbered(number), partition=Partition("default", 0, "p" * 2_000)))
        else:
            agent = b"User-Agent: %d%b\r\n\r\n" % (number, b"a" * 2_000)
            log.repeat(Repeated(numbered(number)), 1.0, 1.0, None, REQUEST[:-2] + agent)
    dropped = drops(counts)
    assert 100 < dropped < 160
    await log.close(BOUND_S)
    assert streams(noted(tmp_path)) == list(range(200 - dropped))


async def test_written_records_make_room_for_new_ones(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock, counts: NoMetrics
) -> None:
    log = open_log(file, queue_bytes=20_000)
    async with time_passing(clock):
        for number in range(100):
            log.record(numbered(number))
            log.repeat(Repeated(numbered(number)), 1.0, 1.0, None, REQUEST)
            await eventually(lambda: not log.queued)
    await log.close(BOUND_S)
    assert drops(counts) == 0
    assert len(noted(tmp_path)) == 200


@pytest.mark.parametrize("is_live", [False, True])
async def test_a_queued_record_keeps_only_the_written_part_of_a_long_request(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock, is_live: bool
) -> None:
    log = open_log(file)
    record = Record(method="GET", stream="/" + "s" * 8_000, user_agent="a" * 8_000)
    if is_live:
        note = log.live(record, clock.now(), lambda into: None)
    else:
        log.record(record)
    assert (len(record.stream), len(record.user_agent or "")) == (2_048, 256)
    if is_live:
        note.record_end(Outcome.FOLLOWED, CloseReason.LEFT)
    await log.close(BOUND_S)
    assert [(len(line["stream"]), len(line["user_agent"])) for line in noted(tmp_path)] == [(2_048, 256)]


async def test_a_queued_hit_keeps_only_the_written_part_of_its_request(open_log: Open, file: FileSink) -> None:
    log = open_log(file)
    cookie = b"Cookie: " + b"c" * 3_000 + b"\r\n\r\n"
    hit = Repeated(numbered(0))
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for _ in range(100):
            log.repeat(hit, 1.0, 1.0, None, b"".join((REQUEST[:-2], cookie)))
        grown = tracemalloc.take_snapshot().compare_to(before, "filename")
    finally:
        tracemalloc.stop()
    # Three of the requests alone would take more.
    assert sum(one.size_diff for one in grown) < 100 * 100


async def test_a_small_queue_is_written_before_it_is_full(
    open_log: Open, file: FileSink, tmp_path: Path, counts: NoMetrics
) -> None:
    log = open_log(file, queue_records=10)
    for number in range(100):
        # As many as fit while the sink is idle; no timer fires.
        log.record(numbered(number))
        if number % 8 == 7:
            await eventually(lambda: log.queued < 6)
    await log.close(BOUND_S)
    assert streams(noted(tmp_path)) == list(range(100))
    assert drops(counts) == 0


async def test_a_queue_that_is_full_is_written_at_once(
    open_log: Open, file: FileSink, tmp_path: Path, counts: NoMetrics
) -> None:
    log = open_log(file, queue_records=1)
    log.record(numbered(0))
    log.record(numbered(1))
    assert drops(counts) == 1
    await eventually(lambda: len(noted(tmp_path)) == 1)


async def test_lines_that_a_sink_gives_up_are_counted(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: NoMetrics
) -> None:
    log = open_log(stream)
    origin.origin.faults.status(400, kind="append", times=None)
    for number in range(10):
        log.record(numbered(number))
    await log.close(BOUND_S)
    assert drops(counts) == 10


async def test_lines_of_an_outage_are_all_there_after_it(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: NoMetrics, clock: ManualClock
) -> None:
    log = open_log(stream)
    outage = origin.origin.faults.status(503, kind="append", times=None)
    async with time_passing(clock):
        for number in range(200):
            log.record(numbered(number))
            if number % 50 == 0:
                hits = outage.hits
                await eventually(lambda hits=hits: outage.hits > hits)
        outage.remove()
        await eventually(lambda: not log.queued and not log.unwritten)
    assert streams(await messages(f"{origin.url}/log")) == list(range(200))
    assert drops(counts) == 0


async def test_queued_records_are_written_at_the_end(
    open_log: Open, file: FileSink, tmp_path: Path, counts: NoMetrics
) -> None:
    log = open_log(file, queue_records=5_000)
    for number in range(5_000):
        log.record(numbered(number))
    await log.close(BOUND_S)
    assert streams(noted(tmp_path)) == list(range(5_000))
    log.record(numbered(5_000))
    assert drops(counts) == 1


async def test_close_does_not_wait_for_a_blocked_sink(
    open_log: Open, origin: RunningOrigin, stream: StreamSink, counts: NoMetrics, clock: ManualClock
) -> None:
    log = open_log(stream)
    gate = origin.origin.faults.hold(kind="append")
    for number in range(10):
        log.record(numbered(number))
    clock.advance(0.51)
    await gate.waiting(1)
    log.record(numbered(10))
    async with asyncio.timeout(BOUND_S):
        await log.close(0.05)
    assert drops(counts) == 11


async def test_close_does_not_wait_for_a_pipe_without_a_reader(
    open_log: Open, clock: ManualClock, counts: NoMetrics
) -> None:
    reading, writing = os.pipe()
    log = open_log(DescriptorSink(clock, writing, "pipe"), queue_records=5_000)
    for number in range(5_000):
        log.record(numbered(number))
    async with asyncio.timeout(BOUND_S):
        await log.close(0.2)
    assert drops(counts) == 5_000
    os.close(reading)
    os.close(writing)


# -- live reads --------------------------------------------------------------------------------------------------------


async def test_a_long_live_read_has_lines_while_it_goes_on_and_one_at_its_end(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file, live_interval_s=100.0)
    record = Record(mode=Mode.SSE, outcome=Outcome.FOLLOWED, method="GET", stream="/s", status=200, start="-1")
    state = {"sent": 0, "offset": "0"}

    def look(into: Record) -> None:
        into.sent_bytes, into.next_offset, into.subscribers = state["sent"], state["offset"], 3  # type: ignore[assignment]

    note = log.live(record, clock.now() - 20, look)
    state = {"sent": 10, "offset": "1"}
    clock.advance(79)
    assert not log.queued
    clock.advance(1)
    state = {"sent": 25, "offset": "2"}
    clock.advance(100)
    state = {"sent": 26, "offset": "3"}
    clock.advance(7)
    note.record_end(Outcome.ABORTED, CloseReason.LEFT)
    note.record_end(Outcome.FOLLOWED, CloseReason.LIFETIME)
    clock.advance(1_000)
    await log.close(BOUND_S)
    told = ("duration_s", "sent_bytes", "next_offset", "subscribers", "outcome", "close_reason", "is_final")
    assert [tuple(line.get(name) for name in told) for line in noted(tmp_path)] == [
        (100, 10, "1", 3, "followed", None, False),
        (200, 15, "2", 3, "followed", None, False),
        (207, 1, "3", 3, "aborted", "left", True),
    ]


@pytest.mark.parametrize("interval_s", [0.0, 100.0])
async def test_a_short_live_read_has_one_line(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock, interval_s: float
) -> None:
    log = open_log(file, live_interval_s=interval_s)
    note = log.live(Record(mode=Mode.LONGPOLL, method="GET", stream="/s"), clock.now(), lambda into: None)
    clock.advance(99)
    note.record_end(Outcome.FOLLOWED, CloseReason.ANSWERED)
    await log.close(BOUND_S)
    assert [(line["duration_s"], line["close_reason"]) for line in noted(tmp_path)] == [(99, "answered")]


async def test_the_lines_of_reads_that_began_together_are_spread_over_several_turns(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file, live_interval_s=100.0, queue_records=100_000)
    left, written = list(range(1_000)), list[int]()

    def write(most: int) -> bool:
        written.append(len(left[:most]))
        del left[:most]
        return not left

    watched = log.watch(clock.now(), write)
    assert watched is not None
    clock.advance(100)
    assert written == [LINES_PER_TURN] * 3 + [1_000 - 3 * LINES_PER_TURN]
    clock.advance(99)
    assert len(written) == 4
    watched.discard()
    clock.advance(100)
    assert len(written) == 4
    await log.close(BOUND_S)


async def test_each_live_reader_of_a_crowd_has_its_line_when_it_is_due(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file, live_interval_s=100.0, queue_records=100_000)
    notes = []
    for number in range(1_000):
        record = Record(mode=Mode.SSE, method="GET", stream=f"/{number}")
        notes.append(log.live(record, clock.now(), lambda into: None))
        clock.advance(0.1 if number >= 500 else 0)
    for note in notes[::2]:
        note.record_end(Outcome.FOLLOWED, CloseReason.LIFETIME)
    clock.advance(60)
    await log.close(BOUND_S)
    going_on = [line for line in noted(tmp_path) if not line["is_final"]]
    # 110 s have passed since the first came, so those of the first 10 s are due.
    assert streams(going_on) == list(range(1, 601, 2))
    assert {line["duration_s"] for line in going_on} == {100}
