"""The access log: what is in a line, and how lines get from requests to a sink."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app import start_gateway
from gateway.clock import ManualClock
from gateway.config import GatewayConfig
from gateway.config_file import ConfigError
from gateway.journal import CloseReason, Journal, Record, Repeated, Unkept
from gateway.metrics_seam import Silent
from gateway.ops.access_log import FIELDS, VERSION, Lines
from gateway.ops.log_sinks.descriptor import DescriptorSink
from gateway.ops.log_sinks.file import FileSink
from gateway.ops.log_sinks.sink import Sink
from gateway.ops.log_sinks.stream import StreamSink
from gateway.ops.log_writer import LogWriter
from gateway.ops.partition_ids import PartitionIds
from gateway.origin.app import RunningOrigin, start_origin
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.protocol.trace_context import trace_id_of
from tests.ops.log_reading import BOUND_S, eventually, messages, time_passing

KEY = "sixteen letters or more"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"

FULL = Record(
    mode=Mode.SSE,
    outcome=Outcome.FOLLOWED,
    method="GET",
    route="default",
    stream="/chat/room?tenant=7",
    partition="default 00112233445566778899aabbccddeeff",
    status=200,
    ended_at=1_790_000_000.123456,
    duration_s=12.5,
    first_byte_s=0.001234,
    start="-1",
    next_offset="0000_0042",
    sent_bytes=4_096,
    fetched_bytes=1_024,
    collapsed=50,
    subscribers=1_000,
    coding=Coding.ZSTD,
    client="192.0.2.77",
    user_agent="curl/8.0",
    trace_id=TRACE,
    close_reason=CloseReason.LIFETIME,
)


def lines(masking: Any = "masked", key: str = KEY) -> Lines:
    return Lines("edge", masking, PartitionIds(key))


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = orjson.loads(line)
    return found


def written(record: Record, masking: Any = "masked") -> dict[str, Any]:
    return read(lines(masking).line(record))


# -- the schema --------------------------------------------------------------------------------------------------------


def test_the_schema_is_what_is_written() -> None:
    kinds: dict[str, Any] = {"integer": int, "number": (int, float), "string": str, "boolean": bool}
    full, least = written(FULL), written(Record(method="GET"))
    assert set(full) == {field.name for field in FIELDS}
    assert set(least) == {field.name for field in FIELDS if field.is_always_there}
    for field in FIELDS:
        assert isinstance(full[field.name], kinds[field.kind]), field.name
        assert field.kind == "boolean" or not isinstance(full[field.name], bool), field.name
        assert field.meaning.endswith("."), field.name


def schema_table() -> str:
    """The README's table of fields."""
    rows = ["| field | JSON | unit or words | what it says |", "|---|---|---|---|"]
    for field in FIELDS:
        always = " *" if field.is_always_there else ""
        rows.append(f"| `{field.name}`{always} | {field.kind} | {field.unit} | {field.meaning} |")
    return "\n".join(rows) + "\n"


def test_the_readme_has_the_schema() -> None:
    assert schema_table() in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_a_line_says_what_was_noted() -> None:
    full = written(FULL)
    assert full.pop("partition") == PartitionIds(KEY).of(FULL.partition or "")
    assert full == {
        "time": 1_790_000_000.123456,
        "v": VERSION,
        "node": "edge",
        "route": "default",
        "stream": "/chat/room?tenant=7",
        "method": "GET",
        "mode": "sse",
        "status": 200,
        "outcome": "followed",
        "duration_s": 12.5,
        "first_byte_s": 0.001234,
        "start": "-1",
        "next_offset": "0000_0042",
        "sent_bytes": 4_096,
        "fetched_bytes": 1_024,
        "collapsed": 50,
        "subscribers": 1_000,
        "coding": "zstd",
        "client": "192.0.2.0",
        "user_agent": "curl/8.0",
        "trace_id": TRACE,
        "close_reason": "lifetime",
        "is_final": True,
    }


