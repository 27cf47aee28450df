"""Planning by what a real gateway has counted, and before an admin port that says what is not so."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from math import inf
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader
from tests.served import dev_gateway, served

_MESSAGES: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", StringType())
_CHUNKS: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", BinaryType())
_JSON: Final = {"content-type": "application/json"}
_APPEND: Final = 1_000
_PAD: Final = "x" * 950
_MESSAGE_BYTES: Final = 980
_LONG: Final = 20_000
"""Messages of about 20 MB: five of the gateway's replies, and more than one answer speaks of."""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def urls() -> Iterator[Mapping[str, str]]:
    with served(dev_gateway(), "gateway", "admin", "origin") as found:
        yield found


@pytest.fixture
def gateway(urls: Mapping[str, str]) -> Iterator[Client]:
    client = Client(ClientConfig(urls["gateway"]))
    yield client
    client.close()


def message(number: int) -> dict[str, Any]:
    return {"n": number, "pad": _PAD}


def append(gateway: Client, name: str, begin: int, end: int, make: Callable[[int], Any] = message) -> None:
    for at in range(begin, end, _APPEND):
        body = json.dumps([make(n) for n in range(at, min(at + _APPEND, end))], separators=(",", ":")).encode()
        assert gateway.request("POST", f"/{name}", _JSON, body, retry=False).status == 204


def fill(gateway: Client, name: str, count: int = _LONG, make: Callable[[int], Any] = message) -> None:
    """A new stream that the gateway holds all of."""
    assert gateway.request("PUT", f"/{name}", _JSON).status == 201
    append(gateway, name, 0, count, make)
    walk(gateway, name)


def walk(gateway: Client, name: str) -> None:
    token, is_at_tail = "-1", False
    while not is_at_tail:
        reply = gateway.request("GET", f"/{name}?offset={token}")
        assert reply.status == 200
        token, is_at_tail = reply.headers["Stream-Next-Offset"], "Stream-Up-To-Date" in reply.headers


def sent(urls: Mapping[str, str], name: str) -> int:
    """Bytes of a stream that the gateway has sent to its readers."""
    admin = Client(ClientConfig(urls["admin"]))
    (row,) = json.loads(admin.request("GET", f"/api/streams?prefix=/{name}").body)["streams"]
    admin.close()
    found: int = row["sent_bytes"]
    return found


def batch(urls: Mapping[str, str], name: str, schema: StructType = _MESSAGES, **more: str) -> BatchReader:
    given = {"url": urls["gateway"], "catalogue": urls["admin"], "stream": name, "minPartitions": "3", **more}
    return BatchReader(schema, read_options(given, is_streaming=False))


def following(urls: Mapping[str, str], name: str, **more: str) -> StreamReader:
    given = {"url": urls["gateway"], "catalogue": urls["admin"], "stream": name, "startingOffsets": "earliest", **more}
    return StreamReader(_MESSAGES, read_options(given, is_streaming=True))


def rows(reader: BatchReader | StreamReader, tasks: Sequence[InputPartition]) -> list[Row]:
    there = pickle.loads(pickle.dumps(reader))
    return [
        row for task in tasks for batch in there.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()
    ]


def numbers(found: Sequence[Row]) -> list[int]:
    assert [row["pos"] for row in found] == list(range(found[0]["pos"], found[0]["pos"] + len(found)))
    return [json.loads(row["value"])["n"] for row in found]


# -- a gateway that has counted


def test_planning_reads_no_more_than_the_last_of_what_is_counted(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "plan")
    before = sent(urls, "plan")
    reader = batch(urls, "plan")
    tasks = reader.partitions()
    # The first reply is begun, and the last run is looked at, which is in another.
    assert sent(urls, "plan") - before < 9 << 20
    assert len(tasks) == 3
    assert numbers(rows(reader, tasks)) == list(range(_LONG))
    # Without a catalogue it is read whole.
    before = sent(urls, "plan")
    plain = BatchReader(_MESSAGES, read_options({"url": urls["gateway"], "stream": "plan"}, is_streaming=False))
    plain.partitions()
    assert sent(urls, "plan") - before >= _LONG * _MESSAGE_BYTES * 0.95


