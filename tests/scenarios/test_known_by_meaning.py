"""Live requests of many clients, each with headers of its own, that are answered without being parsed.

They equal the first such request in everything that the answer depends on, so their clients wait together.  Each client
still has its own address behind a proxy, its own limits and its own line in the access log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.ops.access_log import live_reads
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from gateway.server.request import Request
from tests.scenarios import test_access_log
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.noting import TRACE, log_lines
from tests.waiting import eventually

log = test_access_log.log
SHARED = {"credentials": "shared", "trusted_proxies": ["127.0.0.1/32"]}


@pytest.fixture
def settings(log: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"sink": "file", "path": str(log), "client_address": "full", **getattr(request, "param", SHARED)}


def of_client(number: int) -> dict[str, str]:
    return {
        "User-Agent": f"reader/{number}",
        "X-Forwarded-For": f"203.0.113.{number}",
        "Authorization": f"Bearer {number}",
        "traceparent": f"00-{TRACE[:-1]}{number % 10}-b7ad6b7169203331-01",
    }


async def waiting(edge: Edge, count: int) -> None:
    """Wait until the stream is followed and has this many readers."""
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers == count for topic in topics()))


@pytest.mark.http_2
async def test_long_polls_wait_together_and_have_a_line_each(edge: Edge, log: Path) -> None:
    target = f"/s?live=long-poll&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    sections = edge.gateway.clients.header_cache
    parsed = len(sections)
    wires += [await edge.begin(target, of_client(number)) for number in range(2, 6)]
    await waiting(edge, 5)
    assert len(sections) == parsed or edge.gateway.clients.remembered is None
    await edge.post("/s", b"abc")
    answers = [await bounded(wire.answer("GET")) for wire in wires]
    assert [answer.body for answer in answers] == [b"abc"] * 5
    lines = [line for line in await log_lines(edge, log, 7) if line["mode"] == "longpoll"]
    told = ("client", "user_agent", "trace_id")
    assert sorted(tuple(line[name] for name in told) for line in lines) == [
        (f"203.0.113.{number}", f"reader/{number}", f"{TRACE[:-1]}{number}") for number in range(1, 6)
    ]
    shared = ("status", "outcome", "start", "next_offset", "sent_bytes", "close_reason", "is_final")
    assert len({tuple(line[name] for name in shared) for line in lines}) == 1
    assert lines[0]["close_reason"] == "answered"
    assert all(1 <= line["subscribers"] <= 5 for line in lines)
    assert all(line["first_byte_s"] == line["duration_s"] for line in lines)


async def test_a_long_poll_that_leaves_the_others_has_a_line_of_its_own(edge: Edge, log: Path) -> None:
    target = f"/s?live=long-poll&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    wires += [await edge.begin(target, of_client(number)) for number in range(2, 4)]
    await waiting(edge, 3)
    for number in (0, 1):
        wires[number].reset()
        await waiting(edge, 2 - number)
    edge.clock.advance(60)
    assert (await bounded(wires[2].answer("GET"))).status == 204
    lines = {line["client"][-1]: line for line in await log_lines(edge, log, 4) if line["mode"] == "longpoll"}
    told = ("outcome", "close_reason", "subscribers", "user_agent")
    assert {number: tuple(line[name] for name in told) for number, line in lines.items()} == {
        "1": ("aborted", "left", 3, "reader/1"),
        "2": ("aborted", "left", 2, "reader/2"),
        "3": ("followed", "timed_out", 1, "reader/3"),
    }
    assert [lines[number].get("status") for number in "123"] == [None, None, 204]


@pytest.mark.parametrize("settings", [{**SHARED, "live_interval_s": 10}], indirect=True)
@pytest.mark.parametrize("lines_per_turn", [1, 256])
async def test_waiting_long_polls_have_lines_at_intervals(
    edge: Edge, log: Path, monkeypatch: pytest.MonkeyPatch, lines_per_turn: int
) -> None:
    monkeypatch.setattr(live_reads, "LINES_PER_TURN", lines_per_turn)
    target = f"/s?live=long-poll&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    wires += [await edge.begin(target, of_client(number)) for number in range(2, 4)]
    await waiting(edge, 3)
    edge.clock.advance(11)
    lines = [line for line in await log_lines(edge, log, 4) if line["mode"] == "longpoll"]
    assert sorted(line["client"] for line in lines) == [f"203.0.113.{number}" for number in range(1, 4)]
    assert {(line["is_final"], line["subscribers"], line["sent_bytes"]) for line in lines} == {(False, 3, 0)}
    for wire in wires:
        wire.reset()


@pytest.mark.http_2
async def test_sse_readers_join_and_have_a_line_each(edge: Edge, log: Path) -> None:
    target = f"/s?live=sse&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    sections = edge.gateway.clients.header_cache
    parsed = len(sections)
    wires += [await edge.begin(target, of_client(number)) for number in range(2, 6)]
    await waiting(edge, 5)
    assert len(sections) == parsed or edge.gateway.clients.remembered is None
    await edge.send("POST", "/s", {"Content-Type": "text/plain", "Stream-Closed": "true"}, b"abc")
    bodies = {(await bounded(wire.answer("GET"))).body for wire in wires}
    assert len(bodies) == 1
    lines = [line for line in await log_lines(edge, log, 7) if line["mode"] == "sse"]
    told = ("client", "user_agent", "trace_id")
    assert sorted(tuple(line[name] for name in told) for line in lines) == [
        (f"203.0.113.{number}", f"reader/{number}", f"{TRACE[:-1]}{number}") for number in range(1, 6)
    ]
    shared = ("status", "outcome", "start", "next_offset", "sent_bytes", "close_reason", "is_final")
    assert len({tuple(line[name] for name in shared) for line in lines}) == 1
    assert {line["sent_bytes"] for line in lines} == {len(bodies.pop())}


@pytest.mark.parametrize("settings", [{**SHARED, "client_live_reads": 1}], indirect=True)
@pytest.mark.parametrize("mode", ["long-poll", "sse"])
async def test_each_client_behind_a_proxy_has_its_own_limit(edge: Edge, mode: str) -> None:
    target = f"/s?live={mode}&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    wires += [await edge.begin(target, of_client(number)) for number in range(2, 4)]
    await waiting(edge, 3)
    again = await edge.begin(target, of_client(2) | {"User-Agent": "another"})
    assert (await bounded(again.answer("GET"))).status == 429
    wires.pop(1).reset()
    await waiting(edge, 2)
    wires.append(await edge.begin(target, of_client(2)))
    await waiting(edge, 3)
    for wire in wires:
        wire.reset()


@pytest.mark.parametrize("settings", [{"credentials": "shared"}], indirect=True)
async def test_the_address_that_a_client_claims_for_itself_is_not_believed(edge: Edge, log: Path) -> None:
    target = f"/s?live=long-poll&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(1))]
    await waiting(edge, 1)
    wires.append(await edge.begin(target, of_client(2)))
    await waiting(edge, 2)
    await edge.post("/s", b"abc")
    for wire in wires:
        await bounded(wire.answer("GET"))
    lines = [line for line in await log_lines(edge, log, 4) if line["mode"] == "longpoll"]
    assert [line["client"] for line in lines] == ["127.0.0.1"] * 2


@pytest.mark.parametrize("settings", [{"trusted_proxies": ["127.0.0.1/32"]}], indirect=True)
async def test_readers_with_other_credentials_do_not_join(edge: Edge, log: Path) -> None:
    target = f"/s?live=long-poll&offset={(await edge.put('/s', b'0123456789')).headers['Stream-Next-Offset']}"
    wires = [await edge.begin(target, of_client(number)) for number in (1, 2)]
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: [topic.readers for topic in topics() if topic.is_confirmed] == [1, 1])
    await edge.post("/s", b"abc")
    assert [(await bounded(wire.answer("GET"))).body for wire in wires] == [b"abc"] * 2
    lines = [line for line in await log_lines(edge, log, 4) if line["mode"] == "longpoll"]
    assert len({line["partition"] for line in lines}) == 2


@pytest.mark.parametrize("settings", [{"credentials": "shared"}, {}], indirect=True)
async def test_readers_are_known_by_meaning_again_once_a_404_is_forgotten(edge: Edge, origin: RunningOrigin) -> None:
    assert (await edge.get("/s?offset=-1", {"Authorization": "Bearer a"})).status == 404
    created = await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"0123456789")
    edge.clock.advance(2)
    target = f"/s?live=sse&offset={created.next_offset}"
    wires = [await edge.begin(target, {"Authorization": "Bearer a", "User-Agent": "1"})]
    await waiting(edge, 1)
    parsed = len(edge.gateway.clients.header_cache)
    wires.append(await edge.begin(target, {"Authorization": "Bearer a", "User-Agent": "2"}))
    await waiting(edge, 2)
    assert len(edge.gateway.clients.header_cache) == parsed or edge.gateway.clients.remembered is None
    for wire in wires:
        wire.reset()


class LatePolls:
    """Long-polls at an offset that has bytes after it, and what the gateway had to do for them."""

    def __init__(self, edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
        self.edge, self.body, self.asked = edge, b"", 0
        self.parsed = 0
        handle = edge.gateway.clients.handler

        def counting(request: Request) -> Any:
            self.parsed += 1
            return handle(request)

        monkeypatch.setattr(edge.gateway.clients, "handler", counting)

    async def begin(self) -> None:
        at = (await self.edge.put("/s", b"0123456789")).headers["Stream-Next-Offset"]
        self.target = f"/s?live=long-poll&offset={at}"
        wire = await self.edge.begin(self.target, of_client(1))
        await waiting(self.edge, 1)
        await self.append(b"abc")
        self.asked += 1
        assert (await bounded(wire.answer("GET"))).body == self.body

    async def append(self, message: bytes) -> None:
        await self.edge.post("/s", message)
        self.body += message

    async def ask(self, count: int, more: str = "", **headers: str) -> int:
        """Ask so many times, each as another client.  Returns how many requests were parsed."""
        parsed = self.parsed
        for number in range(2, 2 + count):
            answer = await self.edge.get(self.target + more, {**of_client(number), **headers})
            self.asked += 1
            assert (answer.status, answer.body, answer.is_up_to_date) == (200, self.body, True)
            assert answer.headers["Stream-Cursor"].isdigit()
        return self.parsed - parsed


@pytest.fixture
def late(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> LatePolls:
    return LatePolls(edge, monkeypatch)


@pytest.mark.http_2
async def test_late_long_polls_share_an_answer_until_the_tail_moves(
    late: LatePolls, edge: Edge, counters: Counters, log: Path
) -> None:
    await late.begin()
    remembered, fetched = edge.gateway.clients.remembered, counters.requests[Kind.CATCHUP]
    for message in (b"d", b"ef", b"g"):
        served = remembered.served if remembered is not None else 0
        parsed = await late.ask(8)
        assert remembered is None or (parsed, remembered.served) == (1, served + 7)
        await late.append(message)
    assert counters.requests[Kind.CATCHUP] == fetched
    lines = [line for line in await log_lines(edge, log, late.asked + 5) if line["mode"] == "longpoll"]
    assert len(lines) == late.asked
    assert {line["client"] for line in lines} == {f"203.0.113.{number}" for number in range(1, 10)}
    assert {line["close_reason"] for line in lines} == {"answered"}


@pytest.mark.parametrize("settings", [{**SHARED, "tail_heard_s": 1}, {**SHARED, "tail": "asked"}], indirect=True)
async def test_late_long_polls_that_may_not_share_an_answer_are_not_parsed(late: LatePolls, edge: Edge) -> None:
    """The tail was seen too long ago, or the route has the origin asked for it."""
    await late.begin()
    tail = (await edge.get("/s")).next_offset
    wire = await edge.begin(f"/s?live=long-poll&offset={tail}", of_client(1))
    await waiting(edge, 1)
    edge.clock.advance(2.0)
    assert await late.ask(3) == 1 or edge.gateway.clients.remembered is None
    assert await late.ask(6) == 0 or edge.gateway.clients.remembered is None
    await edge.post("/s", b"d")
    await bounded(wire.answer("GET"))


async def test_a_late_long_poll_that_nobody_repeats_is_not_remembered(late: LatePolls, edge: Edge) -> None:
    await late.begin()
    remembered = edge.gateway.clients.remembered
    held = len(remembered) if remembered is not None else 0
    for number in range(5):
        await late.ask(1, f"&cursor={number}")
    assert remembered is None or len(remembered) == held


@pytest.mark.parametrize(
    "settings", [{**SHARED, "cors": {"allow_origins": ["https://a.example", "https://b.example"]}}], indirect=True
)
async def test_late_long_polls_of_each_web_origin_share_an_answer(late: LatePolls, edge: Edge) -> None:
    await late.begin()
    for origin in ("https://a.example", "https://b.example"):
        await late.ask(3, Origin=origin)
    for origin in ("https://a.example", "https://b.example"):
        assert await late.ask(4, Origin=origin) == 0 or edge.gateway.clients.remembered is None
