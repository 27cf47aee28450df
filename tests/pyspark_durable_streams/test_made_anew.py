"""Streams that were deleted and created again, before the streaming reader: an error, or read anew, never silence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructType

from gateway.origin.app import OriginSettings
from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.errors import BadOption, DataLost
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader
from tests.pyspark_durable_streams.beside import Beside, beside
from tests.pyspark_durable_streams.hands import Hands

_SCHEMA: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", StringType())


@pytest.fixture(scope="module")
def origin() -> Iterator[Beside]:
    with beside(OriginSettings(max_chunk_bytes=300)) as running:
        yield running


@pytest.fixture
def stream(origin: Beside, request: pytest.FixtureRequest) -> str:
    name = f"a/{re.sub(r'[^a-z0-9]+', '-', request.node.name)}"
    origin.create(name)
    return name


_running: Final[list[StreamReader]] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    while _running:
        _running.pop().stop()


def reader(origin: Beside, mode: str = "continuous", clock: Hands | None = None, **options: str) -> StreamReader:
    given = {"url": origin.url, "startingOffsets": "earliest", "maxPollDelay": "0s", **options}
    _running.append(StreamReader(_SCHEMA, read_options(given, is_streaming=True), clock=clock))
    if mode == "availableNow":
        _running[-1].prepareForTriggerAvailableNow()
    return _running[-1]


def follow(reader: StreamReader, start: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """All values until there is nothing new, and the last offset."""
    at = start if start is not None else reader.initialOffset()
    found: list[Any] = []
    for _ in range(100):
        end = json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
        if end == at:
            return found, at
        for task in reader.partitions(at, end):
            for batch in reader.read(task):
                found += [json.loads(row["value"]) for row in batch.to_pylist()]
        reader.commit(end)
        at = end
    raise AssertionError("no end")


def make_anew(origin: Beside, stream: str, *values: object) -> None:
    assert origin.ask("DELETE", stream) == 204
    origin.create(stream)
    if values:
        origin.append(stream, *values)


modes = pytest.mark.parametrize("mode", ["continuous", "availableNow"])


@modes
@pytest.mark.parametrize("bound", ["1000", "7"])
@pytest.mark.parametrize("left", [8, 0])
def test_a_shorter_stream_is_an_error_or_read_anew(
    origin: Beside, stream: str, mode: str, bound: str, left: int
) -> None:
    origin.append(stream, *range(20))
    values, at = follow(reader(origin, mode, stream=stream, maxRowsPerTrigger=bound))
    assert values == list(range(20))
    make_anew(origin, stream, *range(100, 100 + left))
    with pytest.raises(DataLost, match="failOnDataLoss=false continues with the available data") as lost:
        follow(reader(origin, mode, stream=stream, maxRowsPerTrigger=bound), at)
    assert "\n" not in str(lost.value)
    now = reader(origin, mode, stream=stream, failOnDataLoss="false", maxRowsPerTrigger=bound)
    assert follow(now, at)[0] == list(range(100, 100 + left))


@modes
def test_a_stream_that_ends_within_the_reply_that_was_read_is_an_error(mode: str) -> None:
    # One reply for all: the place is a number of messages after the stream's beginning.
    with beside() as origin:
        origin.create("s")
        origin.append("s", *range(20))
        bounded = reader(origin, stream="s", maxRowsPerTrigger="15")
        at = json.loads(json.dumps(bounded.latestOffset(bounded.initialOffset(), bounded.getDefaultReadLimit())))
        make_anew(origin, "s", *range(8))
        with pytest.raises(DataLost, match="stream s"):
            follow(reader(origin, mode, stream="s"), at)
        again, _ = follow(reader(origin, mode, stream="s", failOnDataLoss="false"), at)
        assert again == list(range(8))
        while _running:
            _running.pop().stop()


@modes
def test_a_stream_as_long_as_before_is_an_error(origin: Beside, stream: str, mode: str) -> None:
    origin.append(stream, *range(10, 30))
    _, at = follow(reader(origin, mode, stream=stream))
    assert follow(reader(origin, mode, stream=stream), at) == ([], at)
    make_anew(origin, stream, *range(30, 50))
    with pytest.raises(DataLost, match="deleted and re-created"):
        follow(reader(origin, mode, stream=stream), at)


@modes
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("way", ["with its last append", "later"])
@pytest.mark.parametrize("values", [[5], list(range(50, 53)), list(range(50, 90))])
def test_a_closed_stream_that_is_made_anew_is_read_again(
    origin: Beside, stream: str, mode: str, fails: str, way: str, values: list[int]
) -> None:
    origin.append(stream, 1, 2, 3)
    at = None
    if way == "later":
        _, at = follow(reader(origin, stream=stream))
    origin.close(stream)
    _, at = follow(reader(origin, mode, stream=stream, failOnDataLoss=fails), at)
    assert follow(reader(origin, mode, stream=stream, failOnDataLoss=fails), at) == ([], at)
    make_anew(origin, stream, *values)
    found, at = follow(reader(origin, mode, stream=stream, failOnDataLoss=fails), at)
    assert found == values
    origin.append(stream, "more")
    assert follow(reader(origin, mode, stream=stream, failOnDataLoss=fails), at)[0] == ["more"]


@modes
def test_a_closed_stream_that_was_read_to_its_end_may_be_deleted(origin: Beside, stream: str, mode: str) -> None:
    origin.append(stream, 1)
    origin.close(stream)
    _, at = follow(reader(origin, mode, stream=stream))
    assert origin.ask("DELETE", stream) == 204
    assert follow(reader(origin, mode, stream=stream), at) == ([], at)


def test_a_query_that_goes_on_looks_at_a_closed_stream_once_a_minute(origin: Beside, stream: str) -> None:
    clock = Hands()
    origin.append(stream, 1)
    origin.close(stream)
    going = reader(origin, clock=clock, stream=stream)
    _, at = follow(going)
    make_anew(origin, stream, 2)
    before = origin.do(lambda origin: sum(origin.counters.requests.values()))
    clock.at += 59
    assert going.latestOffset(at, ReadAllAvailable()) == at
    assert origin.do(lambda origin: sum(origin.counters.requests.values())) == before
    clock.at += 1
    assert follow(going, at)[0] == [2]


# -- tokens that the user gives


@modes
@pytest.mark.parametrize("token", ["zzz", "nonsense", "0", "9" * 40, "0000000000000009_0000000000000999"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_unknown_starting_offset_is_an_error(origin: Beside, stream: str, mode: str, token: str, fails: str) -> None:
    origin.append(stream, 1, 2)
    starting = json.dumps({stream: token})
    with pytest.raises(BadOption, match=f"option startingOffsets: stream {stream} has no offset {token}"):
        follow(reader(origin, mode, stream=stream, startingOffsets=starting, failOnDataLoss=fails))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "zzz"}, "option startingOffsets: stream .* has no offset zzz"),
        ({"startingOffsets": "tail", "endingOffsets": "middle"}, "option endingOffsets: .* is before startingOffsets"),
    ],
)
def test_an_unknown_offset_of_a_batch_is_an_error(
    origin: Beside, stream: str, options: dict[str, str], said: str
) -> None:
    tokens = {}
    for name in ("middle", "tail"):
        origin.append(stream, 1, 2)
        tokens[name] = origin.do(lambda origin: origin.store.get(f"/{stream}", 0.0).tail.token)
    given = {key: json.dumps({stream: tokens.get(value, value)}) for key, value in options.items()}
    with pytest.raises(BadOption, match=said):
        BatchReader(
            _SCHEMA, read_options({"url": origin.url, "stream": stream, **given}, is_streaming=False)
        ).partitions()
