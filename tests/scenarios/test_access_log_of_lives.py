"""The access log of remembered answers and of live reads, from beginning to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.protocol.mode import Mode
from tests.scenarios import test_access_log
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.noting import TRACE, TRACEPARENT, confirmed, log_lines
from tests.waiting import eventually

log = test_access_log.log
settings = test_access_log.settings


async def of_mode(edge: Edge, log: Path, count: int, mode: Mode) -> dict[str, Any]:
    """The only line of this mode among this many lines."""
    (line,) = [line for line in await log_lines(edge, log, count) if line["mode"] == mode]
    return line


async def test_every_hit_has_a_line_on_either_path(edge: Edge, log: Path) -> None:
    tail = (await edge.put("/s", b"0123456789", Stream_Closed="true")).headers["Stream-Next-Offset"]
    for _ in range(3):
        await edge.get("/s?tenant=7&offset=-1", {"User-Agent": "a"})
    wire = await edge.wire()
    for _ in range(5):
        await wire.ask("/s?tenant=7&offset=-1", {"User-Agent": "b", "traceparent": TRACEPARENT})
        assert (await wire.answer("GET")).body == b"0123456789"
    lines = (await log_lines(edge, log, 9))[1:]
    assert [line["outcome"] for line in lines] == ["miss"] + ["hit"] * 7
    assert [line["user_agent"] for line in lines] == ["a"] * 3 + ["b"] * 5
    assert [line.get("trace_id") for line in lines] == [None] * 3 + [TRACE] * 5
    shared = ("stream", "mode", "route", "status", "start", "next_offset", "sent_bytes", "client", "is_final")
    assert {tuple(line[name] for name in shared) for line in lines} == {
        ("/s?tenant=7", "catchup", "default", 200, "-1", tail, 10, "127.0.0.1", True)
    }
    assert sum(line["fetched_bytes"] for line in lines) == 10


@pytest.mark.parametrize("credentials", [{}, {"Authorization": "Bearer s3cret"}])
async def test_an_sse_reader_has_a_line_at_its_end(edge: Edge, log: Path, credentials: dict[str, str]) -> None:
    await edge.put("/s", b"0123456789")
    reader = await edge.begin("/s?live=sse&offset=-1", credentials)
    await confirmed(edge)
    tail = (await edge.send("POST", "/s", {"Content-Type": "text/plain", "Stream-Closed": "true"})).headers
    line = await of_mode(edge, log, 3, Mode.SSE)
    told = ("status", "outcome", "start", "next_offset", "subscribers", "is_final", "close_reason")
    expected = (200, "followed", "-1", tail["Stream-Next-Offset"], 1, True, "closed")
    assert tuple(line[name] for name in told) == expected
    # Heads and chunk sizes do not count.
    assert line["sent_bytes"] == len((await bounded(reader.answer("GET"))).body)
    assert line["first_byte_s"] <= line["duration_s"]
    assert ("partition" in line) is bool(credentials)
    assert "s3cret" not in str(line)
    await eventually(lambda: not edge.gateway.engine.live)


@pytest.mark.parametrize("reason", ["ended", "left", "lifetime"])
async def test_the_line_of_an_sse_reader_says_why_it_ended(edge: Edge, log: Path, reason: str) -> None:
    await edge.put("/s", b"0123456789")
    reader = await edge.begin("/s?live=sse&offset=-1")
    await reader.head()
    await confirmed(edge)
    lines = 2
    match reason:
        case "ended":
            await edge.send("DELETE", "/s")
            lines += 1
        case "left":
            await reader.closed()
        case "lifetime":
            edge.clock.advance(60)
    line = await of_mode(edge, log, lines, Mode.SSE)
    assert (line["close_reason"], line["outcome"]) == (reason, "aborted" if reason == "left" else "followed")


@pytest.mark.parametrize("reason", ["answered", "timed_out", "ended", "left"])
async def test_the_line_of_a_long_poll_says_why_it_ended(edge: Edge, log: Path, reason: str) -> None:
    tail = (await edge.put("/s", b"0123456789")).headers["Stream-Next-Offset"]
    waiting = await edge.begin(f"/s?live=long-poll&offset={tail}")
    await confirmed(edge)
    lines, status = 2, 0
    match reason:
        case "answered":
            await edge.post("/s", b"ab")
            lines, status = 3, 200
        case "ended":
            await edge.send("DELETE", "/s")
            lines, status = 3, 404
        case "left":
            waiting.reset()
        case "timed_out":
            edge.clock.advance(60)
            status = 204
    if status:
        assert (await bounded(waiting.answer("GET"))).status == status
    line = await of_mode(edge, log, lines, Mode.LONGPOLL)
    assert (line["close_reason"], line.get("status", 0)) == (reason, status)
    if reason == "answered":
        assert line["sent_bytes"] == 2
    assert line["subscribers"] == 1


async def test_lines_of_coded_answers_state_the_saved_bytes_on_either_path(edge: Edge, log: Path) -> None:
    text = b"the same again and " * 200
    coded = {"Accept-Encoding": "gzip"}
    tail = (await edge.put("/s", text)).headers["Stream-Next-Offset"]
    waiting = await edge.begin(f"/s?live=long-poll&offset={tail}", coded)
    await confirmed(edge)
    await edge.send("POST", "/s", {"Content-Type": "text/plain", "Stream-Closed": "true"}, text)
    answers = [await bounded(waiting.answer("GET"))]
    answers += [await edge.get("/s?offset=-1", coded) for _ in range(3)]
    assert (await edge.get("/s?offset=-1", coded | {"If-None-Match": answers[1].headers["ETag"]})).status == 304
    lines = [line for line in await log_lines(edge, log, 7) if line["method"] == "GET"]
    assert [line["mode"] for line in lines] == ["longpoll", "catchup", "catchup", "catchup", "catchup"]
    for line, answer, size in zip(lines, answers, (len(text), *[2 * len(text)] * 3), strict=False):
        assert (line["coding"], line["sent_bytes"]) == ("gzip", len(answer.body))
        assert line["sent_bytes"] + line["saved_bytes"] == size
    assert (lines[-1]["status"], "saved_bytes" in lines[-1]) == (304, False)


async def test_drained_readers_are_logged_as_drained(edge: Edge, log: Path) -> None:
    await edge.put("/s", b"0123456789")
    reader = await edge.begin("/s?live=sse&offset=-1")
    await reader.head()
    poll = await edge.begin("/s?live=long-poll&offset=now")
    await confirmed(edge, 2)
    edge.clock.advance(2)
    edge.gateway.drain(1.0)
    lines = await log_lines(edge, log, 3)
    assert {line["mode"]: line.get("close_reason") for line in lines[1:]} == {"sse": "drained", "longpoll": "drained"}
    assert (await bounded(poll.answer("GET"))).status == 204
