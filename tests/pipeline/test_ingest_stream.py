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

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import LogStream, source_of
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import REJECTS, REQUESTS, SESSIONS
from tests.pipeline.access_lines import line, rows
from tests.served import durable_gateway, served

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
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
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
    with served(durable_gateway("serve", "--config", str(config)), "gateway") as urls:
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
    assert sorted(row[3] for row in rows(spark, lake, REJECTS)) == ["missing: time", "not an object"]
    told = {one["id"]: one for one in messages(log)[:-3]}
    found = lake.read(spark, REQUESTS).collect()
    assert {row.id for row in found} == set(told)
    for row in found:
        for name in ("node", "route", "stream", "method", "mode", "status", "outcome", "sent_bytes", "fetched_bytes"):
            assert row[name] == told[row.id][name]
    sessions = lake.read(spark, SESSIONS).collect()
    assert sum(row.reads for row in sessions) == 21


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
    ask("POST", log, line(2))
    assert take(spark, lake, log) == 1
    assert lake.read(spark, REQUESTS).count() == 2


@contextmanager
def strict() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that lets nobody in, and what it was asked: paths, with what was shown for it."""
    asked: list[tuple[str, str | None]] = []

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path.partition("?")[0], self.headers["Authorization"]))
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_what_the_environment_has_to_show_is_shown_to_those_it_is_for(spark: SparkSession, tmp_path: Path) -> None:
    environ = {"DURABLE_GATEWAY_PIPELINE_AUTHORIZATION": "Basic secret", "DURABLE_GATEWAY_ADMIN_TOKEN": "token"}
    with strict() as (stream, asked_there), strict() as (admin, asked_admin):
        for options in ({}, {"catalogue": admin, "tails": "catalogue"}):
            source = source_of([f"{stream}/{LOG}"], options, environ)
            with pytest.raises(PipelineFailed, match=r"^http://[^\n]*401[^\n]*$") as refused:
                ingest(spark, source, Lake(str(tmp_path / "lake")), progress=lambda _: None)
            assert "secret" not in str(refused.value)
    assert set(asked_there) == {(f"/{LOG}", "Basic secret")}
    assert set(asked_admin) == {("/api/tails", "Bearer token")}


def test_an_option_wins_over_the_environment_and_no_token_goes_where_nobody_said() -> None:
    environ = {"DURABLE_GATEWAY_PIPELINE_AUTHORIZATION": "Basic a", "DURABLE_GATEWAY_ADMIN_TOKEN": "token"}
    source = source_of(["http://host/a%20b/c"], {"Headers.Authorization": "Basic b", "maxRowsPerTrigger": "9"}, environ)
    assert isinstance(source, LogStream)
    source.judge()
    assert source.reading == {
        "url": "http://host",
        "stream": "/a b/c",
        "format": "messages",
        "startingoffsets": "earliest",
        "maxbytespertrigger": str(1 << 30),
        "maxrowspertrigger": "9",
        "headers.authorization": "Basic b",
    }


def test_a_stream_that_is_not_there_is_one_line(spark: SparkSession, origin: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"^http://[^\n]*nothing[^\n]*$"):
        take(spark, Lake(str(tmp_path / "lake")), f"{origin}/nothing")
