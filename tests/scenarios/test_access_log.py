"""The access log of requests that a real gateway answers in front of a real origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Edge
from tests.scenarios.noting import TRACE, TRACEPARENT, log_lines
from tests.scenarios.wire import Dropped
from tests.waiting import eventually


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def settings(log: Path) -> dict[str, Any]:
    return {"sink": "file", "path": str(log), "client_address": "full", "node_name": "west"}


@pytest.mark.http_2
async def test_each_request_has_one_line_with_its_answer(edge: Edge, log: Path) -> None:
    created = await edge.put("/s", b"0123456789")
    read = await edge.get("/s?offset=-1", {"User-Agent": "reader/1", "traceparent": TRACEPARENT})
    await edge.send("HEAD", "/s")
    await edge.get("/s?offset=-1&offset=now")
    await edge.get("/missing?offset=-1", {"traceparent": TRACEPARENT, "Traceparent": TRACEPARENT})
    refused = await edge.send("HEAD", "/s?offset=-1&offset=now")
    lines = await log_lines(edge, log, 6)
    told = ("method", "status", "next_offset")
    assert [tuple(line.get(name) for name in told) for line in lines] == [
        ("PUT", 201, created.headers["Stream-Next-Offset"]),
        ("GET", 200, read.headers["Stream-Next-Offset"]),
        ("HEAD", 200, read.headers["Stream-Next-Offset"]),
        ("GET", 400, None),
        ("GET", 404, None),
        ("HEAD", 400, None),
    ]
    # The refusal says how long its body would be, and has none.
    assert (int(refused.headers["Content-Length"]) > 0, lines[5]["sent_bytes"]) == (True, 0)
    assert [line["stream"].partition("?")[0] for line in lines] == ["/s", "/s", "/s", "/s", "/missing", "/s"]
    readers = [(line.get("user_agent"), line.get("trace_id")) for line in lines[1:3]]
    assert readers == [("reader/1", TRACE), (None, None)]
    assert {(line["node"], line["client"], line["v"]) for line in lines} == {("west", "127.0.0.1", 1)}
    assert lines[4].get("trace_id") is None


async def test_the_bytes_of_an_answer_to_an_unexpected_error_are_logged(
    edge: Edge, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(edge.gateway.engine, "catch_up", fail)
    monkeypatch.setattr(edge.gateway.engine, "knows", fail)
    answers = [await edge.send(method, "/s?offset=-1") for method in ("GET", "HEAD")]
    lines = await log_lines(edge, log, 2)
    assert [answer.status for answer in answers] == [line["status"] for line in lines] == [500, 500]
    assert [len(answer.body) for answer in answers] == [line["sent_bytes"] for line in lines]
    assert lines[0]["sent_bytes"] > 0
    assert caplog.text.count("unhandled error") == 2


async def test_bytes_of_a_shared_fetch_count_for_its_leader_and_all_sharers_are_marked(
    edge: Edge, log: Path, origin: RunningOrigin
) -> None:
    await edge.put("/s", b"x" * 1_000)
    gate = origin.origin.faults.hold(kind="catchup")
    reads = [edge.asking("/s?offset=-1")]
    await gate.waiting(1)
    reads += [edge.asking("/s?offset=-1") for _ in range(4)]
    await eventually(edge.readers(5))
    gate.release()
    for read in reads:
        assert len((await read).body) == 1_000
    lines = (await log_lines(edge, log, 6))[1:]
    assert sorted(line["fetched_bytes"] for line in lines) == [0, 0, 0, 0, 1_000]
    assert {line["collapsed"] for line in lines} == {5}
    # A later reader causes no fetch.
    assert (await edge.get("/s?offset=-1", {"Cache-Control": "max-age=60", "X-Later": "1"})).body == b"x" * 1_000
    assert (await log_lines(edge, log, 7))[6]["fetched_bytes"] == 0


def fetched(edge: Edge) -> float:
    """Body bytes from the origin, by the metric."""
    families = edge.gateway.metrics.registry.collect()
    (family,) = [family for family in families if family.name == "durable_gateway_upstream_bytes"]
    return sum(sample.value for sample in family.samples)


async def test_bytes_of_a_fetch_whose_leader_left_count_for_a_remaining_reader(
    edge: Edge, log: Path, origin: RunningOrigin
) -> None:
    await edge.put("/s", b"x" * 1_000)
    gate = origin.origin.faults.hold(kind="catchup")
    leader = await edge.begin("/s?offset=-1")
    await gate.waiting(1)
    reads = [edge.asking("/s?offset=-1") for _ in range(3)]
    await eventually(edge.readers(4))
    await leader.closed()
    await eventually(edge.readers(3))
    gate.release()
    for read in reads:
        assert len((await read).body) == 1_000
    lines = await log_lines(edge, log, 5)
    assert sorted(line["fetched_bytes"] for line in lines) == [0, 0, 0, 0, 1_000]
    assert fetched(edge) == 1_000


async def test_bytes_in_the_lines_add_up_to_the_origins_bytes(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    await edge.put("/s", b'[{"a":1},{"a":2}]', "application/json")
    assert (await edge.get("/s?offset=-1")).body == b'[{"a":1},{"a":2}]'
    refused = await edge.get("/missing?offset=-1")
    assert refused.status == 404
    assert refused.body
    lines = await log_lines(edge, log, 3)
    assert [line["fetched_bytes"] for line in lines[1:]] == [17, len(refused.body)]
    assert sum(line["fetched_bytes"] for line in lines) == fetched(edge)


@pytest.mark.http_1
async def test_a_request_that_cannot_be_parsed_has_a_line_and_is_counted(edge: Edge, log: Path) -> None:
    wire = await edge.wire()
    await wire.send(b"GET /s HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n")
    answer = await wire.answer("GET")
    assert answer.status == 400
    answered_at = edge.clock.wall()
    (line,) = await log_lines(edge, log, 1)
    told = ("method", "stream", "mode", "outcome", "status", "sent_bytes", "client", "is_final")
    assert [line[name] for name in told] == ["", "", "other", "refused", 400, len(answer.body), "127.0.0.1", True]
    assert line["time"] == pytest.approx(answered_at, abs=5)
    labels = {"mode": "other", "outcome": "refused", "route": "-"}
    registry = edge.gateway.metrics.registry
    assert registry.get_sample_value("durable_gateway_requests_total", labels) == 1
    assert registry.get_sample_value("durable_gateway_response_bytes_total", labels) == len(answer.body)


async def test_an_answer_that_was_cut_off_is_logged_as_aborted(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    await edge.put("/s", b"x" * 500_000)
    origin.origin.faults.drop(300_000, kind="catchup", times=None)
    with pytest.raises(Dropped):
        await edge.get("/s?offset=-1")
    line = (await log_lines(edge, log, 2))[1]
    assert line["outcome"] == "aborted"
    assert "status" not in line