@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"n": n, "pad": 'a "},{" and a },{ in a string' + _PAD},
        lambda n: {"n": n, "items": [{"a": 1}, {"b": [{"c": {}}, {}]}], "pad": _PAD},
        lambda n: {"n": n, "é": "\n\u2028", "pad": _PAD} if n % 2 else {"n": n},
    ],
    ids=["strings", "nested", "line breaks"],
)
def test_elements_that_are_guessed_wrong_are_read_right(
    urls: Mapping[str, str], gateway: Client, make: Callable[[int], Any], request: pytest.FixtureRequest
) -> None:
    name = f"guess/{request.node.callspec.id.replace(' ', '-')}"
    fill(gateway, name, make=make)
    reader = batch(urls, name)
    found = rows(reader, reader.partitions())
    assert numbers(found) == list(range(_LONG))
    assert [json.loads(row["value"]) for row in found[:10]] == [make(n) for n in range(10)]


def test_a_guess_that_takes_many_for_one_reads_no_further_than_its_stretch(
    urls: Mapping[str, str], gateway: Client
) -> None:
    """Arrays of arrays with one object at each end: of each append one `},{` is seen."""

    def make(n: int) -> Any:
        return {"n": n} if n % _APPEND in (0, _APPEND - 1) else [n, _PAD]

    fill(gateway, "arrays", make=make)
    reader = batch(urls, "arrays", minPartitions="20")
    tasks = reader.partitions()
    before = sent(urls, "arrays")
    assert rows(reader, tasks[:1])
    # What was wrong is read twice: a reply each, which is dropped.
    assert sent(urls, "arrays") - before < 0.6 * _LONG * _MESSAGE_BYTES
    assert [json.loads(row["value"]) for row in rows(reader, tasks)] == [make(n) for n in range(_LONG)]


def test_chunks_of_bytes_are_planned_by_their_length(urls: Mapping[str, str], gateway: Client) -> None:
    data = bytes(range(256)) * 4_096
    assert gateway.request("PUT", "/bytes", {"content-type": "application/octet-stream"}).status == 201
    for _ in range(9):
        assert gateway.request("POST", "/bytes", {"content-type": "application/octet-stream"}, data).status == 204
    walk(gateway, "bytes")
    before = sent(urls, "bytes")
    reader = batch(urls, "bytes", _CHUNKS, format="chunks")
    tasks = reader.partitions()
    assert sent(urls, "bytes") - before < 8 << 20
    found = rows(reader, tasks)
    assert b"".join(row["value"] for row in found) == data * 9


def test_lines_are_counted_by_the_driver(urls: Mapping[str, str], gateway: Client) -> None:
    lines = [f"{number} {_PAD}" for number in range(_LONG // 2)]
    text = "\n".join(lines) + "\n"
    assert gateway.request("PUT", "/lines", {"content-type": "text/plain"}).status == 201
    for at in range(0, len(text), 700_000):
        part = text[at : at + 700_000].encode()
        assert gateway.request("POST", "/lines", {"content-type": "text/plain"}, part, retry=False).status == 204
    walk(gateway, "lines")
    reader = batch(urls, "lines")
    assert [row["value"] for row in rows(reader, reader.partitions())] == lines


def test_what_is_appended_meanwhile_is_behind_the_batch(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "grows")
    reader = batch(urls, "grows")
    tasks = reader.partitions()
    append(gateway, "grows", _LONG, _LONG + 500)
    assert numbers(rows(reader, tasks)) == list(range(_LONG))


def test_a_query_reads_every_message_once_whatever_its_bound(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "bound")
    for options, restarts in product(({}, {"maxRowsPerTrigger": "7001"}, {"maxBytesPerTrigger": "9m"}), (False, True)):
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
        assert numbers(found) == list(range(_LONG))


def test_available_now_stops_where_the_stream_was(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "now")
    reader = following(urls, "now")
    reader.prepareForTriggerAvailableNow()
    append(gateway, "now", _LONG, _LONG + 6_000)
    walk(gateway, "now")
    before = sent(urls, "now")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sent(urls, "now") - before < 10 << 20
    assert numbers(rows(reader, reader.partitions(start, end))) == list(range(_LONG))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def test_a_stream_that_was_made_anew_is_found_out(urls: Mapping[str, str], gateway: Client) -> None:
    fill(gateway, "anew")
    reader = following(urls, "anew")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["streams"]["anew"][2] == _LONG
    assert gateway.request("DELETE", "/anew").status == 204
    fill(gateway, "anew", 2 * _LONG, lambda n: {"n": n, "pad": "y" * 950})
    with pytest.raises(DataLost, match="otherwise"):
        rows(reader, reader.partitions(start, end))
    with pytest.raises(DataLost, match="made anew"):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()


# -- an admin port that is none, or says what is not so


@contextmanager
def admin_port(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Answers GETs; its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="module")
def held(urls: Mapping[str, str]) -> str:
    client = Client(ClientConfig(urls["gateway"]))
    fill(client, "held")
    client.close()
    return "held"


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"no"), (501, b'{"error":"no"}'), (500, b""), (200, b"<html>"), (200, b"{}"), (200, b'{"runs":[{}]}')],
)
def test_who_knows_no_counts_is_asked_once_and_the_streams_are_read(
    urls: Mapping[str, str], held: str, status: int, body: bytes
) -> None:
    with admin_port(lambda path: (status, body)) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))
    assert len(asked) == 1


