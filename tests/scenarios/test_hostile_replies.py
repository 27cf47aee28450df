"""Each reply of `hostile_replies.py`: its client gets what the table says, other clients are served meanwhile, nothing
of it is remembered wrongly, and its connection is not used again if the next reply could not be told from its rest."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer
from tests.scenarios.hostile_replies import CUT, END, EVENTS, GOOD, NEXT, POLL, ROWS, WHOLE, Row
from tests.scenarios.wire import Dropped, Wire
from tests.waiting import eventually

BINARY = {**NEXT, "Content-Type": "application/octet-stream"}


class Origin:
    """The script of an origin that gives `row.reply` to the row's requests while `is_hostile`, and else is good."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.is_hostile = False
        self.hit: set[int] = set()
        """The connections on which it was hostile."""
        self._is_live = "live=" in row.to
        self._fields = BINARY if row.to == EVENTS else NEXT

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        is_live = "live=" in asked.target
        is_meant = asked.target.startswith("/s") and asked.method == self.row.method and is_live == self._is_live
        if self.is_hostile and is_meant:
            self.hit.add(asked.connection)
            if isinstance(self.row.reply, bytes):
                writer.write(self.row.reply)
            else:
                await self.row.reply(writer)
        elif asked.method == "HEAD":
            writer.write(answer("200 OK", {**self._fields, "Content-Length": str(len(GOOD))}))
        elif asked.method != "GET":
            writer.write(answer("204 No Content", {"Stream-Next-Offset": END}))
        elif is_live:
            # A long-poll that waits, whatever was asked for.
            await writer.wait_closed()
        else:
            is_tail = f"offset={END}" in asked.target or "offset=now" in asked.target
            writer.write(answer("200 OK", self._fields, b"" if is_tail else GOOD))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.to.partition('live=')[2]} {row.name}")
async def test_a_hostile_reply_harms_its_own_request_alone(hostile: Hostile, start: Start, row: Row) -> None:
    script = Origin(row)
    origin = await hostile(script, takes_head=True)
    edge = await start(
        origin.url, retry_attempts=0, first_byte_timeout_s=1, idle_timeout_s=1, max_flight_bytes=1 << 20,
        long_poll_timeout_s=3, breaker_failures=1_000,
    )  # fmt: skip
    if "live=" in row.to:
        assert (await edge.get("/s?offset=-1")).body == GOOD
    script.is_hostile = True
    wire = await edge.begin(row.to, {"Content-Type": "text/plain"}, method=row.method, body=_body(row))
    await origin.until(lambda: bool(script.hit))
    # Others are served while it goes on, before any of its bounds ends it.
    assert (await edge.get("/other")).body == GOOD
    assert (await edge.post("/other", b"x")).status == 204
    async with edge.time_passing(0.01):
        assert await _what_came(wire, row) in row.gives
    script.is_hostile = False
    wire.leave()
    if row.to not in (POLL, EVENTS):
        await _check_connections(script, origin.writers, row)
    await _check_memory(edge, row)


def _body(row: Row) -> bytes | None:
    return b"x" if row.method in ("POST", "PUT") else None


async def _what_came(wire: Wire, row: Row) -> int:
    """The status that the client got, or CUT.  Of events only the head and what is no data may have come."""
    try:
        if row.to != EVENTS:
            answered = await wire.answer(row.method)
            if answered.status == 200 and row.method == "GET" and row.to != POLL:
                assert answered.body in (GOOD, b"")
            if answered.status >= 500 and "Retry-After" not in answered.headers:
                assert answered.is_one_line_of_text
            return answered.status
        head = await wire.head()
        if head.status == 200:
            event = await asyncio.wait_for(wire.event(), 0.3)
            assert event is None or event.name != "data"
    except TimeoutError:
        return head.status
    except Dropped:
        return CUT
    return head.status


async def _check_connections(script: Origin, writers: list[asyncio.StreamWriter], row: Row) -> None:
    if row.keeps is False:
        await eventually(lambda: all(writers[number].is_closing() for number in script.hit))
    elif row.keeps:
        assert not any(writers[number].is_closing() for number in script.hit)


async def _check_memory(edge: Edge, row: Row) -> None:
    """Two reads of all, of which the second may come from memory, one of the tail, and a HEAD: now all is good."""
    async with edge.time_passing(0.01):
        for _ in range(2):
            read = await bounded(edge.get("/s?offset=-1"))
            assert (read.status, read.body, read.next_offset) == (200, GOOD, END)
            assert not read.is_closed
        tail = await bounded(edge.get(f"/s?offset={END}"))
        assert (tail.status, tail.body, tail.next_offset, tail.is_up_to_date) == (200, b"", END, True)
        head = await bounded(edge.send("HEAD", "/s"))
        assert (head.status, head.headers.getall("Stream-Next-Offset")) == (200, [END])


async def test_bodies_after_head_spoil_none_of_600_requests(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "HEAD":
            writer.write(WHOLE.replace(GOOD, b"evil bytes"))
        elif asked.method == "GET":
            writer.write(answer("200 OK", NEXT, GOOD))
        else:
            writer.write(answer("204 No Content", {"Stream-Next-Offset": END, "X-Path": asked.target}))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url)
    for number in range(20):
        paths = [f"/{number}/{each}" for each in range(10)]
        heads = [asyncio.create_task(edge.send("HEAD", path)) for path in paths]
        reads = [edge.asking(f"{path}?offset=-1") for path in paths]
        writes = [asyncio.create_task(edge.post(path, b"x")) for path in paths]
        assert {one.status for one in await bounded(asyncio.gather(*heads))} == {200}
        assert {(one.status, one.body) for one in await bounded(asyncio.gather(*reads))} == {(200, GOOD)}
        written = await bounded(asyncio.gather(*writes))
        assert [(one.status, one.headers["X-Path"]) for one in written] == [(204, path) for path in paths]
