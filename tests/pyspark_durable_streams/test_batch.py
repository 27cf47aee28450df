"""The batch reader as Spark calls it, before a real origin and without a Java, for one task and for many."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gateway.origin.app import OriginSettings
from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.options import read_options
from tests.pyspark_durable_streams.beside import JSON, Beside, beside

_MESSAGES: Final = (
    StructType()
    .add("stream", StringType())
    .add("pos", LongType())
    .add("offset", StringType())
    .add("value", BinaryType())
)
_CHUNKS: Final = (
    StructType()
    .add("stream", StringType())
    .add("pos", LongType())
    .add("count", LongType())
    .add("offset", StringType())
    .add("value", BinaryType())
)
Row = dict[str, Any]


@pytest.fixture(scope="module", params=[300, 1 << 20], ids=["small replies", "large replies"])
def origin(request: pytest.FixtureRequest) -> Iterator[Beside]:
    with beside(OriginSettings(max_chunk_bytes=request.param)) as running:
        yield running


@pytest.fixture(scope="module", params=["1", "9"], ids=["one task", "many tasks"])
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"minPartitions": request.param}


_named: Final[list[str]] = []


def new_stream(origin: Beside, content_type: str = JSON) -> str:
    _named.append(f"b/{len(_named)}")
    origin.create(_named[-1], content_type)
    return _named[-1]


def reader(origin: Beside, **options: str) -> BatchReader:
    schema = _CHUNKS if options.get("format") == "chunks" else _MESSAGES
    return BatchReader(schema, read_options({"url": origin.url, **options}, is_streaming=False))


def rows(reader: BatchReader, tasks: Sequence[InputPartition]) -> list[Row]:
    there = pickle.loads(pickle.dumps(reader))
    return [
        row for task in tasks for batch in there.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()
    ]


def values(found: Sequence[Row], stream: str) -> list[Any]:
    mine = [row for row in found if row["stream"] == stream]
    assert [row["pos"] for row in mine] == list(range(len(mine)))
    return [json.loads(row["value"]) for row in mine]


def test_what_was_there_when_it_was_planned(origin: Beside, way: dict[str, str]) -> None:
    streams = [new_stream(origin) for _ in range(3)]
    for number, stream in enumerate(streams):
        origin.append(stream, *range(number, number + 200))
    source = reader(origin, streams=",".join(streams), **way)
    tasks = source.partitions()
    for stream in streams:
        origin.append(stream, *range(1_000, 1_150))
    first = rows(source, tasks)
    for stream in streams:
        origin.append(stream, *range(2_000, 2_050))
    for found in (first, rows(source, tasks)):
        for number, stream in enumerate(streams):
            assert values(found, stream) == list(range(number, number + 200))


def test_an_offset_is_one_that_the_row_is_to_be_had_again_from(origin: Beside, way: dict[str, str]) -> None:
    stream = new_stream(origin)
    origin.append(stream, *range(300))
    source = reader(origin, stream=stream, **way)
    for row in rows(source, source.partitions())[::37]:
        again = reader(origin, stream=stream, startingOffsets=json.dumps({stream: row["offset"]}), **way)
        assert row["value"] in [found["value"] for found in rows(again, again.partitions())]


@pytest.mark.parametrize("is_beyond", [False, True])
def test_an_ending_offset(origin: Beside, way: dict[str, str], is_beyond: bool) -> None:
    stream = new_stream(origin)
    origin.append(stream, *range(40))
    token = origin.do(lambda origin: origin.store.get(f"/{stream}", 0.0).tail.token)
    origin.append(stream, *range(40, 90))
    ending = json.dumps({stream: "9" * 40 if is_beyond else token})
    source = reader(origin, stream=stream, endingOffsets=ending, **way)
    assert values(rows(source, source.partitions()), stream) == list(range(90 if is_beyond else 40))


def test_chunks_are_cut_by_their_bytes_alone(origin: Beside, way: dict[str, str]) -> None:
    stream = new_stream(origin)
    origin.append(stream, *[{"n": number, "pad": "x" * (number % 97)} for number in range(400)])
    source = reader(origin, stream=stream, format="chunks", chunkBytes="700", **way)
    tasks = source.partitions()
    first = rows(source, tasks)
    origin.append(stream, {"n": 400})
    second = rows(source, tasks)
    assert [(row["pos"], row["count"], row["value"]) for row in first] == [
        (row["pos"], row["count"], row["value"]) for row in second
    ]
    assert [one["n"] for row in first for one in json.loads(row["value"])] == list(range(400))
    assert [row["pos"] for row in first] == [sum(row["count"] for row in first[:at]) for at in range(len(first))]
    assert len(first) > 10
    for row in first[::5]:
        starting = json.dumps({stream: row["offset"]})
        again = reader(origin, stream=stream, format="chunks", startingOffsets=starting, **way)
        begun = json.loads(b"[" + b",".join(r["value"][1:-1] for r in rows(again, again.partitions())) + b"]")
        assert json.loads(row["value"])[0] in begun


def test_a_stream_that_was_made_anew_since_is_an_error(origin: Beside, way: dict[str, str]) -> None:
    stream, other = new_stream(origin), new_stream(origin)
    for name in (stream, other):
        origin.append(name, *range(60))
    source = reader(origin, streams=f"{stream},{other}", spoolBytes="0", **way)
    tasks = source.partitions()
    assert origin.ask("DELETE", stream) == 204
    with pytest.raises(DataLost, match=f"stream {stream}"):
        rows(source, tasks)
    origin.create(stream)
    origin.append(stream, 7)
    with pytest.raises(DataLost, match=f"stream {stream}"):
        rows(source, tasks)
    # Without failOnDataLoss the other stream is read all the same.
    tolerant = reader(origin, streams=f"{stream},{other}", spoolBytes="0", failOnDataLoss="false", **way)
    assert values([row for row in rows(tolerant, tasks) if row["stream"] == other], other) == list(range(60))


def test_what_is_left_of_a_lost_stream_is_in_no_chunk_of_another(origin: Beside, way: dict[str, str]) -> None:
    stream, other = new_stream(origin), new_stream(origin)
    origin.append(stream, *[f"A{number}" for number in range(200)])
    origin.append(other, *[f"B{number}" for number in range(5)])
    options = {"streams": f"{stream},{other}", "spoolBytes": "0", "format": "chunks", "failOnDataLoss": "false"}
    source = reader(origin, **options, **way)
    tasks = source.partitions()
    assert origin.ask("DELETE", stream) == 204
    origin.create(stream)
    origin.append(stream, *[f"A{number}" for number in range(90)])
    found = rows(source, tasks)
    assert {text[0] for row in found if row["stream"] == stream for text in json.loads(row["value"])} <= {"A"}
    (of_other,) = [row for row in found if row["stream"] == other]
    assert (of_other["pos"], json.loads(of_other["value"])) == (0, [f"B{number}" for number in range(5)])


def test_a_stream_that_is_not_there(origin: Beside, way: dict[str, str]) -> None:
    stream = new_stream(origin)
    origin.append(stream, 1)
    with pytest.raises(DataLost, match=r"stream b/none: 404.*failOnDataLoss=false"):
        reader(origin, streams=f"{stream},b/none", **way).partitions()
    tolerant = reader(origin, streams=f"{stream},b/none", failOnDataLoss="false", **way)
    assert values(rows(tolerant, tolerant.partitions()), stream) == [1]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_lines_and_bytes_end_where_the_stream_did(origin: Beside, way: dict[str, str], data: st.DataObject) -> None:
    stream = new_stream(origin, "text/plain")
    pieces = st.lists(st.binary(min_size=1, max_size=200).map(lambda b: b.replace(b"\x00", b"\n")), max_size=6)
    before, after = data.draw(pieces), data.draw(pieces)
    for piece in before:
        assert origin.ask("POST", stream, {"Content-Type": "text/plain"}, piece) == 204
    as_chunks = data.draw(st.booleans())
    options = {"format": "chunks", "chunkBytes": "64"} if as_chunks else {"format": "messages"}
    source = reader(origin, stream=stream, **options, **way)
    tasks = source.partitions()
    for piece in after:
        assert origin.ask("POST", stream, {"Content-Type": "text/plain"}, piece) == 204
    found, whole = [row["value"] for row in rows(source, tasks)], b"".join(before)
    if as_chunks:
        assert b"".join(found) == whole
        assert all(len(value) <= 64 for value in found)
    else:
        assert found == whole.replace(b"\r\n", b"\n").split(b"\n")[:-1]
