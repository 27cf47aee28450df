"""Planning before an admin port that is none, or says what is not so."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.reading import Run, Task
from tests.effort import some
from tests.pyspark_durable_streams.counted import (
    LONG,
    MESSAGE_BYTES,
    append,
    batch,
    fill,
    following,
    numbers,
    rows,
    sent,
    walk,
)

LOSES: Final = ("true", "false")
TASKS: Final = (1, 3, 20)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an admin port says."""

    status: int
    body: bytes
    missing: int = 0
    """So many bytes do not come, though they are announced."""
    gate: threading.Event | None = None
    """Nothing comes before."""


@contextmanager
def admin_port(answer: Callable[[str], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Answers GETs; its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            said = answer(self.path)
            if said.gate is not None:
                said.gate.wait(30)
            with suppress(OSError):  # the client may have left
                self.send_response(said.status)
                self.send_header("Content-Length", str(len(said.body) + said.missing))
                self.end_headers()
                self.wfile.write(said.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # How often it looks whether it shall end: each test waits for that.
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


Change = Callable[[list[Any]], None]


@contextmanager
def relaying(urls: Mapping[str, str], change: Change, *, always: bool = False) -> Iterator[tuple[str, list[str]]]:
    """What the gateway's own says, but for the first answer with runs, or each, which is changed."""
    changed: list[str] = []

    def answer(path: str) -> Answer:
        client = Client(ClientConfig(urls["admin"]))
        told = json.loads(client.request("GET", path).body)
        client.close()
        if told["runs"] and (always or not changed):
            changed.append(path)
            change(told["runs"])
        return Answer(200, json.dumps(told).encode())

    with admin_port(answer) as found:
        yield found
    assert changed


@pytest.fixture(scope="module")
def held(urls: Mapping[str, str]) -> str:
    client = Client(ClientConfig(urls["gateway"]))
    fill(client, "held")
    client.close()
    return "held"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404, b"no"),
        Answer(501, b'{"error":"no"}'),
        Answer(500, b""),
        Answer(302, b""),
        Answer(200, b"<html>"),
        Answer(200, b"{}"),
        Answer(200, b'{"runs":{}}'),
        Answer(200, b'{"runs":[{}]}'),
        Answer(200, b'{"runs":[]}', missing=1),
        Answer(200, b'{"runs":[]}' + b" " * (2 << 20)),
        Answer(200, b"[" * 200_000),
    ],
    ids=lambda answer: f"{answer.status} {answer.body[:12]!r} {len(answer.body)} {answer.missing}",
)
def test_who_knows_no_counts_is_asked_once_and_the_streams_are_read(
    urls: Mapping[str, str], held: str, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    with admin_port(lambda path: answer) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(LONG))
    assert len(asked) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("catalogue: streams are counted by reading them")
    assert "\n" not in record.getMessage()


def test_nobody_there_is_no_reason_not_to_read(urls: Mapping[str, str], held: str) -> None:
    with admin_port(lambda path: Answer(404, b"")) as (url, _):
        pass
    reader = batch(urls, held, catalogue=url)
    assert numbers(rows(reader, reader.partitions())) == list(range(LONG))


def test_who_says_nothing_is_waited_for_as_the_reader_wants_it(urls: Mapping[str, str], held: str) -> None:
    gate = threading.Event()
    with admin_port(lambda path: Answer(200, b"{}", gate=gate)) as (url, asked):
        reader = batch(urls, held, catalogue=url, readTimeout="2")
        tasks = reader.partitions()
        assert not gate.is_set()
        gate.set()
        assert numbers(rows(reader, tasks)) == list(range(LONG))
    assert len(asked) == 1


def of(number: int, **more: Any) -> Change:
    """One run has other values."""
    return lambda runs: runs[number].update(more)


def more(number: int, key: str, by: int) -> Change:
    """One run has a value that is so much larger."""
    return lambda runs: runs[number].update({key: runs[number][key] + by})


def hole(number: int) -> Change:
    """One run leads over the next one, and has none of it."""

    def change(runs: list[Any]) -> None:
        runs[number]["next"] = runs[number + 1]["next"]
        del runs[number + 1]

    return change