def test_every_word_of_the_gateways_own_is_written_as_it_is() -> None:
    for mode in Mode:
        assert written(replace(FULL, mode=mode))["mode"] == mode.value
    for outcome in Outcome:
        assert written(replace(FULL, outcome=outcome))["outcome"] == outcome.value
    for reason in CloseReason:
        assert written(replace(FULL, close_reason=reason))["close_reason"] == reason.value


def test_no_fact_of_a_record_is_left_unwritten() -> None:
    names = {"ended_at": "time"}
    assert {names.get(field.name, field.name) for field in fields(Record)} == {field.name for field in FIELDS} - {
        "v",
        "node",
    } | {"fetches", "is_parked"}


def test_a_partition_is_told_apart_and_never_shown() -> None:
    shown = written(FULL)["partition"]
    assert shown not in (FULL.partition or "")
    assert "00112233" not in lines().line(FULL).decode()
    assert written(replace(FULL, partition="default ffff"))["partition"] != shown
    assert read(lines(key="another key of enough letters").line(FULL))["partition"] != shown
    assert PartitionIds().of("default ffff") != PartitionIds().of("default ffff")


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("192.0.2.77", "192.0.2.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("::ffff:192.0.2.77", "192.0.2.0"),
        ("fe80::1:2%eth0", "fe80::"),
        ("not an address", None),
    ],
)
def test_a_clients_address_is_cut_or_left_out(address: str, masked: str | None) -> None:
    record = replace(FULL, client=address)
    assert written(record).get("client") == masked
    assert written(record, "full")["client"] == address
    assert "client" not in written(record, "none")


def test_what_is_no_text_is_written_all_the_same() -> None:
    agent = b"caf\xe9 \x01\xff".decode("utf-8", "surrogateescape")
    assert written(replace(FULL, user_agent=agent))["user_agent"] == "caf\ufffd \x01\ufffd"
    assert len(written(replace(FULL, user_agent="x" * 5_000))["user_agent"]) == 256


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (TRACEPARENT, TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-what-comes-later", TRACE),
        (f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-b7ad6b7169203331", None),
        ("", None),
        (None, None),
    ],
)
def test_a_trace_is_taken_from_a_valid_traceparent_only(traceparent: str | None, trace_id: str | None) -> None:
    assert trace_id_of(traceparent) == trace_id


# -- hits of the front door --------------------------------------------------------------------------------------------

READY = replace(
    FULL, mode=Mode.CATCHUP, outcome=Outcome.HIT, duration_s=0.0, close_reason=None, subscribers=None, collapsed=0
)


def request(*headers: bytes) -> bytes:
    return b"GET /s?offset=-1 HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in (b"Host: a", *headers)) + b"\r\n"


def of_hit(writer: Lines, *headers: bytes, client: str | None = "192.0.2.77") -> dict[str, Any]:
    hit = (Repeated(READY), 1_000.1239, client, request(*headers))
    found = read(writer.written([hit], 1_789_999_000.0))
    assert found == read(writer.written([hit], 1_789_999_000.0)), "what is remembered says something else"
    return found


@pytest.mark.parametrize("masking", ["full", "masked", "none"])
@pytest.mark.parametrize("client", ["192.0.2.77", "2001:db8::1", "nowhere", None])
def test_a_hits_line_says_what_a_records_line_says(masking: Any, client: str | None) -> None:
    headers = (b"User-Agent: curl/8.0", f"traceparent: {TRACEPARENT}".encode())
    record = replace(READY, client=client, ended_at=1_790_000_000.123)
    assert of_hit(lines(masking), *headers, client=client) == written(record, masking)
    record = replace(record, user_agent=None, trace_id=None)
    assert of_hit(lines(masking), client=client) == written(record, masking)