def test_nobody_there_is_no_reason_not_to_read(urls: Mapping[str, str], held: str) -> None:
    with admin_port(lambda path: (404, b"")) as (url, _):
        pass
    reader = batch(urls, held, catalogue=url)
    assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))


def _told(urls: Mapping[str, str], path: str) -> Any:
    client = Client(ClientConfig(urls["admin"]))
    told = json.loads(client.request("GET", path).body)
    client.close()
    return told


def test_a_last_run_that_is_not_so_has_all_of_them_forgotten(urls: Mapping[str, str], held: str) -> None:
    for key, by in (("messages", 1), ("crc32", 1), ("messages", -1)):

        def answer(path: str, key: str = key, by: int = by) -> tuple[int, bytes]:
            told = _told(urls, path)
            if told["runs"]:
                told["runs"][-1][key] += by
            return 200, json.dumps(told).encode()

        with admin_port(answer) as (url, asked):
            reader = batch(urls, held, catalogue=url)
            assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))
        assert asked


def test_a_run_that_is_not_so_ends_the_task_and_is_never_passed_off_for_data(
    urls: Mapping[str, str], held: str
) -> None:
    for key, by in (("messages", 1), ("messages", -1), ("crc32", 1)):

        def answer(path: str, key: str = key, by: int = by) -> tuple[int, bytes]:
            told = _told(urls, path)
            if told["runs"]:
                told["runs"][0][key] += by
            return 200, json.dumps(told).encode()

        with admin_port(answer) as (url, _):
            reader = batch(urls, held, catalogue=url)
            with pytest.raises(DataLost):
                rows(reader, reader.partitions())


def test_runs_that_do_not_lead_on_are_left_where_they_stop(urls: Mapping[str, str], held: str) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        told = _told(urls, path)
        told["runs"] = [{**run, "next": run["offset"]} for run in told["runs"]] * 2
        return 200, json.dumps(told).encode()

    with admin_port(answer) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))
    assert len(asked) < 20


def test_an_admin_port_that_always_has_one_more_run_is_left(urls: Mapping[str, str], held: str) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        token = parse_qs(urlsplit(path).query)["offset"][0].removeprefix("-1")
        run = {"offset": token or "-1", "next": f"{token}0", "messages": 1, "bytes": 2, "crc32": 0}
        return 200, json.dumps({"runs": [run]}).encode()

    with admin_port(answer) as (url, asked):
        reader = batch(urls, held, catalogue=url)
        assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))
    assert len(asked) <= 1_000


def test_counts_that_are_not_so_are_asked_for_once(urls: Mapping[str, str], held: str) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        told = _told(urls, path)
        told["runs"] = [{**run, "crc32": 1} for run in told["runs"]]
        return 200, json.dumps(told).encode()

    with admin_port(answer) as (url, asked):
        before = sent(urls, held)
        batch(urls, held, catalogue=url).partitions()
    assert len(asked) <= 4
    assert sent(urls, held) - before < 1.5 * _LONG * _MESSAGE_BYTES


def test_an_origin_that_gives_no_tags_is_read(urls: Mapping[str, str], held: str, gateway: Client) -> None:
    """Or others than the gateway's: then nobody knows whose counts these are."""
    with admin_port(lambda path: (200, json.dumps(_told(urls, path)).encode())) as (url, _):
        reader = batch(urls, held, catalogue=url, url=urls["origin"])
        assert numbers(rows(reader, reader.partitions())) == list(range(_LONG))
