"""Ingest of the stream that a gateway logs to: the gateway's own lines, from a real origin, each once."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import AUTHORIZATION_VARIABLE, LogStream, source_of
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import REJECTS, REQUESTS, SESSIONS, TRAFFIC
from tests.pipeline.access_lines import DAY_S, NOON, column, line, rows, take_late
from tests.served import forked_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "logs/edge%201"


def ask(method: str, url: str, body: bytes | None = None, content_type: str = "application/json") -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": content_type}, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return bytes(reply.read())


def messages(url: str) -> list[dict[str, object]]:
    return list(orjson.loads(ask("GET", f"{url}?offset=-1")))


@pytest.fixture
def origin() -> Iterator[str]:
    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        yield urls["origin"]


@contextmanager
def gateway(origin: str, folder: Path) -> Iterator[str]:
    """A gateway that logs to the origin it stands in front of; when it has left, all of its lines are there."""
    config = folder / "gateway.toml"
    config.write_text(
        f"""
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
[log]
sink = "stream"
stream_url = "{origin}/{LOG}"
[[route]]
name = "default"
origin = "{origin}"
"""
    )
    with served(forked_gateway("serve", "--config", str(config)), "gateway") as urls:
        yield urls["gateway"]


def take(spark: SparkSession, lake: Lake, url: str) -> int:
    return ingest(spark, source_of([url]), lake, progress=lambda _: None).added


def test_a_gateways_own_log_stream_is_silver_line_by_line_and_once(
    spark: SparkSession, origin: str, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    log = f"{origin}/{LOG}"
    with gateway(origin, tmp_path) as url:
        ask("PUT", f"{url}/s")
        for number in range(20):
            ask("POST", f"{url}/s", b"[%d]" % number)
            ask("GET", f"{url}/s?offset=-1")
    logged = messages(log)
    assert len(logged) == 41
    assert take(spark, lake, log) == 41
    assert take(spark, lake, log) == 0
    with gateway(origin, tmp_path) as url:
        ask("GET", f"{url}/s?offset=-1")
    # What a sink sends twice, and what is no line.
    ask("POST", log, orjson.dumps([logged[0], {"v": 1}, "no line"]))
    assert take(spark, lake, log) == 1
    assert sorted(row[3] for row in rows(lake, REJECTS)) == ["missing: time", "not an object"]
    told = {one["id"]: one for one in messages(log)[:-3]}
    found = lake.read(spark, REQUESTS).collect()
    assert {row.id for row in found} == set(told)
    for row in found:
        for name in ("node", "route", "stream", "method", "mode", "status", "outcome", "sent_bytes", "fetched_bytes"):
            assert row[name] == told[row.id][name]
    assert sum(column(lake, SESSIONS, "reads")) == 21


def test_a_stream_is_followed_until_told_to_stop_and_gone_on_with(
    spark: SparkSession, origin: str, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    log = f"{origin}/{LOG}"
    ask("PUT", log)
    ask("POST", log, line(1))
    stop = threading.Event()

    def stop_at_silver(text: str) -> None:
        if "silver" in text:
            stop.set()

    found = ingest(spark, source_of([log]), lake, follow=True, progress=stop_at_silver, stop=stop)
    assert found.added == 1
    assert column(lake, TRAFFIC, "requests") == [1]
    ask("POST", log, line(2))
    assert take(spark, lake, log) == 1
    assert len(rows(lake, REQUESTS)) == 2


def test_a_late_line_of_a_stream_is_kept_whole_and_can_be_taken_later(
    spark: SparkSession, origin: str, tmp_path: Path
) -> None:
    lake, log = Lake(str(tmp_path / "lake")), f"{origin}/{LOG}"
    late = line(2, at=NOON - 20 * DAY_S, user_agent="x" * 6_000)
    ask("PUT", log)
    ask("POST", log, line(1))
    take(spark, lake, log)
    ask("POST", log, orjson.dumps([orjson.loads(late), "no line"]))
    found = ingest(spark, source_of([log]), lake, progress=lambda _: None, late_days=3)
    assert found.rejects == {"too late": 1, "not an object": 1}
    again = take_late(spark, lake)
    assert (again.added, again.rejects) == (1, {})
    assert column(lake, REQUESTS, "sent_bytes") == [101, 102]


@contextmanager
def door(*, lets_in: bool = False) -> Iterator[tuple[str, list[str | None]]]:
    """A server that refuses to tell of its streams, or only their bytes, and what it was shown."""
    shown: list[str | None] = []

    class Acceptor(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            shown.append(self.headers["Authorization"])
            self.send_response(200 if lets_in else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Stream-Next-Offset", "0_9")
            self.end_headers()

        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Acceptor) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", shown
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("lets_in", [False, True])
def test_who_is_refused_is_told_so_in_one_line_and_what_to_set(
    spark: SparkSession, tmp_path: Path, lets_in: bool
) -> None:
    environ = {AUTHORIZATION_VARIABLE: "Basic secret"}
    with door(lets_in=lets_in) as (url, shown), pytest.raises(PipelineFailed) as refused:
        ingest(spark, source_of([f"{url}/{LOG}"], {}, environ), Lake(str(tmp_path)), progress=lambda _: None)
    where = "stream logs/edge 1 from offset -1" if lets_in else "stream logs/edge 1"
    assert str(refused.value) == f"{url}/{LOG}: {where}: 401 (authorization is read from {AUTHORIZATION_VARIABLE})"
    assert set(shown) == {"Basic secret"}


def test_lines_that_are_lost_while_they_are_read_are_told_of_in_one_line(
    spark: SparkSession, origin: str, tmp_path: Path
) -> None:
    log = f"{origin}/{LOG}"
    ask("PUT", log)
    ask("POST", log, line(1))

    def remake(text: str) -> None:
        if "bronze" not in text:
            return
        ask("DELETE", log)
        ask("PUT", log)
        ask("POST", log, line(2))
        ask("POST", log, line(3))

    lake = Lake(str(tmp_path / "lake"))
    ingest(spark, source_of([log]), lake, progress=remake)
    with pytest.raises(PipelineFailed, match=r"^http://[^\n]*: stream logs/edge 1[^\n]*deleted and re-created[^\n]*$"):
        take(spark, lake, log)


def test_a_log_stream_made_anew_and_shorter_is_told_of_or_taken_from_its_beginning(
    spark: SparkSession, origin: str, tmp_path: Path
) -> None:
    log = f"{origin}/{LOG}"
    lake = Lake(str(tmp_path / "lake"))
    ask("PUT", log)
    ask("POST", log, b"[%s]" % b",".join(line(number) for number in range(20)))
    assert take(spark, lake, log) == 20
    ask("DELETE", log)
    ask("PUT", log)
    ask("POST", log, b"[%s]" % b",".join(line(number) for number in range(20, 28)))
    with pytest.raises(PipelineFailed, match=r"^http://[^\n]*: stream logs/edge 1[^\n]*--option failOnDataLoss=false"):
        take(spark, lake, log)
    source = source_of([log], {"failOnDataLoss": "false"})
    assert ingest(spark, source, lake, progress=lambda _: None).added == 8
    assert ingest(spark, source, lake, progress=lambda _: None).added == 0


def test_an_option_wins_over_the_environment_and_no_token_goes_where_nobody_said() -> None:
    environ = {AUTHORIZATION_VARIABLE: "Basic a", ADMIN_TOKEN_VARIABLE: "token"}
    options = {"Headers.Authorization": "Basic b", "maxRowsPerTrigger": "9"}
    source = log_stream("http://host/a%20b/c", options, environ)
    assert "Basic" not in repr(source)
    assert source.reading == {
        "url": "http://host",
        "stream": "/a b/c",
        "format": "messages",
        "startingoffsets": "earliest",
        "maxbytespertrigger": str(1 << 30),
        "maxrowspertrigger": "9",
        "headers.authorization": "Basic b",
    }
    for where in ({"startingTimestamp": "2026-09-24T13:00:00Z"}, {"startingOffsetsByTimestamp": '{"a": 9}'}):
        assert "startingoffsets" not in log_stream("http://host/a", where).reading
    told = log_stream("http://host/a", {"catalogue": "http://host:9437"}, environ).reading
    assert told["headers.authorization"] == "Basic a"
    assert told["catalogueheaders.authorization"] == "Bearer token"


def log_stream(url: str, options: dict[str, str], environ: dict[str, str] | None = None) -> LogStream:
    source = source_of([url], options, environ)
    assert isinstance(source, LogStream)
    source.check()
    return source


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"Streams": "a,b"}, "option streams: the URL names the stream"),
        ({"format": "typed"}, "option format: lines are taken in as they are"),
        ({"mode": "FAILFAST"}, "option mode: lines are taken in as they are"),
        ({"catalogue": "http://h", "tails": "catalogue"}, "option tails: a log is written at its origin"),
        ({"catalogue": "http://[::1"}, "option catalogue: http"),
        ({"endingOffsets": "latest"}, "option endingOffsets is only for batches"),
    ],
)
def test_an_option_that_cannot_be_is_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineFailed) as refused:
        log_stream("http://host/log", options)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/log", "ftp://host/log: a source is"),
        ("http:///log", "http:///log: a source is"),
        ("http://host:99999/log", "http://host:99999/log: is no URL"),
        ("http://[::1/log", "http://[::1/log: is no URL"),
        ("http://host/log?token=secret", "http://host/log: a stream's URL has no query"),
        ("http://u:12?secret@host/log", "http://…: a source is"),
        ("user:secret@host://x", "user://…: a source is"),
        ("http://user:secret@host/log", "http://…@host/log: credentials do not belong into a URL"),
        ("http://user:secret@host/", "http://…@host/: credentials do not belong into a URL"),
        ("http://user:secret@[::1/log", "http://…@[::1/log: is no URL"),
    ],
)
def test_a_url_that_cannot_be_is_one_line_without_secrets(url: str, said: str) -> None:
    with pytest.raises(PipelineFailed) as refused:
        log_stream(url, {})
    assert str(refused.value).startswith(said)
    assert "secret" not in str(refused.value)


def test_a_stream_that_is_not_there_is_one_line(spark: SparkSession, origin: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"^http://[^\n]*/nothing: stream nothing[^\n]*: 404[^\n]*$"):
        take(spark, Lake(str(tmp_path / "lake")), f"{origin}/nothing")
