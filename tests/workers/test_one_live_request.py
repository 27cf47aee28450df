"""The origin sees one gateway, however many workers that has."""

from __future__ import annotations

import asyncio
import json

from gateway.origin.requests import Kind
from tests.offload.crowd import Checker, Client
from tests.waiting import eventually
from tests.workers.site import JSON, Site

READERS = 30
STREAMS = 4
APPENDS = 5


async def test_live_readers_at_all_workers_are_one_live_request_a_stream(site: Site) -> None:
    counters = site.origin.origin.counters
    author = await site.origin_client()
    paths = [f"/s/{number}" for number in range(STREAMS)]
    for path in paths:
        await author.send("PUT", path, JSON, b"[0]")
    log = b",".join(b"%d" % number for number in range(1 + APPENDS))
    counters.reset()

    async def follow(client: Client, path: str) -> None:
        checker = Checker(log, is_json=True)
        subscription = await client.subscribe(f"{path}?live=sse&offset=-1")
        async for control in subscription.follow(checker):
            if control.get("streamClosed"):
                break
        assert checker.position == len(log)

    async def poll(client: Client, path: str) -> None:
        checker, at, is_closed = Checker(log, is_json=True), "-1", False
        while not is_closed:
            reply = await client.read(f"{path}?live=long-poll&offset={at}", checker)
            at, is_closed = reply.next_offset, reply.is_closed
        assert checker.position == len(log)

    async with asyncio.TaskGroup() as group:
        for number in range(READERS * STREAMS):
            work = follow if number // STREAMS % 2 else poll
            group.create_task(work(await site.client(), paths[number % STREAMS]))

        async def all_wait() -> bool:
            return (await site.gateway.figures())["durable_gateway_subscribers"] == READERS * STREAMS

        await eventually(all_wait, look_s=0.02)
        assert len({site.gateway.worker_at(client.port) for client in site.clients}) > 1
        assert counters.live_open == STREAMS
        for number in range(1, 1 + APPENDS):
            for path in paths:
                await author.send("POST", path, JSON, json.dumps(number).encode())
        for path in paths:
            await author.send("POST", path, {"Stream-Closed": "true"})
    assert counters.live_peak == STREAMS
    assert counters.requests[Kind.SSE] + counters.requests[Kind.LONGPOLL] == STREAMS


async def test_readers_at_all_workers_are_one_fetch_a_stream(site: Site) -> None:
    counters = site.origin.origin.counters
    author, clients = await site.origin_client(), await site.client_of_each()
    body = json.dumps(["x" * 1000] * 200).encode()
    for number in range(STREAMS):
        await author.send("PUT", f"/s/{number}", JSON, body)
    counters.reset()
    for number in range(STREAMS):
        checkers = [Checker(body[1:-1].replace(b", ", b","), is_json=True) for _ in clients]
        await asyncio.gather(
            *(client.read(f"/s/{number}?offset=-1", one) for client, one in zip(clients, checkers, strict=True))
        )
    # One read brings the bytes, and a HEAD what only a HEAD says.
    assert counters.requests[Kind.CATCHUP] == STREAMS
    assert counters.requests[Kind.HEAD] <= STREAMS
