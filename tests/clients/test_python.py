"""PyPI's `durable-streams` through the gateway, in front of the in-memory origin and of the real server.

This client does not know closure: at the end of a closed stream it long-polls in a tight loop, for ever.  The origin
must not notice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import httpx
import pytest
from durable_streams import AsyncDurableStream, StreamNotFoundError, astream, stream

from gateway.protocol.mode import Mode
from tests.clients.conftest import Edge
from tests.effort import examples
from tests.workers.edge import WORKERS

JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"

BOUND_S = 60.0

OBJECTS = [{"n": number, "text": "é\u2028\n"} for number in range(6)]
MESSAGES = [json.dumps(item).encode() for item in OBJECTS]


LOOPS = examples(150, 500)
READERS = 12


class Enough(Exception):
    """The client has sent so many requests that it would never stop."""


@pytest.fixture
async def restless() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client that raises Enough instead of sending one request too many."""
    asked = 0

    async def count(request: httpx.Request) -> None:
        nonlocal asked
        asked += 1
        if asked > LOOPS:
            raise Enough

    async with httpx.AsyncClient(timeout=BOUND_S, event_hooks={"request": [count]}) as http:
        yield http


async def test_a_catch_up_read_has_everything(edge: Edge, path: str) -> None:
    await edge.create(path, JSON, *MESSAGES)
    for _ in range(2):
        async with astream(edge.url + path, live=False) as read:
            assert await read.read_json() == OBJECTS
            assert read.up_to_date
    raw = bytes(range(256)) * 1_000
    await edge.create(path + "/raw", BINARY, raw, raw)
    async with astream(edge.url + path + "/raw", live=False) as read:
        assert await read.read_bytes() == raw * 2


async def test_the_synchronous_client_reads_too(edge: Edge, path: str) -> None:
    await edge.create(path, TEXT, b"one\r\n", b"two\r\n")

    def read() -> str:
        with stream(edge.url + path, offset="-1", live=False) as response:
            text: str = response.read_text()
            return text

    assert await asyncio.to_thread(read) == "one\r\ntwo\r\n"


@pytest.mark.parametrize("live", ["auto", "long-poll"])
async def test_long_polls_deliver_appends(edge: Edge, path: str, live: Any) -> None:
    await edge.create(path, JSON, *MESSAGES[:2])
    async with asyncio.timeout(BOUND_S), astream(edge.url + path, offset="-1", live=live) as read:
        items = read.iter_json()
        assert [await anext(items) for _ in range(2)] == OBJECTS[:2]
        for message, item in zip(MESSAGES[2:], OBJECTS[2:], strict=True):
            await edge.append(path, JSON, message)
            assert await anext(items) == item


@pytest.mark.parametrize("content_type", [JSON, TEXT], ids=["json", "text"])
async def test_sse_delivers_appends_and_ends_at_closure(edge: Edge, path: str, content_type: str) -> None:
    messages = MESSAGES if content_type == JSON else [f"line {number}\n".encode() for number in range(6)]
    items = OBJECTS if content_type == JSON else [message.decode() for message in messages]
    await edge.create(path, content_type, messages[0])
    async with asyncio.timeout(BOUND_S), astream(edge.url + path, offset="-1", live="sse") as read:
        arriving: AsyncIterator[Any] = read.iter_json() if content_type == JSON else read.iter_text()
        assert await anext(arriving) == items[0]
        for message, item in zip(messages[1:], items[1:], strict=True):
            await edge.append(path, content_type, message)
            assert await anext(arriving) == item
        await edge.close(path)
        assert [item async for item in arriving] == []


async def test_a_session_resumed_at_its_offset_has_the_rest(edge: Edge, path: str) -> None:
    await edge.create(path, JSON, *MESSAGES[:3])
    async with asyncio.timeout(BOUND_S), astream(edge.url + path, offset="-1", live="sse") as first:
        batches = first.iter_events(mode="json")
        seen: list[Any] = []
        at = "-1"
        while len(seen) < 3:
            event = await anext(batches)
            seen += event.data if isinstance(event.data, list) else [event.data]
            at = event.next_offset
    for message in MESSAGES[3:]:
        await edge.append(path, JSON, message)
    async with astream(edge.url + path, offset=at, live=False) as rest:
        assert seen + await rest.read_json() == OBJECTS


@pytest.mark.parametrize("content_type", [JSON, TEXT], ids=["json", "text"])
async def test_its_tight_loop_on_a_closed_stream_costs_the_origin_nothing(
    edge: Edge, path: str, restless: httpx.AsyncClient, content_type: str
) -> None:
    await edge.create(path, content_type, *MESSAGES[:2])
    await edge.close(path)
    # Each request is bounded, and not all of them together, because a busy machine takes long for so many.
    async with astream(edge.url + path, offset="-1", live="long-poll", client=restless) as read:
        chunks = aiter(read)
        first = await anext(chunks)
        assert (json.loads(first) == OBJECTS[:2]) if content_type == JSON else (first == b"".join(MESSAGES[:2]))
        known = edge.reads_at_origin
        with pytest.raises(Enough):
            await anext(chunks)
    # Another worker than the stream's owner asks for its metadata once.
    assert edge.reads_at_origin - known <= (1 if WORKERS > 1 else 0)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_many_readers_from_the_start_cost_the_origin_one_live_request(edge: Edge, path: str, live: Any) -> None:
    await edge.create(path, JSON, *MESSAGES[:2])
    async with httpx.AsyncClient(timeout=BOUND_S) as http, AsyncExitStack() as reading, asyncio.timeout(BOUND_S):
        begin = partial(astream, edge.url + path, offset="-1", client=http)

        async def follow() -> AsyncIterator[Any]:
            read = await reading.enter_async_context(begin(live=live))
            return read.iter_json()

        async def take(items: AsyncIterator[Any], count: int) -> list[Any]:
            return [await anext(items) for _ in range(count)]

        followers = await asyncio.gather(*(follow() for _ in range(READERS)))
        assert await asyncio.gather(*(take(items, 2) for items in followers)) == [OBJECTS[:2]] * READERS
        for message, item in zip(MESSAGES[2:], OBJECTS[2:], strict=True):
            await edge.append(path, JSON, message)
            assert await asyncio.gather(*(anext(items) for items in followers)) == [item] * READERS
        # More readers come one after another: some follow for a while, some read to the tail and leave.
        for _ in range(READERS):
            async with begin(live=live) as read:
                assert await take(read.iter_json(), len(OBJECTS)) == OBJECTS
            async with begin(live=False) as read:
                assert await read.read_json() == OBJECTS
        # One at a time; it is reconnected if the machine stalls for longer than a live request may lag.
        assert edge.gateway.metrics.upstream_requests(Mode.SSE).value <= 3
        assert edge.gateway.metrics.upstream_requests(Mode.LONGPOLL).value == 0
        # The first reader's catch-up read, a tail probe by readers that came during it, a request for the stream's
        # metadata, and the live request.
        assert edge.reads_at_origin <= 10


async def test_it_reads_what_it_wrote(edge: Edge, path: str) -> None:
    handle = await AsyncDurableStream.create(edge.url + path, content_type=JSON)
    async with handle:
        for count, item in enumerate(OBJECTS, 1):
            await handle.append(item)
            async with astream(edge.url + path, live=False) as read:
                assert await read.read_json() == OBJECTS[:count]
        head = await handle.head()
        assert head.content_type == JSON
        await AsyncDurableStream.delete_static(edge.url + path)
        with pytest.raises(StreamNotFoundError):
            async with astream(edge.url + path, live=False):
                pass
