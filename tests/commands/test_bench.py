"""`bench`: its figures are counted, its streams are gone afterwards, and its client reads any framing."""

from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.bench_reads import quantile
from gateway.commands.bench_wire import Connection, request_bytes
from gateway.origin.app import RunningOrigin
from gateway.origin.requests import Kind
from tests.commands.runs import finished, running

QUICK = ("--seconds", "0.2", "--connections", "2", "--subscribers", "3")


async def test_a_gateway_is_measured_and_left_as_it_was(durable_origin: RunningOrigin, url: str) -> None:
    status, out, err = await finished("bench", url, *QUICK, "--json")
    assert (status, err) == (0, "")
    figures = json.loads(out)
    reads, delays = figures["reads"], figures["delays"]
    assert reads["errors"] == 0
    assert reads["hit_ratio"] == 1.0
    assert reads["per_s"] > 0
    assert 0 < reads["p50_s"] <= reads["p99_s"]
    assert (delays["appends"], delays["delivered"], delays["expected"]) == (4, 12, 12)
    assert 0 < delays["p50_s"] <= delays["p95_s"] <= delays["p99_s"] <= delays["max_s"]
    counters = durable_origin.origin.counters.requests
    assert (counters[Kind.CREATE], counters[Kind.APPEND], counters[Kind.DELETE]) == (2, 4, 2)
    # Sixteen thousand reads or one: the origin sees the stream's bytes asked for once.
    assert counters[Kind.CATCHUP] <= 3


async def test_an_origin_is_measured_too_and_says_nothing_of_hits(durable_origin: RunningOrigin) -> None:
    status, out, _ = await finished("bench", durable_origin.url, *QUICK)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("reads ")
    assert "2 connections, 0.2 s; no Cache-Status; errors 0" in lines[1]
    assert lines[2].startswith("live delay  p50 ")
    assert lines[3].endswith("3 SSE subscribers, 4 appends; 12 of 12 delivered")
    assert "of a core while reading" in lines[4]


async def test_wrong_answers_are_errors_and_not_reads(durable_origin: RunningOrigin) -> None:
    headers = {"Content-Type": "text/plain", "Stream-Next-Offset": "1"}
    durable_origin.origin.faults.replace(200, headers, b"short", kind="catchup", times=None)
    status, out, err = await finished("bench", durable_origin.url, *QUICK)
    assert (status, out) == (1, "")
    assert err.startswith("durable-gateway: no read of ")
    assert durable_origin.origin.counters.requests[Kind.DELETE] == 1


async def test_a_bench_that_is_stopped_takes_its_streams_away(durable_origin: RunningOrigin, url: str) -> None:
    async with running("bench", url, "--seconds", "30", "--connections", "1") as bench:
        await durable_origin.origin.counters.reached("catchup", 1)
        status, out, err = await bench.finished(signal.SIGINT)
    assert (status, out, err) == (1, "", "durable-gateway: stopped before there were figures\n")
    assert durable_origin.origin.counters.requests[Kind.DELETE] == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["http://127.0.0.1:1"], 1, "PUT http://127.0.0.1:1/durable-gateway-bench-"),
        (["{admin}"], 1, "{admin}/durable-gateway-bench-"),
        (["{admin}?a=b"], 2, "Invalid value for 'URL': a gateway's URL has no query"),
        (["{admin}", "--seconds", "0"], 2, "Invalid value for '--seconds'"),
    ],
)
async def test_refusals_are_one_line(admin: str, arguments: list[str], status: int, said: str) -> None:
    got = await finished("bench", *[text.format(admin=admin) for text in arguments])
    assert got[:2] == (status, "")
    assert got[2].startswith(f"durable-gateway: {said.format(admin=admin)}")
    assert got[2].count("\n") == 1


# -- the client --------------------------------------------------------------------------------------------------------


class Log(Connection):
    """What came of a connection's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, bytes]] = []
        self._status = 0
        self._body = b""

    def on_head(self, status: int, head: bytes) -> None:
        self._status, self._body = status, b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_end(self) -> None:
        self.answers.append((self._status, self._body))


ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\na\r\n\r\n0A;x=y\r\n0123456789\r\n0\r\n\r\n"
    b"HTTP/1.1 404 Not Found\r\ncontent-length:0\r\n\r\n"
)


@given(st.lists(st.integers(1, 9), max_size=80))
def test_answers_end_where_they_say_however_they_are_cut(sizes: list[int]) -> None:
    log, at = Log(), 0
    for size in [*sizes, len(ANSWERS)]:
        log.data_received(ANSWERS[at : at + size])
        at += size
    assert log.answers == [(200, b"hello"), (204, b""), (200, b"a\r\n0123456789"), (404, b"")]
    assert not log.is_lost


@pytest.mark.parametrize(
    "data", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 70_000, ANSWERS.replace(b"0A;", b"zz;")]
)
def test_what_is_not_understood_ends_the_connection(data: bytes) -> None:
    log = Log()
    log.data_received(data)
    assert log.is_lost


def test_a_request_names_the_host_and_keeps_the_target() -> None:
    text = request_bytes("https://user@example.org:444/a%20b?offset=-1", {"X": "y"}).decode()
    assert text.startswith("GET /a%20b?offset=-1 HTTP/1.1\r\nHost: example.org:444\r\n")
    assert text.endswith("\r\nX: y\r\n\r\n")


def test_quantiles_are_values_that_occurred() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [quantile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.5) == 7