def endless_ninth(runs: list[Any]) -> None:
    """Nine runs are told, and that the last of them has more messages than there are."""
    del runs[9 if runs[0]["offset"] == "-1" else 0 :]
    if runs:
        runs[-1]["messages"] = runs[-1]["bytes"]


def hole_at_the_end(runs: list[Any]) -> None:
    """The last run is left out by the one before it."""
    hole(len(runs) - 2)(runs)


SEEN_AT_ONCE: Final = (
    more(-1, "messages", 1),
    more(-1, "messages", -1),
    endless_ninth,
    more(-1, "crc32", 1),
    more(-1, "bytes", 1),
    more(-1, "bytes", -1),
    of(-1, next="zzz"),
    hole_at_the_end,
    of(0, next="\ud800"),
    of(0, next="\u00e9"),
    of(0, next="z" * 1_000),
    of(0, next=7),
    of(0, bytes=10**400),
    of(0, messages=True),
    of(0, messages=1.5),
    of(0, messages=0),
    of(0, messages=None),
    of(0, crc32=-1),
    of(0, crc32=1 << 32),
)


@pytest.mark.parametrize(("change", "loses"), some([*zip(SEEN_AT_ONCE, cycle(LOSES))], [*product(SEEN_AT_ONCE, LOSES)]))
def test_what_is_seen_to_be_wrong_is_read_instead(
    urls: Mapping[str, str], held: str, change: Change, loses: str
) -> None:
    with relaying(urls, change, always=True) as (url, _):
        before = sent(urls, held)
        reader = batch(urls, held, catalogue=url, minPartitions="5", failOnDataLoss=loses)
        tasks = reader.partitions()
        assert sent(urls, held) - before < 1.6 * LONG * MESSAGE_BYTES
        assert numbers(rows(reader, tasks)) == list(range(LONG))


def test_where_runs_lead_out_of_a_stream_a_query_goes_on_in_it(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "on", LONG // 2)
    reader = following(urls, "on")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    found = rows(reader, reader.partitions(start, end))
    reader.stop()
    append(gateway, "on", LONG // 2, 2 * LONG)
    walk(gateway, "on")
    with relaying(urls, of(-1, next="zzz")) as (url, _):
        reader = following(urls, "on", catalogue=url)
        found += rows(reader, reader.partitions(end, reader.latestOffset(end, ReadAllAvailable())))
        reader.stop()
    assert numbers(found) == list(range(2 * LONG))


SEEN_TOO_LATE: Final = (
    more(0, "messages", 1),
    more(0, "messages", -1),
    more(0, "crc32", 1),
    more(4, "bytes", 1),
    hole(0),
    hole(3),
)


@pytest.mark.parametrize(
    ("change", "partitions"), some([*zip(SEEN_TOO_LATE, cycle(TASKS))], [*product(SEEN_TOO_LATE, TASKS)])
)
def test_what_is_seen_to_be_wrong_too_late_ends_the_task_and_is_never_passed_off_for_data(
    urls: Mapping[str, str], held: str, change: Change, partitions: int
) -> None:
    with relaying(urls, change) as (url, _):
        reader = batch(urls, held, catalogue=url, minPartitions=str(partitions))
        with pytest.raises(DataLost, match=r"the gateway counted wrong: without catalogue"):
            rows(reader, reader.partitions())
    with relaying(urls, change) as (url, _):
        query = following(urls, held, catalogue=url, minPartitions=str(partitions))
        start = query.initialOffset()
        end = query.latestOffset(start, ReadAllAvailable())
        query.stop()
    # From the checkpoint it is the same, whichever gateway is asked now.
    query = following(urls, held, minPartitions=str(partitions))
    with pytest.raises(DataLost, match=r"the gateway counted wrong"):
        rows(query, query.partitions(start, json.loads(json.dumps(end))))
    query.stop()


def test_of_a_checksum_that_is_wrong_nothing_is_missing_where_loss_is_no_error(
    urls: Mapping[str, str], held: str
) -> None:
    with relaying(urls, more(1, "crc32", 1)) as (url, _):
        reader = batch(urls, held, catalogue=url, failOnDataLoss="false")
        assert numbers(rows(reader, reader.partitions())) == list(range(LONG))


def test_runs_that_do_not_lead_on_are_left_where_they_stop(urls: Mapping[str, str], held: str) -> None:
    def change(runs: list[Any]) -> None:
        runs[:] = [{**run, "next": run["offset"]} for run in runs] * 2

    with relaying(urls, change) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(LONG))
    assert len(asked) < 20


def test_an_admin_port_that_always_has_one_more_run_is_left(urls: Mapping[str, str], held: str) -> None:
    def answer(path: str) -> Answer:
        token = parse_qs(urlsplit(path).query)["offset"][0].removeprefix("-1")
        run = {"offset": token or "-1", "next": f"{token}0", "messages": 1, "bytes": 2, "crc32": 0}
        return Answer(200, json.dumps({"runs": [run]}).encode())

    with admin_port(answer) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(LONG))
    assert len(asked) <= 1_000


