"""The streaming reader as Spark calls it, before a real origin and without a Java: offsets, batches, losses, bounds."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gateway.origin.app import OriginSettings
from gateway.origin.requests import Kind
from pyspark_durable_streams.errors import BadOption, BadReply, DataLost
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader
from tests.pyspark_durable_streams.beside import JSON, Beside, beside
from tests.pyspark_durable_streams.hands import Hands

MESSAGES: Final = (
    StructType()
    .add("stream", StringType())
    .add("pos", LongType())
    .add("offset", StringType())
    .add("value", StringType())
)
_CHUNKS: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", BinaryType())
Row = dict[str, Any]


@pytest.fixture(scope="module")
def origin() -> Iterator[Beside]:
    # Small replies, so that a few hundred messages are a chain of them.
    with beside(OriginSettings(max_chunk_bytes=300)) as running:
        yield running


@pytest.fixture
def stream(origin: Beside, request: pytest.FixtureRequest) -> str:
    name = f"t/{request.node.name.replace('[', '-').replace(']', '')}"
    origin.create(name)
    return name


_running: Final[list[StreamReader]] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Every reader is stopped, as Spark does."""
    yield
    while _running:
        _running.pop().stop()


def reader(origin: Beside, schema: StructType = MESSAGES, **options: str) -> StreamReader:
    given = {"url": origin.url, "startingOffsets": "earliest", "maxPollDelay": "0s", **options}
    _running.append(StreamReader(schema, read_options(given, is_streaming=True)))
    return _running[-1]


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    """The batch, read as tasks on another machine would: nothing of the driver's goes along but the pickled reader."""
    there = pickle.loads(pickle.dumps(reader))
    found: list[Row] = []
    for task in reader.partitions(start, end):
        for batch in there.read(pickle.loads(pickle.dumps(task))):
            found += batch.to_pylist()
    return found


def follow(
    reader: StreamReader, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
) -> tuple[list[list[Row]], dict[str, Any]]:
    """Batches until there is nothing new, and the last offset."""
    at = start if start is not None else reader.initialOffset()
    batches: list[list[Row]] = []
    for _ in range(1_000):
        end = through_json(reader.latestOffset(at, limit or reader.getDefaultReadLimit()))
        if end == at:
            return batches, at
        batches.append(rows(reader, at, end))
        reader.commit(end)
        at = end
    raise AssertionError("no end")


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def values(batches: list[list[Row]]) -> list[Any]:
    return [json.loads(row["value"]) for batch in batches for row in batch]


# -- what is read


def test_every_message_once_and_in_order(origin: Beside, stream: str) -> None:
    for begin in range(0, 300, 30):
        origin.append(stream, *range(begin, begin + 30))
    batches, at = follow(reader(origin, stream=stream))
    assert values(batches) == list(range(300))
    assert [row["pos"] for row in batches[0]] == list(range(300))
    origin.append(stream, 300)
    again, _ = follow(reader(origin, stream=stream), at)
    assert values(again) == [300]
    assert again[0][0]["pos"] == 300


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.integers() | st.text(max_size=9) | st.dictionaries(st.text(max_size=3), st.none()), min_size=1)
    ),
    st.integers(1, 7),
    st.sampled_from(["0", "1m"]),
)
def test_any_bound_reads_the_same(origin: Beside, appends: list[list[object]], bound: int, spool: str) -> None:
    origin.ask("DELETE", "t/any")
    origin.create("t/any")
    for some in appends:
        origin.append("t/any", *some)
    batches, _ = follow(reader(origin, stream="t/any", maxRowsPerTrigger=str(bound), spoolBytes=spool))
    assert all(len(batch) <= bound for batch in batches)
    assert values(batches) == [value for some in appends for value in some]
    flat = [row["pos"] for batch in batches for row in batch]
    assert flat == list(range(len(flat)))


