"""What holds of a gateway with workers: checks that the tests run, and that have to fail for each mutant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import permutations
from typing import Final

from gateway.origin.requests import Kind
from tests.offload.crowd import Checker, Client
from tests.waiting import eventually
from tests.workers.site import JSON, Site, followed, read_all

LIVE_STREAMS: Final = 6
READERS: Final = 8
"""Live readers of each."""
APPENDS: Final = 5
STREAMS: Final = 4
"""So many that each worker most likely owns one of them, and another writes to it."""


async def messages(client: Client, path: str) -> list[object]:
    """Everything in a stream, by a catch-up read that has to find its tail."""
    reply, body = await read_all(client, path)
    assert (reply.status, reply.is_up_to_date) == (200, True), (path, reply)
    return list(json.loads(body))


def _pairs(clients: Sequence[Client]) -> list[tuple[Client, Client]]:
    """Each client with the next."""
    return list(zip(clients, [*clients[1:], clients[0]], strict=True))


async def check_appends(site: Site, *, is_followed: bool) -> None:
    """Every worker shows an append in its next answer, whichever worker has acknowledged it."""
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        await clients[0].send("PUT", path, JSON)
        written: list[object] = []
        # With live readers, the answers need nothing of the origin.
        async with followed(await site.client_of_each() if is_followed else (), path):
            for writer, reader in permutations(clients, 2):
                assert await messages(reader, path) == written
                written.append(len(written))
                reply = await writer.send("POST", path, JSON, json.dumps(written[-1]).encode())
                assert reply.status == 204
                assert await messages(reader, path) == written, path
                head = await reader.send("HEAD", path)
                assert head.next_offset == reply.next_offset


async def check_deletions(site: Site, *, is_followed: bool) -> None:
    """Every worker answers 404 once one of them has acknowledged a DELETE."""
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        for writer, reader in _pairs(clients):
            reply, _ = await read_all(reader, path)
            assert reply.status == 404
            assert (await writer.send("PUT", path, JSON, b'["old"]')).status == 201
            async with followed(await site.client_of_each() if is_followed else (), path):
                for client in clients:
                    assert await messages(client, path) == ["old"]
                assert (await writer.send("DELETE", path)).status == 204
                for client in (reader, *clients):
                    reply, _ = await read_all(client, path)
                    assert reply.status == 404, path


async def check_re_creations(site: Site, *, is_followed: bool) -> None:
    """Every worker shows the new stream alone once one of them has acknowledged its PUT."""
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        assert (await clients[0].send("PUT", path, JSON, b"[0]")).status == 201
        for life, (writer, reader) in enumerate(_pairs(clients), start=1):
            async with followed(await site.client_of_each() if is_followed else (), path):
                for client in clients:
                    assert await messages(client, path) == [life - 1]
                assert (await writer.send("DELETE", path)).status == 204
                # The same length, so that the offsets of both lives agree.
                assert (await writer.send("PUT", path, JSON, b"[%d]" % life)).status == 201
                for client in (reader, *clients):
                    assert await messages(client, path) == [life], (path, life)


async def check_closures(site: Site) -> None:
    """Every worker says that a stream is closed once one of them has acknowledged it."""
    clients = await site.client_of_each()
    for number, (writer, reader) in enumerate(_pairs(clients)):
        path = f"/closed/{number}"
        await writer.send("PUT", path, JSON, b"[1]")
        for client in clients:
            assert await messages(client, path) == [1]
        assert (await writer.send("POST", path, {"Stream-Closed": "true"})).status == 204
        reply, _ = await read_all(reader, path)
        assert reply.is_closed


async def check_purges(site: Site) -> None:
    """No worker shows anything of before a purge once that is answered."""
    clients, author = await site.client_of_each(), await site.origin_client()
    closed = {**JSON, "Stream-Closed": "true"}
    for number in range(STREAMS):
        path = f"/purged/{number}"
        # The tail of a closed stream is known for as long as the stream is trusted.
        await author.send("PUT", path, closed, b"[1]")
        for client in clients:
            assert await messages(client, path) == [1]
        # The gateway sees nothing of this.
        await author.send("DELETE", path)
        await author.send("PUT", path, closed, b"[2]")
        for client in clients:
            assert await messages(client, path) == [1]
        await site.gateway.purge(path, is_soft=False)
        for client in clients:
            assert await messages(client, path) == [2], path


async def check_live_requests(site: Site) -> None:
    """However many workers have live readers of a stream, the origin has one live request for it."""
    counters = site.origin.origin.counters
    author = await site.origin_client()
    paths = [f"/s/{number}" for number in range(LIVE_STREAMS)]
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
        for number in range(READERS * LIVE_STREAMS):
            work = follow if number // LIVE_STREAMS % 2 else poll
            group.create_task(work(await site.client(), paths[number % LIVE_STREAMS]))

        async def all_wait() -> bool:
            return (await site.gateway.figures())["durable_gateway_subscribers"] == READERS * LIVE_STREAMS

        await eventually(all_wait, look_s=0.02)
        assert len({site.gateway.worker_at(client.port) for client in site.clients}) > 1
        assert counters.live_open == LIVE_STREAMS
        for number in range(1, 1 + APPENDS):
            for path in paths:
                await author.send("POST", path, JSON, json.dumps(number).encode())
        for path in paths:
            await author.send("POST", path, {"Stream-Closed": "true"})
    assert counters.live_peak == LIVE_STREAMS
    assert counters.requests[Kind.SSE] + counters.requests[Kind.LONGPOLL] == LIVE_STREAMS


async def check_fetches(site: Site) -> None:
    """However many workers are asked for a stream at once, its bytes leave the origin once."""
    counters = site.origin.origin.counters
    author, clients = await site.origin_client(), await site.client_of_each()
    body = json.dumps(["x" * 1000] * 200, separators=(",", ":")).encode()
    for number in range(LIVE_STREAMS):
        await author.send("PUT", f"/fetched/{number}", JSON, body)
    counters.reset()
    for number in range(LIVE_STREAMS):
        checkers = [Checker(body[1:-1], is_json=True) for _ in clients]
        reads = [
            client.read(f"/fetched/{number}?offset=-1", one) for client, one in zip(clients, checkers, strict=True)
        ]
        await asyncio.gather(*reads)
    assert counters.body_bytes[Kind.CATCHUP] < 1.01 * LIVE_STREAMS * len(body)
    # Each read that comes later asks where the tail is; a HEAD brings the lifetime.
    assert counters.requests[Kind.CATCHUP] <= len(clients) * LIVE_STREAMS
    assert counters.requests[Kind.HEAD] <= LIVE_STREAMS
