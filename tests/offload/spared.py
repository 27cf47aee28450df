"""Cases that count requests, not bytes: repeated reads, and streams that do not exist.

Like those of `cases`, each checks every byte that any client received.  The gateway's clock moves by a fixed step for
each request, so that a figure does not depend on the machine's speed.
"""

from __future__ import annotations

import asyncio
import itertools

from tests.offload.cases import log_of, message, position_of, short
from tests.offload.crowd import Checker, Client, Reply
from tests.offload.stage import JSON, Figure, bounded, manual_clock, stage, together


async def catch_up(client: Client, path: str, checker: Checker) -> Reply:
    """Read from the beginning to the tail without `live`, as the official TypeScript client begins."""
    at, reply = "-1", None
    while reply is None or not reply.is_up_to_date:
        reply = await client.read(f"{path}?offset={at}", checker)
        assert reply.status == 200, reply
        at = reply.next_offset
    return reply


async def poll_to_end(client: Client, path: str, reply: Reply, checker: Checker) -> None:
    """Long-poll from where `reply` ended until the stream closes."""
    while not reply.is_closed:
        cursor = f"&cursor={reply.cursor}" if reply.cursor is not None else ""
        reply = await client.read(f"{path}?offset={reply.next_offset}&live=long-poll{cursor}", checker)
        assert reply.status in (200, 204), reply


async def stream_to_end(client: Client, path: str, reply: Reply, checker: Checker) -> None:
    """Follow by SSE from where `reply` ended until the stream closes."""
    subscription = await client.subscribe(f"{path}?offset={reply.next_offset}&live=sse")
    controls = [control async for control in subscription.follow(checker)]
    assert controls[-1]["streamClosed"]


async def newcomers(content_type: str = JSON, clients: int = 1_000, seconds: float = 10.0, appends: int = 10) -> Figure:
    """Clients that arrive one after another at a stream with live readers, read all of it, and follow: every other
    one by SSE, the rest by long-poll."""
    messages = [message(content_type, number) for number in range(3 + appends)]
    log = log_of(content_type, messages)
    clock = manual_clock()
    async with stage(clock=clock) as on:
        await on.create("/s", content_type)
        for body in messages[:3]:
            await on.append("/s", content_type, body)

        async def read(client: Client, by_sse: bool, caught_up: asyncio.Event) -> None:
            checker = Checker(log, is_json=content_type == JSON)
            reply = await catch_up(client, "/s", checker)
            assert checker.position >= position_of(content_type, messages, 3)
            caught_up.set()
            await (stream_to_end if by_sse else poll_to_end)(client, "/s", reply, checker)
            assert checker.position == len(log)

        crowd = await on.clients(clients)
        left = iter(messages[3:])
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(crowd):
                caught_up = asyncio.Event()
                group.create_task(read(client, number % 2 == 0, caught_up))
                await bounded(caught_up.wait())
                if number == 0:
                    await on.waiting("/s", 1)
                await on.pass_time(seconds / clients)
                if (number + 1) % (clients // appends) == 0:
                    for body in itertools.islice(left, 1):
                        await on.append("/s", content_type, body)
            await on.waiting("/s", clients)
            await on.close_stream("/s")
        return on.figure(
            f"{clients:,} clients, one after the other: all from -1, then live ({short(content_type)})", len(log)
        )


async def hot_tail(content_type: str = JSON, reads: int = 10_000, seconds: float = 10.0, appends: int = 5) -> Figure:
    """One client that reads at the tail again and again, without live readers; each append through the gateway shows
    in the very next read."""
    messages = [message(content_type, number) for number in range(3 + appends)]
    log = log_of(content_type, messages)
    clock = manual_clock()
    async with stage(clock=clock) as on:
        await on.create("/s", content_type)
        for body in messages[:3]:
            tail = await on.append("/s", content_type, body)
        written = 3
        checker = Checker(log, is_json=content_type == JSON, position=position_of(content_type, messages, 3))
        [client] = await on.clients(1)
        for number in range(reads):
            if number and number % (reads // (appends + 1)) == 0 and written < len(messages):
                await on.write("/s", content_type, messages[written])
                written += 1
            reply = await client.read(f"/s?offset={tail}", checker)
            assert reply.is_up_to_date, reply
            assert checker.position == position_of(content_type, messages, written)
            tail = reply.next_offset
            await on.pass_time(seconds / reads)
        assert written == len(messages)
        return on.figure(
            f"{reads:,} reads of one tail in {seconds:g} s, no live reader ({short(content_type)})", len(log)
        )


async def unknown_names(clients: int = 10, names: int = 100, seconds: float = 1.0) -> Figure:
    """Clients that all request the same missing streams, by catch-up, long-poll and SSE."""
    clock = manual_clock()
    async with stage(clock=clock) as on:
        ways = ("?offset=-1", "?offset=-1", "", "?offset=now", "?live=long-poll&offset=-1", "?live=sse&offset=-1")

        async def ask(client: Client, number: int) -> None:
            # Each begins with another name, and later requests those that others began with.
            for name in [*range(number * names // clients, names), *range(number * names // clients)]:
                reply = await client.send("GET", f"/missing/{name}{ways[number % len(ways)]}")
                assert reply.status == 404, reply
                clock.advance(seconds / clients / names)

        await together(ask(client, number) for number, client in enumerate(await on.clients(clients)))
        return on.figure(f"{clients * names:,} reads of {names} names that are not there, in {seconds:g} s", 0)


async def cold_streams(streams: int = 1_000, clients: int = 10) -> Figure:
    """Streams that no client has read before, each read once."""
    messages = [message(JSON, number) for number in range(streams)]
    async with stage(clock=manual_clock()) as on:
        for number, body in enumerate(messages):
            await on.create(f"/s/{number}", JSON)
            await on.append(f"/s/{number}", JSON, body)

        async def read(client: Client, numbers: range) -> None:
            for number in numbers:
                checker = Checker(messages[number], is_json=True)
                await catch_up(client, f"/s/{number}", checker)
                assert checker.position == len(messages[number])

        crowd = await on.clients(clients)
        await together(read(client, range(first, streams, clients)) for first, client in enumerate(crowd))
        return on.figure(f"{streams:,} streams, each read once", sum(map(len, messages)))