def test_a_batch_is_the_same_however_often_it_is_read(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(100))
    first = reader(origin, stream=stream)
    start = first.initialOffset()
    end = through_json(first.latestOffset(start, ReadMaxRows(70)))
    seen = rows(first, start, end)
    origin.append(stream, *range(100, 200))
    # A driver that has just been started has no spool, and asks for the initial offset again.
    second = reader(origin, stream=stream)
    assert rows(second, second.initialOffset(), end) == seen
    assert len(seen) == 70


@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
def test_replies_may_be_cut_otherwise_when_a_batch_is_read_again(origin: Beside, content_type: str) -> None:
    name = f"t/cut-{content_type}"
    with beside() as whole:
        for one in (whole, origin):
            one.create(name, content_type)
            for begin in range(0, 200, 40):
                lines = [f'{{"n": {number}}}' for number in range(begin, begin + 40)]
                body = f"[{','.join(lines)}]" if content_type == JSON else "\n".join([*lines, ""])
                assert one.ask("POST", name, {"Content-Type": content_type}, body.encode()) == 204
        planned = reader(whole, stream=name, maxRowsPerTrigger="70")
        at = planned.initialOffset()
        for begin in range(0, 200, 70):
            end = through_json(planned.latestOffset(at, planned.getDefaultReadLimit()))
            read = rows(reader(origin, stream=name), at, end)
            assert [row["n"] for row in values([read])] == list(range(begin, min(begin + 70, 200)))
            at = end
        planned.stop()


def test_latest_is_where_the_stream_was_when_the_query_began(origin: Beside, stream: str) -> None:
    origin.append(stream, 1, 2)
    first = reader(origin, stream=stream, startingOffsets="latest")
    start = first.initialOffset()
    end = through_json(first.latestOffset(start, ReadAllAvailable()))
    assert end != start
    assert rows(first, start, end) == []
    origin.append(stream, 3)
    # Killed before the first batch was done: it is planned again from its checkpoint, then what came meanwhile is read.
    second = reader(origin, stream=stream, startingOffsets="latest")
    assert rows(second, second.initialOffset(), end) == []
    assert values(follow(second, end)[0]) == [3]


def test_a_token_to_start_at(origin: Beside, stream: str) -> None:
    origin.append(stream, 1, 2)
    token = origin.do(lambda origin: origin.store.get(f"/{stream}", 0.0).tail.token)
    origin.append(stream, 3)
    batches, _ = follow(reader(origin, stream=stream, startingOffsets=json.dumps({stream: token})))
    assert values(batches) == [3]


def test_lines_of_a_text_stream_in_one_piece_over_replies(origin: Beside, request: pytest.FixtureRequest) -> None:
    name = f"t/{request.node.name}"
    origin.create(name, "text/plain")
    text = "".join(f"line {number} {'x' * (number % 400)}\n" for number in range(200))
    for at in range(0, len(text), 77):
        assert origin.ask("POST", name, {"Content-Type": "text/plain"}, text[at : at + 77].encode()) == 204
    origin.ask("POST", name, {"Content-Type": "text/plain"}, b"no end")
    for bound in ("7", "1000"):
        batches, at_end = follow(reader(origin, stream=name, maxRowsPerTrigger=bound, spoolBytes="0"))
        assert [row["value"] for batch in batches for row in batch] == text.splitlines()
    origin.ask("POST", name, {"Content-Type": "text/plain", "Stream-Closed": "true"}, b" yet")
    batches, _ = follow(reader(origin, stream=name), at_end)
    assert [row["value"] for batch in batches for row in batch] == ["no end yet"]


def test_bytes_as_chunks(origin: Beside, request: pytest.FixtureRequest) -> None:
    name = f"t/{request.node.name}"
    origin.create(name, "application/octet-stream")
    data = bytes(range(256)) * 20
    for at in range(0, len(data), 100):
        origin.ask("POST", name, {"Content-Type": "application/octet-stream"}, data[at : at + 100])
    batches, _ = follow(reader(origin, _CHUNKS, stream=name, format="chunks", chunkBytes="700"))
    assert b"".join(row["value"] for row in batches[0]) == data
    assert [row["pos"] for row in batches[0]] == list(range(0, len(data), 700))
    with pytest.raises(BadReply, match="has no messages: read it with format=chunks"):
        follow(reader(origin, stream=name))


