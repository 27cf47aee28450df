"""Where a stream is entered by time, and batches that wait until they are worth it, before a real origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from gateway.origin.app import OriginSettings
from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader
from tests.pyspark_durable_streams.beside import Beside, beside
from tests.pyspark_durable_streams.hands import Hands

_SCHEMA: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", StringType())
_NOON_MS: Final = 1_790_251_200_000
"""2026-09-24T12:00:00Z."""


@pytest.fixture(scope="module", params=[300, 1 << 20], ids=["small replies", "one reply"])
def origin(request: pytest.FixtureRequest) -> Iterator[Beside]:
    with beside(OriginSettings(max_chunk_bytes=request.param)) as running:
        yield running


@pytest.fixture
def stream(origin: Beside, request: pytest.FixtureRequest) -> str:
    name = f"b/{re.sub(r'[^a-z0-9]+', '-', request.node.name)}"
    origin.create(name)
    return name


_running: Final[list[StreamReader]] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    while _running:
        _running.pop().stop()


def reader(origin: Beside, /, **options: str) -> StreamReader:
    return timed(origin, Hands(), **options)


def timed(origin: Beside, clock: Hands, /, **options: str) -> StreamReader:
    parsed = read_options({"url": origin.url, "maxPollDelay": "0s", **options}, is_streaming=True)
    _running.append(StreamReader(_SCHEMA, parsed, clock=clock))
    return _running[-1]


def step(reader: StreamReader, at: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The messages of the next batch, and its end; none, and where it began, if there is none."""
    end = json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
    found = read(reader, reader.partitions(at, end))
    if end != at:
        reader.commit(end)
    return found, end