def test_user_agent_and_trace_are_read_from_the_requests_own_bytes() -> None:
    writer = lines()
    trace = TRACEPARENT.encode()
    for headers, agent, trace_id in (
        ((), None, None),
        ((b"USER-AGENT:a",), "a", None),
        ((b"user-agent: \t a b \t ", b"TraceParent:" + trace), "a b", TRACE),
        ((b"User-Agent:", b"traceparent: " + trace + b" "), "", TRACE),
        ((b"x-user-agent: a", b"x-traceparent: " + trace), None, None),
        ((b"User-Agent: first", b"User-Agent: second"), "first", None),
        ((b"traceparent: " + trace, b"User-Agent: a", b"traceparent: " + trace), "a", None),
        ((b"traceparent: 00-no-trace-00", b"User-Agent: a"), "a", None),
        ((b'User-Agent: caf\xe9 "q" \\',), 'caf\ufffd "q" \\', None),
        ((b"User-Agent: " + b"x" * 1_000,), "x" * 256, None),
    ):
        found = of_hit(writer, *headers)
        assert (found.get("user_agent"), found.get("trace_id")) == (agent, trace_id), headers


@given(st.lists(st.tuples(st.sampled_from([b"User-Agent", b"traceparent", b"Cookie"]), st.binary(max_size=40))))
def test_whatever_a_client_sends_a_line_is_one_json_object(headers: list[tuple[bytes, bytes]]) -> None:
    cleaned = [name + b":" + value.replace(b"\r", b"").replace(b"\n", b"") for name, value in headers]
    of_hit(lines(), *cleaned)


def test_what_is_remembered_of_clients_and_agents_is_bounded() -> None:
    writer = lines("full")
    hit = Repeated(READY)
    for number in range(40):
        of_some = [
            (hit, 1.0, f"10.{number}.{n // 256}.{n % 256}", request(b"User-Agent: %d" % (number * 256 + n)))
            for n in range(256)
        ]
        made = [orjson.loads(line) for line in writer.written(of_some, 0.0).splitlines()]
        assert [int(line["user_agent"]) for line in made] == list(range(number * 256, number * 256 + 256))
        assert [line["client"] for line in made] == [item[2] for item in of_some]
    assert len(writer._clients) < 5_000
    assert len(writer._endings) < 5_000


# -- from requests to a sink -------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def counts() -> Silent:
    return Silent()


def drops(counts: Silent) -> int:
    return counts.counts["log_drops",]


Open = Callable[..., LogWriter]


@pytest.fixture
async def open_log(clock: ManualClock, counts: Silent) -> AsyncIterator[Open]:
    """Starts writers."""
    opened: list[LogWriter] = []

    def open_one(sink: Sink, **settings: Any) -> LogWriter:
        settings = {
            "queue_records": 1_000, "batch_bytes": 1 << 20, "batch_s": 0.5, "live_interval_s": 300.0, **settings
        }  # fmt: skip
        opened.append(LogWriter(sink, lines(), clock, counts, **settings))
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
    return [orjson.loads(line) for line in (folder / "access.log").read_bytes().splitlines()]


def streams(found: list[dict[str, Any]]) -> list[int]:
    return [int(line["stream"][1:]) for line in found]


async def test_lines_are_written_together_after_a_while(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file)
    for number in range(10):
        log.record(numbered(number))
    clock.advance(0.49)
    await asyncio.sleep(0)
    assert noted(tmp_path) == []
    clock.advance(0.02)
    await eventually(lambda: len(noted(tmp_path)) == 10)
    # And so on: the wait begins with the first line that waits.
    clock.advance(100)
    log.record(numbered(10))
    clock.advance(0.51)
    await eventually(lambda: len(noted(tmp_path)) == 11)
    assert streams(noted(tmp_path)) == list(range(11))


async def test_enough_for_a_batch_is_written_at_once(open_log: Open, file: FileSink, tmp_path: Path) -> None:
    log = open_log(file, batch_bytes=4_096)
    for number in range(100):
        log.record(numbered(number))
    await eventually(lambda: len(noted(tmp_path)) == 100)
    assert streams(noted(tmp_path)) == list(range(100))


