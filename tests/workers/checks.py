"""What holds of a gateway with workers: checks that the tests run, and that have to fail for each mutant.

Which worker owns a stream is settled by chance.  A check therefore has each worker in turn do what it is about, on one
stream: so the owner does it, and so do others.

A check that fails raises `WrongAnswer`, which names the wrong value.  Nothing else is a finding: a mutant that merely
ran out of time would be found on any busy machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import permutations
from typing import Final

from gateway.origin import sse
from gateway.origin.requests import Kind
from tests.offload.crowd import BOUND_S, Checker, Client, Reply
from tests.waiting import eventually
from tests.workers.site import JSON, Site, followed, read_all

LIVE_STREAMS: Final = 6
READERS: Final = 8
"""Live readers of each."""
APPENDS: Final = 5
PASSED: Final = 24
"""Streams whose first read at a worker is passed on: so many that some have the owner that a check is about."""


class WrongAnswer(AssertionError):
    """The gateway has broken a promise."""


def expect(where: str, found: object, wanted: object) -> None:
    """See that the gateway has done what it promises."""
    if found != wanted:
        raise WrongAnswer(f"{where}: {found!r} in place of {wanted!r}")


async def messages(client: Client, path: str) -> list[object]:
    """Everything in a stream, by catch-up reads up to its tail."""
    found: list[object] = []
    at, is_at_tail = "-1", False
    while not is_at_tail:
        reply, body = await read_all(client, path, at)
        expect(f"the status of {path}", reply.status, 200)
        read, is_at_tail = json.loads(body), reply.is_up_to_date
        if not read and not is_at_tail:
            raise WrongAnswer(f"{path} has nothing at {at}, and its tail is not there")
        found += read
        at = reply.next_offset
    return found


def _pairs(clients: Sequence[Client]) -> list[tuple[Client, Client]]:
    """Each client with the next."""
    return list(zip(clients, [*clients[1:], clients[0]], strict=True))


@contextmanager
def held_deliveries(site: Site, path: str, tail: str) -> Iterator[None]:
    """Have the origin deliver nothing to live readers of an empty JSON stream inside the block but where its tail is.

    Then the workers learn of appends from each other alone.
    """
    first = len(sse.control_event(tail, "", up_to_date=True, is_closed=False))
    # Of the event that follows, a part is sent at most: a cursor has fewer than 16 digits.
    events = site.origin.origin.faults.stall(first + 16, kind=Kind.SSE, path=path, times=None)
    polls = site.origin.origin.faults.hold(kind=Kind.LONGPOLL, path=path, when="reply")
    try:
        yield
    finally:
        events.release()
        polls.release()


async def check_appends(site: Site) -> None:
    """Every worker shows an append in its next answer, whichever worker has acknowledged it."""
    clients = await site.client_of_each()
    await clients[0].send("PUT", "/appended", JSON)
    await _check_appends(permutations(clients, 2), "/appended")


async def check_followed_appends(site: Site) -> None:
    """The same of a stream whose answers need nothing of the origin, which has delivered no append yet."""
    clients = await site.client_of_each()
    made = await clients[0].send("PUT", "/followed", JSON)
    with held_deliveries(site, "/followed", made.next_offset):
        async with followed(await site.client_of_each(), "/followed"):
            # Each read waits a second for the delivery before it asks the origin.
            await _check_appends(_pairs(clients), "/followed")


async def check_passed_reads(site: Site) -> None:
    """The first read of a stream at a worker shows an append that another worker has acknowledged, although the owner
    could answer from memory.

    For a third of the streams, the owner has neither the reader nor the writer.
    """
    workers, counters = await site.crowd_of_each(PASSED), site.origin.origin.counters
    before = counters.live_open
    roles = [[workers[(number + turn) % len(workers)].pop() for turn in range(3)] for number in range(PASSED)]
    async with AsyncExitStack() as stack:
        for number, (follower, writer, _) in enumerate(roles):
            path = f"/passed/{number}"
            made = await writer.send("PUT", path, JSON)
            stack.enter_context(held_deliveries(site, path, made.next_offset))
            await stack.enter_async_context(followed([follower], path))
        # A reader gets its first event before the owner follows the stream.
        await eventually(lambda: counters.live_open >= before + PASSED)
        for number, (_, writer, _) in enumerate(roles):
            assert (await writer.send("POST", f"/passed/{number}", JSON, b"[0]")).status == 204
        # The owner waits a second for the delivery before it asks the origin.
        reads = [_expect_messages(reader, f"/passed/{number}", [0]) for number, (*_, reader) in enumerate(roles)]
        await asyncio.gather(*reads)


async def _expect_messages(client: Client, path: str, wanted: list[object]) -> None:
    expect(path, await messages(client, path), wanted)


async def _check_appends(pairs: Iterable[tuple[Client, Client]], path: str) -> None:
    written: list[object] = []
    for writer, reader in pairs:
        expect(path, await messages(reader, path), written)
        written.append(len(written))
        reply = await writer.send("POST", path, JSON, json.dumps(written[-1]).encode())
        assert reply.status == 204
        expect(path, await messages(reader, path), written)
        head = await reader.send("HEAD", path)
        expect(f"the tail of {path}", head.next_offset, reply.next_offset)


async def check_deletions(site: Site, *, is_followed: bool) -> None:
    """Every worker answers 404 once one of them has acknowledged a DELETE."""
    clients = await site.client_of_each()
    path = f"/deleted/{is_followed}"
    for writer, reader in _pairs(clients):
        reply, _ = await read_all(reader, path)
        expect(path, reply.status, 404)
        assert (await writer.send("PUT", path, JSON, b'["old"]')).status == 201
        async with followed(await site.client_of_each() if is_followed else (), path):
            for client in clients:
                expect(path, await messages(client, path), ["old"])
            assert (await writer.send("DELETE", path)).status == 204
            for client in (reader, *clients):
                reply, _ = await read_all(client, path)
                expect(path, reply.status, 404)


async def check_re_creations(site: Site, *, is_followed: bool) -> None:
    """Every worker shows the new stream alone once one of them has acknowledged its PUT."""
    clients = await site.client_of_each()
    path = f"/re-created/{is_followed}"
    assert (await clients[0].send("PUT", path, JSON, b"[0]")).status == 201
    for life, (writer, reader) in enumerate(_pairs(clients), start=1):
        async with followed(await site.client_of_each() if is_followed else (), path):
            for client in clients:
                expect(path, await messages(client, path), [life - 1])
            assert (await writer.send("DELETE", path)).status == 204
            # The same length, so that the offsets of both lives agree.
            assert (await writer.send("PUT", path, JSON, b"[%d]" % life)).status == 201
            for client in (reader, *clients):
                expect(path, await messages(client, path), [life])


async def check_ends(site: Site) -> None:
    """No worker sends a stream from memory after the origin has shown to one of them that the stream is gone."""
    clients = await site.client_of_each()
    paths = [f"/over/{number}" for number in range(len(clients))]
    for path in paths:
        # The origin is not asked for the tail of a closed stream.
        assert (await clients[0].send("PUT", path, {**JSON, "Stream-Closed": "true"}, b'["old"]')).status == 201
        for client in clients:
            expect(path, await messages(client, path), ["old"])
        site.origin.origin.store.delete(path, time.time())
    for finder, path in zip(clients, paths, strict=True):

        async def is_found(finder: Client = finder, path: str = path) -> bool:
            """A confirmation of the last second is recent enough for this client, too."""
            return (await finder.send("GET", f"{path}?offset=-1", {"Cache-Control": "no-cache"})).status == 404

        await eventually(is_found)
        for client in clients:
            reply, _ = await read_all(client, path)
            expect(path, reply.status, 404)


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
        expect(f"{path} is closed", reply.is_closed, True)


async def check_purges(site: Site) -> None:
    """No worker shows anything of before a purge once that is answered."""
    clients, author = await site.client_of_each(), await site.origin_client()
    closed = {**JSON, "Stream-Closed": "true"}
    path = "/purged"
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
        expect(path, await messages(client, path), [2])


async def check_revocations(site: Site) -> None:
    """Once a revocation is answered, no worker answers the principal, and none goes on with its live reads."""
    author, path = await site.origin_client(), "/revoked"
    await author.send("PUT", path, JSON, b"[1]")

    async def statuses() -> list[int]:
        target = f"{path}?offset=-1"
        return [(await one.send("GET", target, site.credential)).status for one in await site.client_of_each()]

    expect(f"before the revocation of a reader of {path}", await statuses(), [200] * site.gateway.workers)
    readers = [
        await one.subscribe(f"{path}?live=sse&offset=-1", site.credential) for one in await site.client_of_each()
    ]
    ended = await site.gateway.revoke("reader")
    expect("ended live reads", ended, len(readers))
    async with asyncio.timeout(BOUND_S):
        for one in readers:
            async for _ in one.events():
                pass
    expect(f"after the revocation of a reader of {path}", await statuses(), [401] * site.gateway.workers)


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
        assert len({*site.gateway.worker_of_ports().values()}) > 1
        # A reader waits before its worker has asked the owner, and the owner the origin.
        await eventually(lambda: counters.live_open >= LIVE_STREAMS)
        for number in range(1, 1 + APPENDS):
            for path in paths:
                await author.send("POST", path, JSON, json.dumps(number).encode())
        for path in paths:
            await author.send("POST", path, {"Stream-Closed": "true"})
    expect("live requests at once", counters.live_peak, LIVE_STREAMS)
    expect("live requests", counters.requests[Kind.SSE] + counters.requests[Kind.LONGPOLL], LIVE_STREAMS)


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


async def check_facts(site: Site) -> None:
    """Readers at all workers that begin at an offset ask the origin for the stream's facts once, while it confirms no
    tail."""
    counters, author, clients = site.origin.origin.counters, await site.origin_client(), await site.client_of_each()
    created = await author.send("PUT", "/facts", JSON, b"[1]")
    held = site.origin.origin.faults.hold(kind=Kind.SSE, path="/facts")
    counters.reset()
    polls: list[asyncio.Task[Reply]] = []

    async def all_wait() -> bool:
        return (await site.gateway.figures())["durable_gateway_subscribers"] == len(polls)

    try:
        for client in clients:
            target = f"/facts?live=long-poll&offset={created.next_offset}"
            polls.append(asyncio.create_task(client.send("GET", target)))
            await eventually(all_wait, look_s=0.01)
        expect("HEADs", counters.requests[Kind.HEAD], 1)
    finally:
        held.release()
        await author.send("POST", "/facts", {"Stream-Closed": "true"})
        await asyncio.gather(*polls)


async def check_hops(site: Site) -> None:
    """A read goes through two workers at most: the one that has the client, and the owner of the stream.

    Only the owner fetches for the first read at a worker, which is passed on.  Later reads are shared at both.
    """
    author, clients = await site.origin_client(), await site.client_of_each()
    await author.send("PUT", "/read", JSON, b"[1]")
    first = [await _fetching_workers(site, client, "/read", [1]) for client in clients]
    later = [await _fetching_workers(site, client, "/read", [1]) for client in clients]
    expect("workers that fetch for a read", (sorted(first), sorted(later)), ([1, 1, 1], [1, 2, 2]))


async def _fetching_workers(site: Site, client: Client, path: str, wanted: list[object]) -> int:
    """Return the number of workers that fetch for a read of a stream that no worker has in memory."""
    await site.gateway.purge(path, is_soft=False)
    held = site.origin.origin.faults.hold(kind=Kind.CATCHUP, path=path)
    reading = asyncio.create_task(messages(client, path))
    try:
        flights = 0

        async def is_at_origin() -> bool:
            nonlocal flights
            flights = (await site.gateway.figures())["durable_gateway_flights"]
            return held.held == 1 or flights == site.gateway.workers

        await eventually(is_at_origin, look_s=0.01)
        if not held.held:
            raise WrongAnswer(f"the read of one client is under way at {flights} workers, and not at the origin")
        flights = (await site.gateway.figures())["durable_gateway_flights"]
        held.release()
        expect(path, await reading, wanted)
        return flights
    finally:
        held.release()
        reading.cancel()


async def check_breaker(site: Site) -> None:
    """An origin that is away fails for all workers together, and is reported once."""
    client = await site.client()
    await site.origin.stop(grace_s=0)
    # The owners of these paths are different workers.
    statuses = {(await client.send("GET", f"/absent/{number}")).status for number in range(30)}
    expect("statuses", statuses - {502, 503, 504}, set())
    expect("reports of an unreachable origin", site.gateway.said().count("is unreachable"), 1)