def test_json_as_chunks_is_arrays(origin: Beside, stream: str) -> None:
    origin.append(stream, *[{"n": number} for number in range(100)])
    batches, _ = follow(reader(origin, _CHUNKS, stream=stream, format="chunks", chunkBytes="50"))
    assert [m["n"] for row in batches[0] for m in json.loads(row["value"])] == list(range(100))
    assert len(batches[0]) > 10


# -- bounds


def test_a_bound_is_shared_and_starves_none(origin: Beside, stream: str) -> None:
    names = [f"{stream}/{number}" for number in range(5)]
    for name in names:
        origin.create(name)
        origin.append(name, *range(40))
    bounded = reader(origin, streams=",".join(names), maxRowsPerTrigger="3")
    at = bounded.initialOffset()
    seen: set[str] = set()
    for _ in range(2):
        end = through_json(bounded.latestOffset(at, bounded.getDefaultReadLimit()))
        batch = rows(bounded, at, end)
        assert len(batch) == 3
        seen |= {row["stream"] for row in batch}
        at = end
    assert seen == set(names)


def test_bytes_bound_a_batch_but_never_to_nothing(origin: Beside, stream: str) -> None:
    origin.append(stream, *["x" * 50 for _ in range(20)], "y" * 500, *["z" * 50 for _ in range(5)])
    bounded = reader(origin, stream=stream, maxBytesPerTrigger="120")
    assert isinstance(bounded.getDefaultReadLimit(), ReadMaxBytes)
    batches, _ = follow(bounded)
    assert values(batches) == ["x" * 50] * 20 + ["y" * 500] + ["z" * 50] * 5
    assert [len(batch) for batch in batches] == [2] * 10 + [1] + [2, 2, 1]


def test_available_now_stops_where_the_streams_were(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(10))
    bounded = reader(origin, stream=stream, maxRowsPerTrigger="4")
    bounded.prepareForTriggerAvailableNow()
    origin.append(stream, *range(10, 20))
    batches, at = follow(bounded)
    assert values(batches) == list(range(10))
    assert values(follow(reader(origin, stream=stream), at)[0]) == list(range(10, 20))


def test_lag_is_reported(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(10))
    tail = origin.do(lambda origin: origin.store.get(f"/{stream}", 0.0).tail.token)
    bounded = reader(origin, stream=stream)
    assert bounded.reportLatestOffset() is None
    at = through_json(bounded.latestOffset(bounded.initialOffset(), ReadMaxRows(4)))
    # Four of ten messages are read, each a byte with what separates it; "4,5,6,7,8,9" and a bracket are left.
    left = {"behind": 1, "lagBytes": 12, "isLagExact": True}
    assert bounded.reportLatestOffset() == {"streams": {stream: tail}, **left}
    bounded.latestOffset(at, ReadAllAvailable())
    none = {"behind": 0, "lagBytes": 0, "isLagExact": True}
    assert bounded.reportLatestOffset() == {"streams": {stream: tail}, **none}


