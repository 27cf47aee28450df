"""The cases of the offload table.  Each runs a load, checks every byte that any client received, and counts.

The tests state the bounds of the figures; a case that returns has served every client correctly.  Most run on a clock
that does not move: no timeout and no heartbeat can then hide a client that was not woken.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from gateway.config.routes import RouteConfig
from gateway.protocol.cursor import interval
from tests.offload.crowd import Checker, Client, Reply
from tests.offload.stage import BINARY, JSON, TEXT, Figure, bounded, manual_clock, stage, together
from tests.waiting import eventually, time_passing

MIB = 1 << 20
LINGER_S: Final[float] = RouteConfig.model_fields["live_linger_s"].default


def message(content_type: str, number: int, size: int = 0) -> bytes:
    """The body of one append; no two are alike, and texts hold every kind of line end."""
    if content_type == JSON:
        filler = (f"{number:x}-" * size)[:size]
        return json.dumps({"n": number, "filler": filler}, separators=(",", ":")).encode()
    if content_type == TEXT:
        return f"line {number}\r\nand é{'.' * size}\n".encode()
    return f"<{number}>".encode() + bytes((number + index) % 256 for index in range(256)) * (size // 256 + 1)


def as_sse_shows(content_type: str, body: bytes) -> bytes:
    """The message as SSE delivers it: every line end of a text becomes LF."""
    return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if content_type == TEXT else body


def log_of(content_type: str, messages: list[bytes]) -> bytes:
    """The log that a checker compares with."""
    return (b"," if content_type == JSON else b"").join(messages)


def position_of(content_type: str, messages: list[bytes], count: int) -> int:
    """The position in the log after the first `count` messages."""
    return len(log_of(content_type, messages[:count]))


# -- one stream, very many live readers


async def long_polls(content_type: str = JSON, clients: int = 1_000, cursors: int = 50) -> Figure:
    """Long-polls at one tail, each with one of many cursors; one append answers all."""
    messages = [message(content_type, number) for number in range(4)]
    log = log_of(content_type, messages)
    async with stage(clock=manual_clock()) as on:
        await on.create("/s", content_type)
        tail = ""
        for body in messages[:3]:
            tail = await on.append("/s", content_type, body)
        now = interval(on.clock.wall())
        # Below, at and above the current interval: some clients are a while behind, some got a jittered cursor.
        shown = [now - 5 + number for number in range(cursors)]
        position = position_of(content_type, messages, 3)

        async def poll(client: Client, cursor: int) -> None:
            checker = Checker(log, is_json=content_type == JSON, position=position)
            reply = await client.read(f"/s?cursor={cursor}&live=long-poll&offset={tail}", checker)
            assert reply.status == 200, reply
            assert checker.position == len(log)
            assert reply.next_offset == end
            assert reply.is_up_to_date
            assert reply.cursor is not None
            assert int(reply.cursor) > cursor or int(reply.cursor) == now > cursor

        crowd = await on.clients(clients)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(crowd):
                group.create_task(poll(client, shown[number % cursors]))
            await on.waiting("/s", clients)
            end = await on.append("/s", content_type, messages[3])
        return on.figure(f"{clients:,} long-polls with {cursors} cursors, one append ({short(content_type)})", len(log))


async def subscribers(
    content_type: str = JSON, clients: int = 1_000, offsets: int = 20, appends: int = 20, message_bytes: int = 200
) -> Figure:
    """SSE from many offsets: an individual replay for each, then the same live appends for all, then the end."""
    messages = [message(content_type, number, message_bytes) for number in range(offsets + appends)]
    seen = [as_sse_shows(content_type, body) for body in messages]
    log = log_of(content_type, seen)
    async with stage(clock=manual_clock()) as on:
        await on.create("/s", content_type)
        starts = [("-1", 0)]
        for number, body in enumerate(messages[:offsets]):
            tail = await on.append("/s", content_type, body)
            starts.append((tail, position_of(content_type, seen, number + 1)))
        starts = starts[:offsets]

        now = interval(on.clock.wall())

        async def follow(client: Client, start: str, position: int, cursor: int) -> None:
            checker = Checker(log, is_json=content_type == JSON, position=position)
            subscription = await client.subscribe(f"/s?cursor={cursor}&live=sse&offset={start}")
            at, is_closed, given = start, False, cursor + 1
            async for control in subscription.follow(checker):
                assert at == "-1" or control["streamNextOffset"] >= at
                at, is_closed = control["streamNextOffset"], control.get("streamClosed", False)
                assert is_closed or int(control["streamCursor"]) >= given
                given = given if is_closed else int(control["streamCursor"])
            assert is_closed
            assert at == end
            assert checker.position == len(log)

        crowd = await on.clients(clients)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(crowd):
                group.create_task(follow(client, *starts[number % offsets], now - 5 + number % 50))
            await on.waiting("/s", clients)
            for body in messages[offsets:]:
                end = await on.append("/s", content_type, body)
            await on.close_stream("/s")
        return on.figure(f"{clients:,} SSE subscribers from {offsets} offsets ({short(content_type)})", len(log))


async def both_modes(content_type: str = JSON, each: int = 500, appends: int = 10) -> Figure:
    """SSE and long-poll readers of one stream, side by side until it closes."""
    messages = [message(content_type, number) for number in range(1 + appends)]
    log = log_of(content_type, messages)
    async with stage(clock=manual_clock()) as on:
        await on.create("/s", content_type)
        tail = await on.append("/s", content_type, messages[0])
        position = position_of(content_type, messages, 1)

        def checker() -> Checker:
            return Checker(log, is_json=content_type == JSON, position=position)

        async def follow(client: Client) -> None:
            mine = checker()
            subscription = await client.subscribe(f"/s?live=sse&offset={tail}")
            controls = [control async for control in subscription.follow(mine)]
            assert controls[-1]["streamClosed"]
            assert mine.position == len(log)

        async def poll(client: Client) -> None:
            mine, at, cursor, reply = checker(), tail, "", None
            while reply is None or not reply.is_closed:
                reply = await client.read(f"/s?offset={at}&live=long-poll{cursor}", mine)
                at, cursor = reply.next_offset, f"&cursor={reply.cursor}"
            assert mine.position == len(log)

        crowd = await on.clients(2 * each)
        async with asyncio.TaskGroup() as group:
            for follower, poller in zip(crowd[:each], crowd[each:], strict=True):
                group.create_task(follow(follower))
                group.create_task(poll(poller))
            await on.waiting("/s", 2 * each)
            for body in messages[1:]:
                await on.append("/s", content_type, body)
            await on.close_stream("/s")
        return on.figure(f"{each} SSE + {each} long-poll on one stream ({short(content_type)})", len(log))


# -- one large stream that grows while it is read


async def growing(
    content_type: str = JSON,
    clients: int = 100,
    size: int = 10 * MIB,
    max_chunk_bytes: int = MIB,
    *,
    is_live: bool = False,
) -> Figure:
    """Readers from the start of a stream that exists in part when they begin; each reads until it closes.

    At the tail a reader asks again when there is more, or long-polls (`is_live`).  An append is made whenever some
    reader has reached the tail, so the others are behind it, each at its own offset.
    """
    append_bytes = 32 * 1024 if is_live else 128 * 1024
    messages = [message(content_type, number, append_bytes) for number in range(size // append_bytes)]
    log = log_of(content_type, messages)
    # After some seconds the origin confirms bytes in memory again, by sending some.  A busy machine may take so long.
    async with stage(clock=manual_clock(), max_chunk_bytes=max_chunk_bytes) as on:
        await on.create("/s", content_type)
        first = len(messages) // (2 if is_live else 5)
        for body in messages[:first]:
            await on.append("/s", content_type, body)
        written = asyncio.Condition()
        appended, is_closed, end, tail = first, False, "", ""

        async def read(client: Client) -> None:
            nonlocal tail
            checker = Checker(log, is_json=content_type == JSON)
            at, live, reply = "-1", "", None
            while reply is None or not reply.is_closed:
                seen = appended, is_closed
                reply = await client.read(f"/s?offset={at}{live}", checker)
                assert reply.status in (200, 204), reply
                at = reply.next_offset
                if reply.is_up_to_date and not reply.is_closed:
                    live = f"&live=long-poll&cursor={reply.cursor}" if is_live else ""
                    async with written:
                        tail = max(tail, at)
                        written.notify_all()
                        while not is_live and seen == (appended, is_closed) and at >= end and not is_closed:
                            await written.wait()
                    if not is_live:
                        # The tail from a live request may be known a moment late.
                        await on.brought("/s", end, is_closed=is_closed)
            assert checker.position == len(log)

        async def write() -> None:
            nonlocal appended, is_closed, end
            for body in messages[first:]:
                async with written:
                    while tail < end:
                        await written.wait()
                end = await on.append("/s", content_type, body)
                async with written:
                    appended += 1
                    written.notify_all()
            await on.close_stream("/s")
            async with written:
                is_closed = True
                written.notify_all()

        await together([write(), *map(read, await on.clients(clients))])
        origin = "answers to the tail" if max_chunk_bytes > size else f"chunks of {max_chunk_bytes // 1024} KiB"
        way = "catch-up, then long-poll" if is_live else "catch-up"
        return on.figure(
            f"{clients} readers of a growing {size // MIB} MiB stream, {way} ({short(content_type)}, origin {origin})",
            len(log),
        )


# -- readers that come back


async def closed_loop(content_type: str = JSON, clients: int = 20, rounds: int = 100) -> Figure:
    """Clients that do not know closure and read at a closed stream's end again and again, in both modes."""
    messages = [message(content_type, number) for number in range(3)]
    log = log_of(content_type, messages)
    async with stage() as on:
        await on.create("/s", content_type)
        for body in messages:
            tail = await on.append("/s", content_type, body)
        await on.close_stream("/s")

        async def loop(client: Client) -> None:
            checker = Checker(log, is_json=content_type == JSON)
            reply = await client.read("/s?offset=-1", checker)
            for _ in range(rounds):
                assert (reply.next_offset, reply.is_up_to_date, reply.is_closed) == (tail, True, True)
                reply = await client.read(f"/s?offset={tail}", checker)
                assert (reply.next_offset, reply.is_up_to_date, reply.is_closed) == (tail, True, True)
                reply = await client.read(f"/s?offset={tail}&live=long-poll", checker)
                assert reply.status == 204
            assert checker.position == len(log)

        await together(map(loop, await on.clients(clients)))
        return on.figure(f"{clients} clients in a loop at a closed stream's end ({short(content_type)})", len(log))