async def test_records_and_hits_keep_their_order(
    open_log: Open, file: FileSink, tmp_path: Path, counts: Silent
) -> None:
    log = open_log(file, queue_records=10_000)
    hits = [Repeated(numbered(number)) for number in range(3_000)]
    for number, hit in enumerate(hits):
        if number % 3:
            log.repeat(hit, 1.0, "192.0.2.1", request())
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
    log.repeat(Repeated(numbered(0)), clock.now(), None, request())
    clock.advance(7)
    await log.close(BOUND_S)
    assert noted(tmp_path)[0]["time"] == pytest.approx(given_at, abs=0.002)


async def test_a_batch_never_exceeds_its_bound_but_for_a_line_that_is_longer(
    open_log: Open, stream: StreamSink, origin: RunningOrigin
) -> None:
    log = open_log(stream, batch_bytes=2_048)
    for number in range(40):
        log.record(replace(numbered(number), next_offset="x" * (5_000 if number % 10 == 0 else 100)))
    await log.close(BOUND_S)
    assert streams(await messages(f"{origin.url}/log")) == list(range(40))
    # Each long one alone, and at most seven of the others together.
    assert origin.origin.counters.requests["append"] >= 4 + 36 // 7  # type: ignore[index]


async def test_a_full_queue_drops_what_comes_counts_it_and_keeps_nobody_waiting(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: Silent, clock: ManualClock
) -> None:
    log = open_log(stream, queue_records=100, batch_bytes=4_096)
    gate = origin.origin.faults.hold(kind="append")
    log.record(numbered(0))
    clock.advance(0.51)
    await gate.waiting(1)
    for number in range(1, 300):
        # Half of them the way of the front door.
        if number % 2:
            log.record(numbered(number))
        else:
            log.repeat(Repeated(numbered(number)), 1.0, None, request())
    assert drops(counts) == 199
    gate.release()
    async with time_passing(clock):
        await eventually(lambda: not log._queue)
        await log.close(BOUND_S)
    assert streams(await messages(f"{origin.url}/log")) == list(range(101))
    assert drops(counts) == 199


async def test_what_a_sink_gives_up_is_counted(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: Silent
) -> None:
    log = open_log(stream)
    origin.origin.faults.status(400, kind="append", times=None)
    for number in range(10):
        log.record(numbered(number))
    await log.close(BOUND_S)
    assert drops(counts) == 10


async def test_lines_of_an_outage_are_all_there_after_it(
    open_log: Open, stream: StreamSink, origin: RunningOrigin, counts: Silent, clock: ManualClock
) -> None:
    log = open_log(stream)
    outage = origin.origin.faults.status(503, kind="append", times=None)
    async with time_passing(clock):
        for number in range(200):
            log.record(numbered(number))
            if number % 50 == 0:
                hits = outage.hits
                await eventually(lambda hits=hits: outage.hits > hits)  # type: ignore[misc]
        outage.remove()
        await eventually(lambda: not log._queue and not log._unwritten)
    assert streams(await messages(f"{origin.url}/log")) == list(range(200))
    assert drops(counts) == 0


async def test_all_that_waits_is_written_at_the_end(
    open_log: Open, file: FileSink, tmp_path: Path, counts: Silent
) -> None:
    log = open_log(file, queue_records=5_000)
    for number in range(5_000):
        log.record(numbered(number))
    await log.close(BOUND_S)
    assert streams(noted(tmp_path)) == list(range(5_000))
    log.record(numbered(5_000))
    assert drops(counts) == 1


