"""Shared credentials before an origin that hides a stream, by a 404 or 410, from those who may not see it."""

from __future__ import annotations

import asyncio

import pytest
from multidict import CIMultiDict

from gateway.engine.long_poll_waiter import WaitingPoll
from gateway.engine.read import Read, Uncacheable
from gateway.protocol.mode import Mode
from gateway.protocol.target import parse_target
from tests.engine.bench import BINARY, BinaryOrigin, LongPoll, Start, confirm
from tests.memory_upstream import Asked
from tests.waiting import pass_turns


class Hiding:
    """An origin that shows its stream to `allowed` alone; readers by name."""

    def __init__(self, start: Start, status: int = 404) -> None:
        self.origin = BinaryOrigin(b"ab")
        self.allowed = {"a", "b"}
        self.status = status
        self.trimmed: str | None = None
        self.bench = start(self._script, tail="asked", follow_above_per_s=0, credentials="shared")

    def _script(self, asked: Asked) -> None:
        if asked.method in ("PUT", "POST", "DELETE") or asked.is_live:
            return
        if asked.headers.get("Authorization") not in self.allowed:
            asked.answer(self.status)
        elif self.trimmed is not None and asked.query.get("offset") == self.trimmed:
            asked.answer(410)
        else:
            self.origin(asked)

    def _read(self, who: str, target: str, *, is_live: bool = False) -> Read:
        route, parsed, headers = self.bench.route, parse_target(target), CIMultiDict({"Authorization": who})
        source = route.source(parsed, route.source_headers(route.credentials(headers)))
        key = route.key(parsed, route.partition(headers))
        return Read(route, key, source, parsed.offset or "-1", parsed.cursor, is_live=is_live)

    async def status_of(self, who: str, target: str = "/s") -> int:
        """The status that a reader is answered; a refused one that goes on alone gets the origin's own."""
        try:
            answer = await self.bench.engine.catch_up(self._read(who, target))
        except Uncacheable:
            return 200 if who in self.allowed else self.status
        answer.close()
        return answer.status

    async def wait(self, who: str) -> LongPoll:
        """A long-poll that waits at 0002."""
        client = LongPoll()
        found = await self.bench.engine.long_poll(self._read(who, "/s?offset=0002&live=long-poll", is_live=True))
        assert isinstance(found, WaitingPoll), found
        found.start(client).start()
        return client


@pytest.mark.parametrize("status", [404, 410])
async def test_a_reader_whose_right_has_ended_takes_the_stream_from_no_other(start: Start, status: int) -> None:
    """It was the last that the stream was shown to."""
    hiding = Hiding(start, status)
    assert await hiding.status_of("a") == 200
    client = await hiding.wait("a")
    confirm(await hiding.bench.live_request(), "0002")
    await pass_turns()
    assert await hiding.status_of("b") == 200
    record = hiding.bench.stream
    hiding.allowed = {"a"}
    assert await hiding.status_of("b") == status
    await pass_turns()
    assert client.answers == []
    assert record.ended is None


async def test_where_only_one_has_been_shown_the_stream_its_404_is_believed(start: Start) -> None:
    hiding = Hiding(start)
    assert await hiding.status_of("a") == 200
    record = hiding.bench.stream
    hiding.allowed = set()
    assert await hiding.status_of("a") == 404
    assert record.ended is not None


async def test_a_stranger_does_not_end_the_live_readers_of_a_stream_that_was_just_made(start: Start) -> None:
    hiding = Hiding(start)
    bench = hiding.bench
    making = asyncio.create_task(bench.relay(Mode.CREATE, b"", Authorization="a"))
    (await bench.until(1)).answer(201, {**BINARY, "Stream-Next-Offset": "0002"})
    (await making).close()
    client = await hiding.wait("a")
    await bench.live_request()
    assert await hiding.status_of("stranger") == 404
    await pass_turns()
    assert client.answers == []


async def test_a_refusal_of_a_trimmed_offset_leaves_the_live_request(start: Start) -> None:
    hiding = Hiding(start)
    assert await hiding.status_of("a") == 200
    await hiding.wait("a")
    confirm(await hiding.bench.live_request(), "0002")
    await pass_turns()
    hiding.trimmed = "0001"
    assert await hiding.status_of("b", "/s?offset=0001") == 410
    await pass_turns()
    assert len(hiding.bench.live) == 1