async def returning(content_type: str = JSON, clients: int = 100, rounds: int = 20) -> Figure:
    """Long-poll clients that all have their answer before any of them returns: no reader is connected in between."""
    messages = [message(content_type, number) for number in range(rounds + 1)]
    log = log_of(content_type, messages)
    clock = manual_clock()
    async with stage(clock=clock) as on:
        await on.create("/s", content_type)
        tail = await on.append("/s", content_type, messages[0])
        position = position_of(content_type, messages, 1)
        crowd = await on.clients(clients)
        checkers = [Checker(log, is_json=content_type == JSON, position=position) for _ in crowd]
        for body in messages[1:]:
            polls = [
                asyncio.create_task(client.read(f"/s?offset={tail}&live=long-poll", checker))
                for client, checker in zip(crowd, checkers, strict=True)
            ]
            await on.waiting("/s", clients)
            tail = await on.append("/s", content_type, body)
            replies: list[Reply] = await bounded(asyncio.gather(*polls))
            assert {reply.next_offset for reply in replies} == {tail}
            clock.advance(LINGER_S * 0.9)
        assert {checker.position for checker in checkers} == {len(log)}
        return on.figure(f"{clients} long-poll clients, {rounds} rounds ({short(content_type)})", len(log))


# -- many streams


async def many_streams(streams: int = 100, readers: int = 10) -> Figure:
    """Streams with some live readers each, in both modes; an append wakes its own readers only, and a stream is
    released after its last reader."""
    clock = manual_clock()
    messages = [message(JSON, number) for number in range(2 * streams)]
    async with stage(clock=clock) as on:
        tails: list[str] = []
        for number in range(streams):
            await on.create(f"/s/{number}", JSON)
            tails.append(await on.append(f"/s/{number}", JSON, messages[number]))

        async def read(client: Client, number: int, *, by_sse: bool) -> None:
            log = log_of(JSON, [messages[number], messages[streams + number]])
            checker = Checker(log, is_json=True, position=len(messages[number]))
            if by_sse:
                subscription = await client.subscribe(f"/s/{number}?live=sse&offset={tails[number]}")
                async for _ in subscription.follow(checker):
                    if checker.position == len(log):
                        break
                client.close()
            else:
                await client.read(f"/s/{number}?live=long-poll&offset={tails[number]}", checker)
            assert checker.position == len(log)

        crowd = await on.clients(streams * readers)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(crowd):
                group.create_task(read(client, number % streams, by_sse=number // streams % 2 == 0))
            for number in range(streams):
                await on.waiting(f"/s/{number}", readers)
            for number in range(streams):
                await on.append(f"/s/{number}", JSON, messages[streams + number])

        async def all_have_left() -> bool:
            return not await on.gateway.readers()

        await eventually(all_have_left)
        clock.advance(LINGER_S * 0.9)
        assert await on.gateway.followed() == on.counters.live_open == streams, "a reader may be back in a moment"
        clock.advance(LINGER_S * 0.1)
        if on.gateway.has_workers:
            # An owner's last readers are other workers, which leave only now.
            async with time_passing(clock):
                await bounded(on.counters.live_is(0))
        await bounded(on.counters.live_is(0))
        assert on.gateway.has_workers or not await on.gateway.followed()
        return on.figure(f"{streams} streams, {readers} live readers each (JSON)", sum(map(len, messages)))


def short(content_type: str) -> str:
    """A content type in a word."""
    return {JSON: "JSON", BINARY: "binary", TEXT: "text"}[content_type]