def read(reader: StreamReader | BatchReader, tasks: Any) -> list[Any]:
    return [
        (row["pos"], json.loads(row["value"]))
        for task in tasks
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


def message(number: int, form: str) -> dict[str, object]:
    at = _NOON_MS + 1_000 * number
    match form:
        case "envelope":
            return {"seq_num": number, "timestamp": at, "headers": [], "body": "x"}
        case "access log":
            return {"v": 1, "time": at / 1_000, "id": number}
        case "text":
            return {"time": f"2026-09-24T12:00:{number:02}Z"}
    return {"sent": {"time": 1}, "created": at}


forms = pytest.mark.parametrize("form", ["envelope", "access log", "text", "own"])


@forms
@pytest.mark.parametrize(("when", "first"), [(0, 0), (_NOON_MS, 0), (_NOON_MS + 30_001, 31), (_NOON_MS + 31_000, 31)])
def test_a_stream_is_entered_at_a_time(origin: Beside, stream: str, form: str, when: int, first: int) -> None:
    messages = [message(number, form) for number in range(60)]
    for begin in range(0, 60, 10):
        origin.append(stream, *messages[begin : begin + 10])
    options = {"stream": stream, "startingTimestamp": str(when)}
    if form == "own":
        options["timestampField"] = "created"
    expected = list(enumerate(messages[first:]))
    going = reader(origin, **options)
    found, at = step(going, going.initialOffset())
    assert found == expected
    bounded = reader(origin, maxRowsPerTrigger="7", **options)
    bounded.prepareForTriggerAvailableNow()
    origin.append(stream, {"any": 1})
    parts: list[Any] = []
    there = bounded.initialOffset()
    while (came := step(bounded, there))[1] != there:
        parts, there = parts + came[0], came[1]
    assert parts == expected
    assert step(reader(origin, **options), at)[0] == [(60 - first, {"any": 1})]
    now = BatchReader(_SCHEMA, read_options({"url": origin.url, **options}, is_streaming=False))
    assert read(now, now.partitions()) == [*expected, (60 - first, {"any": 1})]


def test_a_time_may_be_written_out_and_each_stream_may_have_its_own(origin: Beside, stream: str) -> None:
    other = f"{stream}/2"
    origin.create(other)
    for name in (stream, other):
        origin.append(name, *[message(number, "envelope") for number in range(10)])
    for form, own in (("2026-09-24T12:00:07Z", {}), ("", {stream: _NOON_MS + 7_000, other: _NOON_MS + 9_000})):
        given = {"startingOffsetsByTimestamp": json.dumps(own)} if own else {"startingTimestamp": form}
        going = reader(origin, streams=f"{stream},{other}", **given)
        found, _ = step(going, going.initialOffset())
        assert len(found) == (3 + 1 if own else 3 + 3)


def test_before_its_time_has_come_a_stream_is_entered_at_its_end(origin: Beside, stream: str) -> None:
    origin.append(stream, message(1, "envelope"))
    options = {"stream": stream, "startingTimestamp": str(_NOON_MS + 60_000)}
    going = reader(origin, **options)
    found, at = step(going, going.initialOffset())
    assert found == []
    origin.append(stream, message(70, "envelope"))
    # A driver that has just been started goes on from the stored end.
    assert [value["seq_num"] for _, value in step(reader(origin, **options), at)[0]] == [70]


@pytest.mark.parametrize("value", [5, "text", {"other": 1}, {"time": "noon"}, {"timestamp": None}])
def test_a_stream_that_tells_no_time_is_an_error(origin: Beside, stream: str, value: object) -> None:
    origin.append(stream, value)
    going = reader(origin, stream=stream, startingTimestamp=str(_NOON_MS))
    with pytest.raises(BadOption, match=r"option startingTimestamp: stream b/\S+ tells no time.*timestampField"):
        step(going, going.initialOffset())


def test_messages_without_a_time_are_passed_over_in_the_search(origin: Beside, stream: str) -> None:
    messages = [{"s2_record": {}}, message(1, "envelope"), {"s2_record": {}}, message(5, "envelope"), {"s2_record": {}}]
    origin.append(stream, *messages)
    going = reader(origin, stream=stream, startingTimestamp=str(_NOON_MS + 2_000))
    assert [value for _, value in step(going, going.initialOffset())[0]] == messages[3:]


@forms
@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (None, 0, 0, 0),
        (None, _NOON_MS + 30_001, 0, 31),
        (None, _NOON_MS + 31_000, 0, 31),
        (None, _NOON_MS + 3_600_000, 0, 60),
        (_NOON_MS + 12_000, _NOON_MS + 47_500, 12, 48),
        (_NOON_MS + 12_000, _NOON_MS + 12_000, 12, 12),
        (_NOON_MS + 90_000, _NOON_MS + 95_000, 60, 60),
    ],
)
def test_a_batch_ends_before_a_time(
    origin: Beside, stream: str, form: str, start: int | None, end: int, first: int, last: int
) -> None:
    messages = [message(number, form) for number in range(60)]
    for begin in range(0, 60, 10):
        origin.append(stream, *messages[begin : begin + 10])
    options = {"stream": stream, "endingTimestamp": str(end)}
    if start is not None:
        options["startingTimestamp"] = str(start)
    if form == "own":
        options["timestampField"] = "created"
    assert batch(origin, **options) == list(enumerate(messages[first:last]))


def test_each_stream_may_end_at_its_own_time(origin: Beside, stream: str) -> None:
    other = f"{stream}/2"
    origin.create(other)
    for name in (stream, other):
        origin.append(name, *[message(number, "envelope") for number in range(10)])
    own = json.dumps({stream: _NOON_MS + 7_000, other: _NOON_MS + 2_000})
    found = batch(origin, streams=f"{stream},{other}", endingOffsetsByTimestamp=own)
    assert [value["seq_num"] for _, value in found] == [*range(7), *range(2)]
    found = batch(origin, stream=stream, startingOffsets="earliest", endingTimestamp="2026-09-24T12:00:04Z")
    assert [value["seq_num"] for _, value in found] == [0, 1, 2, 3]


