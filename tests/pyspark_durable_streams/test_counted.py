"""Planning by what a real gateway has counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from itertools import product
from math import inf
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.reading import Task
from tests.effort import some
from tests.pyspark_durable_streams.counted import (
    APPEND,
    CHUNKS,
    LONG,
    MESSAGE_BYTES,
    MESSAGES,
    PAD,
    append,
    batch,
    fill,
    following,
    numbers,
    rows,
    sent,
    walk,
)


def test_planning_reads_no_more_than_the_last_of_what_is_counted(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "plan")
    before = sent(urls, "plan")
    reader = batch(urls, "plan")
    tasks = reader.partitions()
    # The first reply is begun, and the last run is looked at, which is in another.
    assert sent(urls, "plan") - before < 9 << 20
    assert len(tasks) == 3
    assert numbers(rows(reader, tasks)) == list(range(LONG))
    # Without a catalogue it is read whole.
    before = sent(urls, "plan")
    plain = BatchReader(MESSAGES, read_options({"url": urls["gateway"], "stream": "plan"}, is_streaming=False))
    plain.partitions()
    assert sent(urls, "plan") - before >= LONG * MESSAGE_BYTES * 0.95


GUESSED_WRONG: Final[dict[str, Callable[[int], Any]]] = {
    "strings": lambda n: {"n": n, "pad": 'a "},{" and a },{ in a string' + PAD},
    "nested": lambda n: {"n": n, "items": [{"a": 1}, {"b": [{"c": {}}, {}]}], "pad": PAD},
    "line-breaks": lambda n: {"n": n, "é": "\n\u2028", "pad": PAD} if n % 2 else {"n": n},
}


@pytest.mark.parametrize(
    ("kind", "partitions"),
    some([("strings", 20), ("nested", 3), ("line-breaks", 20)], [*product(GUESSED_WRONG, (3, 20))]),
)
def test_elements_that_are_guessed_wrong_are_read_right(
    urls: Mapping[str, str], gateway: Client, kind: str, partitions: int
) -> None:
    name, make = f"guess/{kind}-{partitions}", GUESSED_WRONG[kind]
    fill(gateway, name, make=make)
    reader = batch(urls, name, minPartitions=str(partitions))
    found = rows(reader, reader.partitions())
    assert numbers(found) == list(range(LONG))
    assert [json.loads(row["value"]) for row in found[:10]] == [make(n) for n in range(10)]


def test_plain_objects_are_read_without_a_look_at_every_bracket(
    urls: Mapping[str, str], gateway: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(gateway, "plain")
    reader = batch(urls, "plain", minPartitions="5")
    tasks = reader.partitions()
    monkeypatch.setattr("pyspark_durable_streams.walk.Elements", None)
    counted = [task for task in tasks if isinstance(task, Task) and all(run.extent is None for run in task.runs)]
    assert len(counted) >= 4
    assert len(rows(reader, counted)) > LONG / 2


def test_a_guess_that_takes_many_for_one_reads_no_further_than_its_stretch(
    urls: Mapping[str, str], gateway: Client
) -> None:
    """Arrays of arrays with one object at each end: of each append one `},{` is seen."""

    def make(n: int) -> Any:
        return {"n": n} if n % APPEND in (0, APPEND - 1) else [n, PAD]

    fill(gateway, "arrays", make=make)
    reader = batch(urls, "arrays", minPartitions="20")
    tasks = reader.partitions()
    before = sent(urls, "arrays")
    assert rows(reader, tasks[:1])
    # What was wrong is read twice: a reply each, which is dropped.
    assert sent(urls, "arrays") - before < 0.6 * LONG * MESSAGE_BYTES
    assert [json.loads(row["value"]) for row in rows(reader, tasks)] == [make(n) for n in range(LONG)]


def test_chunks_of_bytes_are_planned_by_their_length(urls: Mapping[str, str], gateway: Client) -> None:
    data = bytes(range(256)) * 4_096
    assert gateway.request("PUT", "/bytes", {"content-type": "application/octet-stream"}).status == 201
    for _ in range(9):
        assert gateway.request("POST", "/bytes", {"content-type": "application/octet-stream"}, data).status == 204
    walk(gateway, "bytes")
    before = sent(urls, "bytes")
    reader = batch(urls, "bytes", CHUNKS, format="chunks")
    tasks = reader.partitions()
    assert sent(urls, "bytes") - before < 8 << 20
    found = rows(reader, tasks)
    assert b"".join(row["value"] for row in found) == data * 9


def test_bytes_behind_what_was_counted_are_read_on_where_the_driver_keeps_nothing(
    urls: Mapping[str, str], gateway: Client
) -> None:
    octets = {"content-type": "application/octet-stream"}
    data = random.Random(7).randbytes(1 << 20)
    assert gateway.request("PUT", "/bytes/on", octets).status == 201
    for _ in range(9):
        assert gateway.request("POST", "/bytes/on", octets, data).status == 204
    walk(gateway, "bytes/on")
    for _ in range(3):
        assert gateway.request("POST", "/bytes/on", octets, data[::-1]).status == 204
    for partitions in ("1", "5"):
        reader = batch(urls, "bytes/on", CHUNKS, format="chunks", spoolBytes="0", minPartitions=partitions)
        found = rows(reader, reader.partitions())
        assert b"".join(row["value"] for row in found) == data * 9 + data[::-1] * 3


def test_lines_are_counted_by_the_driver(urls: Mapping[str, str], gateway: Client) -> None:
    lines = [f"{number} {PAD}" for number in range(LONG // 2)]
    text = "\n".join(lines) + "\n"
    assert gateway.request("PUT", "/lines", {"content-type": "text/plain"}).status == 201
    for at in range(0, len(text), 700_000):
        part = text[at : at + 700_000].encode()
        assert gateway.request("POST", "/lines", {"content-type": "text/plain"}, part, retry=False).status == 204
    walk(gateway, "lines")
    reader = batch(urls, "lines")
    assert [row["value"] for row in rows(reader, reader.partitions())] == lines


@pytest.mark.parametrize("partitions", some([1, 9], [1, 2, 9]))
def test_what_follows_what_was_counted_is_read_on_where_the_driver_keeps_nothing(
    urls: Mapping[str, str], gateway: Client, partitions: int
) -> None:
    name = f"spoolless/{partitions}"
    fill(gateway, name)
    append(gateway, name, LONG, LONG + 4_000)  # which the gateway does not hold
    reader = batch(urls, name, minPartitions=str(partitions), spoolBytes="0")
    tasks = reader.partitions()
    runs = [run for task in tasks if isinstance(task, Task) for run in task.runs]
    assert runs[0].share.stretch.next is not None
    assert runs[-1].share.stretch.next is None
    assert numbers(rows(reader, tasks)) == list(range(LONG + 4_000))


def test_what_is_appended_meanwhile_is_behind_the_batch(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "grows")
    reader = batch(urls, "grows")
    tasks = reader.partitions()
    append(gateway, "grows", LONG, LONG + 500)
    assert numbers(rows(reader, tasks)) == list(range(LONG))


EVERYTHING: Final[dict[str, str]] = {}
ROWS: Final = {"maxRowsPerTrigger": "7001"}
BYTES: Final = {"maxBytesPerTrigger": "9m"}
BOUNDS: Final = [*product((EVERYTHING, ROWS, BYTES), (False, True))]


def test_a_query_reads_every_message_once_whatever_its_bound(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "bound")
    for options, restarts in some([(EVERYTHING, False), (ROWS, False), (ROWS, True), (BYTES, True)], BOUNDS):
        reader = following(urls, "bound", **options)
        at, found = reader.initialOffset(), []
        for _ in range(20):
            if restarts:
                reader.stop()
                reader = following(urls, "bound", **options)
            end = json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
            if end == at:
                break
            fresh = rows(reader, reader.partitions(at, end))
            assert "maxRowsPerTrigger" not in options or len(fresh) <= 7_001
            assert sum(len(row["value"]) + 1 for row in fresh) <= (9 << 20 if "maxBytesPerTrigger" in options else inf)
            found += fresh
            reader.commit(end)
            at = end
        reader.stop()
        assert numbers(found) == list(range(LONG))


def test_available_now_stops_where_the_stream_was(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "now")
    reader = following(urls, "now")
    reader.prepareForTriggerAvailableNow()
    append(gateway, "now", LONG, LONG + 6_000)
    walk(gateway, "now")
    before = sent(urls, "now")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    # Less than the stream's 26 MB: what is begun and left is sent as far as the sockets hold it.
    assert sent(urls, "now") - before < 22 << 20
    assert numbers(rows(reader, reader.partitions(start, end))) == list(range(LONG))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def test_a_stream_that_was_made_anew_is_found_out(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "anew")
    reader = following(urls, "anew")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["streams"]["anew"][2] == LONG
    assert gateway.request("DELETE", "/anew").status == 204
    fill(gateway, "anew", 2 * LONG, lambda n: {"n": n, "pad": "y" * 950})
    with pytest.raises(DataLost, match="differs from what it was"):
        rows(reader, reader.partitions(start, end))
    with pytest.raises(DataLost, match="re-created"):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