async def test_the_end_does_not_wait_for_a_sink_that_does_not_take_anything(
    open_log: Open, origin: RunningOrigin, stream: StreamSink, counts: Silent, clock: ManualClock
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


async def test_the_end_does_not_wait_for_a_pipe_that_nobody_reads(open_log: Open, counts: Silent) -> None:
    reading, writing = os.pipe()
    log = open_log(DescriptorSink(writing, "pipe"), queue_records=5_000)
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
    assert not log._queue
    clock.advance(1)
    state = {"sent": 25, "offset": "2"}
    clock.advance(100)
    state = {"sent": 26, "offset": "3"}
    clock.advance(7)
    note.end(Outcome.ABORTED, CloseReason.LEFT)
    note.end(Outcome.FOLLOWED, CloseReason.LIFETIME)
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
    note.end(Outcome.FOLLOWED, CloseReason.ANSWERED)
    await log.close(BOUND_S)
    assert [(line["duration_s"], line["close_reason"]) for line in noted(tmp_path)] == [(99, "answered")]


async def test_a_crowd_of_live_readers_is_noted_each_when_it_is_due(
    open_log: Open, file: FileSink, tmp_path: Path, clock: ManualClock
) -> None:
    log = open_log(file, live_interval_s=100.0, queue_records=100_000)
    notes = []
    for number in range(1_000):
        record = Record(mode=Mode.SSE, method="GET", stream=f"/{number}")
        notes.append(log.live(record, clock.now(), lambda into: None))
        clock.advance(0.1 if number >= 500 else 0)
    for note in notes[::2]:
        note.end(Outcome.FOLLOWED, CloseReason.LIFETIME)
    clock.advance(60)
    await log.close(BOUND_S)
    going_on = [line for line in noted(tmp_path) if not line["is_final"]]
    # 110 s have passed since the first came, so those of the first 10 s are due.
    assert streams(going_on) == list(range(1, 601, 2))
    assert {line["duration_s"] for line in going_on} == {100}


def test_a_journal_that_is_not_kept_takes_everything_and_keeps_nothing() -> None:
    journal: Journal = Unkept()
    assert not journal.is_kept
    journal.record(Record())
    journal.repeat(Repeated(Record()), 1.0, None, b"")
    journal.live(Record(), 1.0, lambda into: pytest.fail("nobody reads it")).end(Outcome.HIT, CloseReason.LEFT)


# -- in a gateway ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", ["file", "stream"])
async def test_a_gateway_writes_what_was_noted_before_it_leaves(
    sink: str, tmp_path: Path, origin: RunningOrigin
) -> None:
    where = {"path": str(tmp_path / "access.log")} if sink == "file" else {"stream_url": f"{origin.url}/log"}
    config = GatewayConfig.for_origin(
        origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", node_name="west", sink=sink, batch_s=60, **where
    )
    gateway = await start_gateway(config)
    assert gateway.journal.is_kept
    for number in range(100):
        gateway.journal.record(numbered(number))
    await gateway.stop()
    found = noted(tmp_path) if sink == "file" else await messages(f"{origin.url}/log")
    assert streams(found) == list(range(100))
    assert {line["node"] for line in found} == {"west"}
    assert "gateway_log_drops_total 0.0" in gateway.metrics.exposition()[0].decode()


async def test_a_gateway_leaves_in_its_time_and_counts_what_it_could_not_write(origin: RunningOrigin) -> None:
    config = GatewayConfig.for_origin(
        origin.url,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        sink="stream",
        stream_url=f"{origin.url}/log",
        shutdown_timeout_s=0.3,
    )
    gateway = await start_gateway(config)
    origin.origin.faults.hold(kind="append")
    for number in range(100):
        gateway.journal.record(numbered(number))
    async with asyncio.timeout(BOUND_S):
        await gateway.stop()
    assert "gateway_log_drops_total 100.0" in gateway.metrics.exposition()[0].decode()


async def test_a_gateway_keeps_no_log_unless_it_is_asked_to(origin: RunningOrigin) -> None:
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0"))
    assert not gateway.journal.is_kept
    await gateway.stop()


async def test_a_gateway_that_cannot_write_its_log_does_not_start(origin: RunningOrigin, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.path: .* cannot be written: Is a directory"):
        await start_gateway(GatewayConfig.for_origin(origin.url, sink="file", path=str(tmp_path)))