@pytest.mark.parametrize("content_type", [JSON, "text/plain", "application/octet-stream"])
def test_lag_is_a_lower_bound_while_replies_end_before_the_tail(origin: Beside, content_type: str) -> None:
    name = f"t/lag/{content_type}"
    origin.create(name, content_type)
    lines = b"".join(b"%d\n" % number for number in range(1000))
    body = b"[" + lines[:-1].replace(b"\n", b",") + b"]" if content_type == JSON else lines
    assert origin.ask("POST", name, {"Content-Type": content_type}, body) in (200, 204)
    is_bytes = content_type == "application/octet-stream"
    bounded = reader(
        origin, _CHUNKS if is_bytes else MESSAGES, stream=name, format="chunks" if is_bytes else "messages"
    )
    at, lags = bounded.initialOffset(), []
    for _ in range(1000):
        end = through_json(bounded.latestOffset(at, ReadMaxBytes(97)))
        if end == at:
            break
        at = end
        report = bounded.reportLatestOffset()
        assert report is not None
        lags.append((report["lagBytes"], report["isLagExact"]))
    left = [len(body) - 97 * (number + 1) for number in range(len(lags))]
    assert all(lag <= most + 97 for (lag, _), most in zip(lags, left, strict=True))
    assert [is_exact for _, is_exact in lags] == sorted(is_exact for _, is_exact in lags)
    assert (lags[0][1], lags[-1]) == (False, (0, True))


def test_a_query_that_finds_nothing_pauses_for_a_second_at_most(origin: Beside, stream: str) -> None:
    clock = Hands()
    given = {"url": origin.url, "stream": stream, "startingOffsets": "earliest"}
    _running.append(StreamReader(MESSAGES, read_options(given, is_streaming=True), clock))
    idle = _running[-1]
    at = idle.initialOffset()

    def reads() -> int:
        return origin.do(lambda origin: sum(origin.counters.requests.values()))

    def look() -> bool:
        before = reads()
        assert idle.latestOffset(at, ReadAllAvailable()) == at
        return reads() > before

    looked: list[float] = []
    while clock.at < 10:
        if look():
            looked.append(clock.at)
        clock.at += 0.01
    assert len(looked) < 20
    assert max(later - earlier for earlier, later in pairwise(looked)) <= 1.02

    clock.at += 1
    origin.append(stream, 1)
    end = through_json(idle.latestOffset(at, ReadAllAvailable()))
    assert values([rows(idle, at, end)]) == [1]
    # News end the pauses.
    at = end
    assert look()


# -- what does not stay as it was


def test_a_tail_that_cannot_be_had_for_the_report_does_not_end_the_query(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(50))
    bounded = reader(origin, stream=stream, maxRowsPerTrigger="5")
    bounded.latestOffset(bounded.initialOffset(), ReadMaxRows(5))
    origin.do(lambda origin: origin.faults.status(400, path=f"/{stream}", times=1, kind="head"))
    report = bounded.reportLatestOffset()
    assert report is not None
    assert report["behind"] == 1


def test_a_closed_stream_is_not_asked_again(origin: Beside, stream: str) -> None:
    origin.append(stream, 1)
    origin.close(stream)
    closed = reader(origin, stream=stream)
    batches, at = follow(closed)
    assert values(batches) == [1]
    before = origin.do(lambda origin: sum(origin.counters.requests.values()))
    assert closed.latestOffset(at, ReadAllAvailable()) == at
    assert origin.do(lambda origin: sum(origin.counters.requests.values())) == before


@pytest.mark.parametrize("way", ["deleted", "anew", "shorter", "410"])
def test_what_is_lost_is_an_error_or_passed_over(origin: Beside, stream: str, way: str) -> None:
    origin.append(stream, *range(20))
    _, at = follow(reader(origin, stream=stream))
    if way == "410":
        fault = origin.do(lambda origin: origin.faults.status(410, kind=Kind.CATCHUP, path=f"/{stream}", times=2))
    else:
        assert origin.ask("DELETE", stream) == 204
    if way in ("anew", "shorter"):
        origin.create(stream)
        # Of the same lengths, so that every token is one of the new stream too.
        origin.append(stream, *([7] * 3 if way == "shorter" else range(20)[::-1]))
        origin.append(stream, *(range(2) if way == "anew" else ()), 5) if way == "anew" else None
    with pytest.raises(DataLost, match="failOnDataLoss=false continues with the available data") as lost:
        follow(reader(origin, stream=stream), at)
    assert "\n" not in str(lost.value)
    assert stream in str(lost.value)
    batches, _ = follow(reader(origin, stream=stream, failOnDataLoss="false"), at)
    match way:
        case "deleted":
            assert batches == []
        case "410":
            origin.do(lambda origin: fault.remove())
            assert values(batches) == list(range(20))
        case "anew":
            assert values(batches) == [*range(20)[::-1], 0, 1, 5]
            assert batches[0][0]["pos"] == 20
        case _:
            assert values(batches) == [7] * 3