def test_counts_that_are_not_so_are_asked_for_once(urls: Mapping[str, str], held: str) -> None:
    def change(runs: list[Any]) -> None:
        for run in runs:
            run["crc32"] = 1

    with relaying(urls, change) as (url, asked):
        before = sent(urls, held)
        batch(urls, held, catalogue=url).partitions()
    assert len(asked) <= 4
    assert sent(urls, held) - before < 1.5 * LONG * MESSAGE_BYTES


def test_an_origin_whose_tags_are_its_own_is_read(urls: Mapping[str, str], held: str) -> None:
    """Nobody knows whose counts these would be."""
    admin = Client(ClientConfig(urls["admin"]))

    def answer(path: str) -> Answer:
        said = admin.request("GET", path)
        told.append(json.loads(said.body))
        return Answer(said.status, said.body)

    told: list[Any] = []
    with admin_port(answer) as (url, _):
        reader = batch(urls, held, catalogue=url, url=urls["origin"])
        assert numbers(rows(reader, reader.partitions())) == list(range(LONG))
    assert told == [{"runs": []}]
    admin.close()


# -- plans


def test_a_plan_is_read_the_same_with_the_catalogue_and_without(urls: Mapping[str, str], held: str) -> None:
    for planning, reading in (({}, {"catalogue": ""}), ({"catalogue": ""}, {})):
        driver = following(urls, held, minPartitions="7", **planning)
        start = driver.initialOffset()
        end = json.loads(json.dumps(driver.latestOffset(start, ReadAllAvailable())))
        driver.stop()
        other = following(urls, held, minPartitions="2", **reading)
        tasks = other.partitions(start, end)
        assert len(tasks) == 7
        assert numbers(rows(other, tasks)) == list(range(LONG))
        other.stop()


@pytest.mark.parametrize("by", [-1, 1])
def test_a_size_that_is_not_so_is_found_out_whatever_the_checksum(urls: Mapping[str, str], held: str, by: int) -> None:
    reader = batch(urls, held)
    task, *_ = reader.partitions()
    assert isinstance(task, Task)
    first = task.runs[0].share
    wrong = replace(first, stretch=replace(first.stretch, size=first.stretch.size + by, next=None))
    with pytest.raises(DataLost, match="differs from what it was"):
        rows(reader, [Task([Run(wrong, None)])])


def test_a_batch_that_was_planned_by_wrong_counts_is_planned_anew_as_the_error_says(
    urls: Mapping[str, str], gateway: Client, spark: SparkSession, tmp_path: Path
) -> None:
    fill(gateway, "way/out", 1_000)

    def go_on(**options: str) -> None:
        given = {"url": urls["gateway"], "stream": "way/out", "startingOffsets": "earliest", **options}
        found = spark.readStream.format("durable_streams").options(**given).load()
        writer = found.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        query.awaitTermination()

    go_on()
    append(gateway, "way/out", 1_000, LONG)
    walk(gateway, "way/out")
    wrong = pytest.raises(StreamingQueryException, match="the gateway counted wrong")
    with relaying(urls, more(2, "crc32", 1)) as (url, _), wrong:
        go_on(catalogue=url)
    with pytest.raises(StreamingQueryException, match="the gateway counted wrong"):
        go_on()
    offsets, commits = (tmp_path / "checkpoint" / name for name in ("offsets", "commits"))
    (number,) = {path.name for path in offsets.glob("[0-9]*")} - {path.name for path in commits.glob("[0-9]*")}
    (offsets / number).unlink()
    (offsets / f".{number}.crc").unlink(missing_ok=True)
    go_on()
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.count() == found.select("pos").distinct().count() == LONG
