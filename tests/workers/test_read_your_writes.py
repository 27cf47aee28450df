"""What one worker has acknowledged, every other worker knows at once."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from tests.offload.crowd import Client
from tests.workers.site import JSON, Site, followed, read_all

STREAMS = 6
"""So many that each worker most likely owns one of them, and another writes to it."""


async def messages(client: Client, path: str) -> list[object]:
    """Everything in a stream, by a catch-up read that has to find its tail."""
    reply, body = await read_all(client, path)
    assert (reply.status, reply.is_up_to_date) == (200, True), (path, reply)
    return list(json.loads(body))


@pytest.mark.parametrize("is_followed", [False, True])
async def test_an_acknowledged_append_is_in_the_next_answer_of_every_worker(site: Site, is_followed: bool) -> None:
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        await clients[0].send("PUT", path, JSON)
        written: list[object] = []
        # With live readers, the answers need nothing of the origin.
        async with followed(await site.client_of_each() if is_followed else (), path):
            for _ in range(3):
                for writer, reader in permutations(clients, 2):
                    assert await messages(reader, path) == written
                    written.append(len(written))
                    reply = await writer.send("POST", path, JSON, json.dumps(written[-1]).encode())
                    assert reply.status == 204
                    assert await messages(reader, path) == written, path
                    head = await reader.send("HEAD", path)
                    assert head.next_offset == reply.next_offset


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_stream_that_one_worker_has_deleted_is_gone_at_every_worker(site: Site, is_followed: bool) -> None:
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        for writer, reader in permutations(clients, 2):
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


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_stream_that_one_worker_has_created_again_is_the_new_one_at_every_worker(
    site: Site, is_followed: bool
) -> None:
    clients = await site.client_of_each()
    for number in range(STREAMS):
        path = f"/s/{number}"
        assert (await clients[0].send("PUT", path, JSON, b"[0]")).status == 201
        for life, (writer, reader) in enumerate(permutations(clients, 2), start=1):
            async with followed(await site.client_of_each() if is_followed else (), path):
                for client in clients:
                    assert await messages(client, path) == [life - 1]
                assert (await writer.send("DELETE", path)).status == 204
                # The same length, so that the offsets of both lives agree.
                assert (await writer.send("PUT", path, JSON, b"[%d]" % life)).status == 201
                for client in (reader, *clients):
                    assert await messages(client, path) == [life], (path, life)


async def test_a_closure_that_one_worker_has_acknowledged_is_known_to_every_worker(site: Site) -> None:
    clients = await site.client_of_each()
    for number, (writer, reader) in enumerate(permutations(clients, 2)):
        path = f"/s/{number}"
        await writer.send("PUT", path, JSON, b"[1]")
        for client in clients:
            assert await messages(client, path) == [1]
        assert (await writer.send("POST", path, {"Stream-Closed": "true"})).status == 204
        reply, _ = await read_all(reader, path)
        assert reply.is_closed


async def test_a_purge_is_done_at_every_worker_once_it_is_answered(site: Site) -> None:
    clients, author = await site.client_of_each(), await site.origin_client()
    for number in range(STREAMS):
        path = f"/s/{number}"
        await author.send("PUT", path, JSON, b"[1]")
        for client in clients:
            assert await messages(client, path) == [1]
        # The gateway sees nothing of this.
        await author.send("DELETE", path)
        await author.send("PUT", path, JSON, b"[2]")
        await site.gateway.purge(path, is_soft=False)
        for client in clients:
            assert await messages(client, path) == [2], path