def test_a_stream_made_anew_between_plan_and_read_fails_the_task(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(20))
    planned = reader(origin, stream=stream, spoolBytes="0")
    start = planned.initialOffset()
    end = through_json(planned.latestOffset(start, ReadAllAvailable()))
    origin.ask("DELETE", stream)
    origin.create(stream)
    origin.append(stream, *range(20)[::-1])
    with pytest.raises(DataLost, match="differs from what it was when the batch was planned"):
        rows(planned, start, end)


def test_a_stream_that_was_never_there_is_an_error_where_it_was_named(origin: Beside) -> None:
    with pytest.raises(DataLost, match=r"stream t/none .*: 404 .*failOnDataLoss=false waits"):
        follow(reader(origin, stream="t/none"))
    assert follow(reader(origin, stream="t/none", failOnDataLoss="false"))[0] == []


def test_formats_that_count_otherwise_do_not_share_a_checkpoint(origin: Beside, stream: str) -> None:
    origin.append(stream, 1)
    _, at = follow(reader(origin, stream=stream))
    with pytest.raises(BadOption, match="begin with a new checkpoint"):
        follow(reader(origin, _CHUNKS, stream=stream, format="chunks"), at)


@pytest.mark.parametrize("fault", ["drop", "truncate", "status"])
def test_an_origin_that_breaks_off_loses_nothing(origin: Beside, stream: str, fault: str) -> None:
    for begin in range(0, 200, 50):
        origin.append(stream, *range(begin, begin + 50))

    def break_off() -> None:
        kind, path = Kind.CATCHUP, f"/{stream}"
        match fault:
            case "drop":
                origin.do(lambda origin: origin.faults.drop(90, kind=kind, path=path, times=3))
            case "truncate":
                origin.do(lambda origin: origin.faults.truncate(90, kind=kind, path=path, times=3))
            case _:
                origin.do(lambda origin: origin.faults.status(503, kind=kind, path=path, times=3))

    broken = reader(origin, stream=stream, spoolBytes="0")
    start = broken.initialOffset()
    break_off()
    end = through_json(broken.latestOffset(start, ReadAllAvailable()))
    break_off()
    assert values([rows(broken, start, end)]) == list(range(200))
    origin.do(lambda origin: origin.faults.clear())


def test_an_origin_that_restarts_is_waited_for(stream: str) -> None:
    with beside() as origin:
        origin.create(stream)
        origin.append(stream, *range(10))
        waiting = reader(origin, stream=stream)
        batches, at = follow(waiting)
        origin.append(stream, 10)
        origin.stop()
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(follow(waiting, at)[0]))
        asking.start()
        origin.start()
        asking.join(60)
        assert values(found[0]) == [10]
        assert values(batches) == list(range(10))
        waiting.stop()


# -- which streams


def test_a_prefix_of_a_stream_of_names(origin: Beside, stream: str) -> None:
    for name in ("a/1", "a/2", "b/1"):
        origin.create(f"{stream}/{name}")
        origin.append(f"{stream}/{name}", name)
    origin.append(stream, f"{stream}/a/1", {"stream": f"{stream}/b/1"})
    prefixed = reader(origin, streamsPrefix=f"{stream}/a/", catalogueStream=stream)
    batches, at = follow(prefixed)
    assert values(batches) == ["a/1"]
    origin.append(stream, f"{stream}/a/2", {"stream": f"{stream}/a/1", "deleted": True})
    origin.append(f"{stream}/a/1", "not read")
    batches, _ = follow(prefixed, at)
    assert values(batches) == ["a/2"]


