"""The bound on a whole exchange with the origin holds for any slow party: no connection is held for ever."""

import asyncio

import pytest
from multidict import CIMultiDict

from gateway.errors import UpstreamTimeout
from gateway.upstream.client import OriginClient
from gateway.upstream.origin_call import Bounds, OriginCall
from tests.scenarios.conftest import Hostile, Start, bounded
from tests.scenarios.hostile import Asked, part_of_stream
from tests.waiting import eventually

TOTAL_S = 1.0
BODY = b"x" * (16 << 20)


async def large(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(part_of_stream(BODY, "0001"))


async def test_a_stalled_reader_releases_the_origins_connection_in_time(hostile: Hostile, start: Start) -> None:
    origin = await hostile(large, takes_head=True)
    edge = await start(origin.url, total_timeout_s=2.0)
    client = edge.gateway.engine.client
    wire = await edge.begin("/s?offset=-1", receive_bytes=4096)
    assert (await wire.head()).status == 200
    assert client.open_connections == 1
    await eventually(lambda: client.open_connections == 0)


async def test_the_bound_counts_while_the_buffer_is_full(hostile: Hostile) -> None:
    origin = await hostile(large)
    client = OriginClient()
    try:
        now = asyncio.get_running_loop().time
        call = OriginCall("GET", origin.url + "/s", CIMultiDict(), Bounds(total_s=TOTAL_S))
        async with await client.send(call) as reply:
            ends_at = now() + TOTAL_S
            chunks = reply.chunks()
            await bounded(anext(chunks))
            await eventually(lambda: now() > ends_at)
            with pytest.raises(UpstreamTimeout):
                await bounded(anext(chunks))
    finally:
        await client.close()
