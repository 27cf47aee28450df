"""Streams with a followed tail, for scenarios."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.origin.sse import control_event
from gateway.protocol.cursor import interval
from tests.scenarios.conftest import Edge
from tests.waiting import eventually

JSON = "application/json"
TYPES = [JSON, "text/plain", "application/octet-stream"]
BODY = {JSON: b'["a"]', "text/plain": b"a", "application/octet-stream": b"a"}


def position(edge: Edge, path: str) -> str | None:
    """The position that the follower of the stream at `path` has confirmed."""
    live = edge.gateway.engine.live
    topics = [live.find_topic(stream) for stream in edge.gateway.engine.store if stream.key.group.path == path]
    return next((topic.position for topic in topics if topic is not None and topic.is_confirmed), None)


@asynccontextmanager
async def followed(edge: Edge, counters: Counters, content_type: str = JSON, path: str = "/s") -> AsyncIterator[str]:
    """A stream with one live reader at its tail, which is returned; the counters start after that."""
    await edge.put(path, BODY[content_type], content_type)
    tail = (await edge.get(path)).next_offset
    wire = await edge.begin(f"{path}?offset={tail}&live=sse")
    await wire.head()
    await eventually(lambda: position(edge, path) == tail)
    # The first read asks once how long the stream lives.
    await edge.get(path)
    counters.reset()
    yield tail
    wire.reset()


@asynccontextmanager
async def followed_until_silent(edge: Edge, counters: Counters, faults: Faults) -> AsyncIterator[str]:
    """The same, but the live request stalls after its first event, on an open connection."""
    cursor = str(interval(edge.clock.wall()))
    first_event = control_event(f"{0:016d}_{0:016d}", cursor, up_to_date=True, is_closed=False)
    stall = faults.stall(len(first_event), kind=Kind.SSE, times=None)
    async with followed(edge, counters) as tail:
        yield tail
    stall.release()