def test_what_cannot_end_at_a_time_is_an_error(origin: Beside, stream: str) -> None:
    assert batch(origin, stream=stream, endingTimestamp="1") == []  # there is nothing yet
    origin.append(stream, 5)
    with pytest.raises(BadOption, match=r"option endingTimestamp: stream b/\S+ tells no time.*endingOffsets needs"):
        batch(origin, stream=stream, endingTimestamp=str(_NOON_MS))
    with pytest.raises(BadOption, match=r"option endingTimestamp: stream b/\S+: it is before startingTimestamp"):
        batch(origin, stream=stream, startingTimestamp="2000", endingTimestamp="1000")
    with pytest.raises(BadOption, match="option endingTimestamp is only for batches"):
        read_options({"url": "http://h", "stream": "s", "endingTimestamp": "1"}, is_streaming=True)
    for options, said in (
        ({"endingTimestamp": "noon"}, "option endingTimestamp: .* is expected, not noon"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "endingOffsets and endingTimestamp exclude"),
        ({"endingOffsetsByTimestamp": '{"t": 1}'}, "option endingOffsetsByTimestamp: every stream needs a time"),
    ):
        with pytest.raises(BadOption, match=said):
            read_options({"url": "http://h", "stream": "s", **options}, is_streaming=False)


def batch(origin: Beside, **options: str) -> list[Any]:
    """The messages of a batch read."""
    going = BatchReader(_SCHEMA, read_options({"url": origin.url, **options}, is_streaming=False))
    return read(going, going.partitions())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingTimestamp": "noon"}, "option startingTimestamp: .* is expected, not noon"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingOffsets and startingTimestamp exclude"),
        ({"startingOffsetsByTimestamp": '{"t": 1}'}, "option startingOffsetsByTimestamp: every stream needs a time"),
        ({"startingOffsetsByTimestamp": "[]"}, "option startingOffsetsByTimestamp: "),
        ({"timestampField": "x"}, "option timestampField requires"),
        ({"minOffsetsPerTrigger": "5", "maxRowsPerTrigger": "4"}, "minOffsetsPerTrigger exceeds maxRowsPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "option maxTriggerDelay requires minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: .* not soon"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        read_options({"url": "http://h", "stream": "s", **options}, is_streaming=True)


# -- batches that wait


@pytest.mark.parametrize("bound", ["1000", "5"])
def test_a_batch_waits_for_enough_messages(origin: Beside, stream: str, bound: str) -> None:
    clock = Hands()
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"}
    going = timed(origin, clock, stream=stream, maxRowsPerTrigger=bound, **options)
    origin.append(stream, 0)
    found, at = step(going, going.initialOffset())
    assert found == [(0, 0)]  # the first batch of a run does not wait
    for number in range(1, 5):
        origin.append(stream, number)
        assert step(going, at) == ([], at)
    origin.append(stream, 5, 6)
    found, at = step(going, at)
    assert [value for _, value in found] == ([1, 2, 3, 4, 5] if bound == "5" else [1, 2, 3, 4, 5, 6])
    assert [pos for pos, _ in found] == list(range(1, len(found) + 1))


def test_a_batch_waits_no_longer_than_told(origin: Beside, stream: str) -> None:
    clock = Hands()
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"}
    going = timed(origin, clock, stream=stream, **options)
    origin.append(stream, 0)
    _, at = step(going, going.initialOffset())
    origin.append(stream, 1)
    clock.at += 119
    assert step(going, at) == ([], at)
    origin.append(stream, 2)
    assert step(going, at) == ([], at)
    clock.at += 1
    found, at = step(going, at)
    assert [value for _, value in found] == [1, 2]
    origin.append(stream, 3)
    assert step(going, at) == ([], at)
    # Another run begins with a batch of what there is.
    assert step(timed(origin, clock, stream=stream, **options), at)[0] == [(3, 3)]


def test_available_now_waits_for_nothing(origin: Beside, stream: str) -> None:
    going = reader(origin, stream=stream, startingOffsets="earliest", minOffsetsPerTrigger="5")
    origin.append(stream, 0)
    _, at = step(going, going.initialOffset())
    origin.append(stream, 1)
    going.prepareForTriggerAvailableNow()
    assert step(going, at)[0] == [(1, 1)]


def test_what_is_read_while_a_batch_waits_is_read_once(origin: Beside, stream: str) -> None:
    going = reader(origin, stream=stream, startingOffsets="earliest", minOffsetsPerTrigger="100")
    origin.append(stream, 0)
    _, at = step(going, going.initialOffset())
    origin.append(stream, *["x" * 50 for _ in range(40)])
    assert step(going, at) == ([], at)

    def sent() -> int:
        return origin.do(lambda origin: origin.counters.total_body_bytes)

    before = sent()
    assert step(going, at) == ([], at)
    assert sent() - before < 500
