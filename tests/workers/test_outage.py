"""While the origin is away, every worker answers what one process answers from memory."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from tests.offload.crowd import Client, Subscription
from tests.workers.site import JSON, WORKERS, Site, followed, made_site, read_all

CASES: Final = (
    ("open", "GET -1"),
    ("open", "GET {tail}"),
    ("open", "GET now"),
    ("open", "GET {middle}&live=long-poll"),
    ("open", "GET {middle}&live=sse"),
    ("open", "GET {tail}&live=sse"),
    ("open", "GET now&live=sse"),
    ("open", "HEAD -1"),
    ("closed", "GET {tail}"),
    ("closed", "GET -1&live=long-poll"),
    ("closed", "GET {tail}&live=sse"),
    ("closed", "HEAD -1"),
    ("followed", "GET {middle}"),
    ("followed", "GET {tail}&live=sse"),
)
"""Kinds of streams, and reads.  Each is of a stream of its own, which only one client has read before."""
Given = tuple[object, ...]
FAILS: Final[Given] = ("fails",)


async def _written(author: Client, path: str, *, is_closed: bool) -> dict[str, str]:
    """Write two messages; return the offsets after them."""
    await author.send("PUT", path, JSON)
    middle = await author.send("POST", path, JSON, b"1")
    tail = await author.send("POST", path, {**JSON, **({"Stream-Closed": "true"} if is_closed else {})}, b"2")
    return {"middle": middle.next_offset, "tail": tail.next_offset}


async def _given(client: Client, read: str, path: str, *, has_events: bool) -> Given:
    """What the answer says of the stream."""
    method, query = read.split(" ")
    if "live=sse" not in query:
        body = bytearray()
        reply = await client.send(method, f"{path}?offset={query}", take=body.extend)
        if reply.status >= 500:
            return FAILS
        return reply.status, reply.headers.get("stream-next-offset"), reply.is_up_to_date, reply.is_closed, bytes(body)
    reply = await client._ask(method, f"{path}?offset={query}", {"Accept": "text/event-stream"}, b"")
    if reply.status >= 500:
        return FAILS
    said: list[object] = [reply.status]
    if has_events:
        async for event in Subscription(client, reply).events():
            said.append(event.data)
            if event.name == "control":
                control = json.loads(event.data)
                said[-1] = control["streamNextOffset"], control.get("upToDate"), control.get("streamClosed")
                break
    return tuple(said)


async def _clients(site: Site) -> Sequence[Client]:
    return await site.client_of_each() if site.gateway.workers > 1 else [await site.client()]


async def _answers(workers: int) -> dict[tuple[str, str], list[Given]]:
    """The answers of each worker while the origin is away, by the kind of stream and the read."""
    async with made_site(workers=workers) as site, AsyncExitStack() as stack:
        author, first = await site.origin_client(), await site.client()
        offsets = {}
        for number, (kind, _) in enumerate(CASES):
            path = f"/{kind}/{number}"
            offsets[path] = await _written(author, path, is_closed=kind == "closed")
            await read_all(first, path)
            if kind == "followed":
                await stack.enter_async_context(followed([await site.client()], path))
        shared = await _clients(site)
        # SSE keeps its connection.
        crews = [await _clients(site) if "live=sse" in read else shared for _, read in CASES]
        await site.origin.stop(grace_s=0)

        async def given(number: int, client: Client) -> Given:
            kind, read = CASES[number]
            path = f"/{kind}/{number}"
            is_at_tail = kind != "closed" and "{tail}" in read
            async with busy[client.port]:
                return await _given(client, read.format(**offsets[path]), path, has_events=not is_at_tail)

        busy: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        answers = (asyncio.gather(*(given(number, client) for client in crew)) for number, crew in enumerate(crews))
        return dict(zip(CASES, await asyncio.gather(*answers), strict=True))


async def test_every_worker_answers_what_one_process_answers_while_the_origin_is_away() -> None:
    alone, together = await asyncio.gather(_answers(1), _answers(WORKERS))
    wrong = {case: given for case, given in together.items() if given != alone[case] * WORKERS}
    assert not wrong, {case: (alone[case], given) for case, given in wrong.items()}
    # Readers at the tail stay, and get no statement of it.
    assert alone["open", "GET {tail}&live=sse"] == [(200,)]
    assert alone["open", "GET now"] == [FAILS]