def test_a_prefix_of_an_origins_own_record_of_its_streams(origin: Beside, stream: str) -> None:
    def event(operation: str, name: str, kind: str = "stream") -> dict[str, object]:
        return {"type": kind, "key": f"{stream}/{name}", "headers": {"operation": operation}}

    for name in ("a", "b", "c"):
        origin.create(f"{stream}/{name}")
        origin.append(f"{stream}/{name}", name)
    origin.append(stream, event("insert", "a"), event("insert", "b"), event("insert", "c", "user"))
    origin.append(stream, {"headers": {"control": "snapshot-end"}}, event("update", "a"), event("delete", "b"))
    batches, _ = follow(reader(origin, streamsPrefix=f"{stream}/", catalogueStream=stream))
    assert values(batches) == ["a"]


def test_available_now_tells_of_a_stream_that_is_gone(origin: Beside, stream: str) -> None:
    origin.create(f"{stream}/1")
    origin.append(f"{stream}/1", 1)
    origin.append(stream, f"{stream}/1")
    _, at = follow(reader(origin, streamsPrefix=f"{stream}/", catalogueStream=stream))
    assert origin.ask("DELETE", f"{stream}/1") == 204
    now = reader(origin, streamsPrefix=f"{stream}/", catalogueStream=stream)
    now.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match="404"):
        follow(now, at)


def test_planning_reads_a_stream_once_and_tasks_read_the_spool(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(10))

    def reads() -> int:
        return origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP])

    before = reads()
    batches, _ = follow(reader(origin, stream=stream))
    assert values(batches) == list(range(10))
    # The chain's one reply, and the look behind the batch that finds nothing.
    assert reads() - before == 2


def test_the_spool_of_a_batch_outlives_the_commit_of_the_one_before(origin: Beside, stream: str) -> None:
    origin.append(stream, *range(10))
    planned = reader(origin, stream=stream, maxRowsPerTrigger="5")
    first = planned.latestOffset(planned.initialOffset(), ReadMaxRows(5))
    assert len(rows(planned, planned.initialOffset(), first)) == 5
    # Spark commits a batch when it has written down the end of the next.
    second = planned.latestOffset(first, ReadMaxRows(5))
    planned.commit(through_json(first))
    before = origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP])
    assert [row["pos"] for row in rows(planned, first, second)] == [5, 6, 7, 8, 9]
    assert origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP]) == before


def test_many_streams_under_a_bound_smaller_than_a_message_for_each_are_not_asked_again_for_every_message(
    origin: Beside, stream: str
) -> None:
    names = [f"{stream}/{number}" for number in range(40)]
    for name in names:
        origin.create(name)
        origin.append(name, "x" * 123)
    before = origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP])
    batches, _ = follow(reader(origin, streams=",".join(names), maxBytesPerTrigger="4000"))
    assert sum(map(len, batches)) == 40
    assert all(sum(len(row["value"]) for row in batch) <= 4000 for batch in batches)
    assert origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP]) - before < 40 * 12


def test_a_long_reply_is_read_once_by_many_batches(request: pytest.FixtureRequest) -> None:
    with beside() as origin:
        origin.create("long")
        origin.append("long", *["x" * 200] * 2_000)
        bounded = reader(origin, stream="long", maxRowsPerTrigger="100")
        bounded.prepareForTriggerAvailableNow()
        origin.append("long", "behind the target")
        batches, _ = follow(bounded)
        assert [len(batch) for batch in batches] == [100] * 20
        reads = origin.do(lambda origin: origin.counters.requests[Kind.CATCHUP])
        # One for the messages, two to find the target in it, and for each batch but the first a look at who it is.
        assert reads == 1 + 2 + 19
        bounded.stop()
