"""One run: an origin, gateways in front of it, clients of both, and troubles, until the appenders are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import aiohttp
import uvloop

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import S2OriginSettings, start_s2_origin
from gateway.s2 import json_format
from gateway.s2.json_format import Format
from tests.ports import kept_port
from tests.s2.edge.clients import BASIN, Client
from tests.s2.linear.appenders import Appender, Workload
from tests.s2.linear.faults import Nemesis
from tests.s2.linear.history import History, Verdict, content_hash
from tests.s2.linear.progress import BOUND_S, Progress
from tests.s2.linear.readers import Reader

_LONGEST_S: Final = 120.0
"""Longest run."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many clients a run has, and how many batches each of its appenders appends."""

    appenders: int = 4
    rounds: int = 20
    readers: int = 4
    tail_checks: int = 3
    followers: int = 4


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has found."""

    calls: int
    definite: int
    records: int
    verdict: Verdict


def run(seed: int, workload: Workload, gateways: int, *, size: Size | None = None, has_faults: bool = True) -> Result:
    """Run once, in an event loop of its own.  Appends go through the gateways and past them."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(Random(seed), workload, gateways, size or Size(), has_faults))


async def _run(rng: Random, workload: Workload, gateways: int, size: Size, has_faults: bool) -> Result:
    history, progress = History(), Progress()
    async with asyncio.timeout(_LONGEST_S), AsyncExitStack() as stack:
        port = stack.enter_context(kept_port())
        nemesis = Nemesis(await start_s2_origin(S2OriginSettings(port=port)), progress, Random(rng.random()))
        stack.push_async_callback(lambda: nemesis.running.stop(grace_s=0))
        direct, *through = await _clients(stack, nemesis.running.url, gateways, rng)
        created = await direct.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        assert created.status in (200, 201), created
        # Without a record there is no stream, and no tail to ask for.
        first = Appender("first", direct, history, progress, Workload.PLAIN, Random(rng.random()))
        await first.run(1)

        def reader(name: str, number: int) -> Reader:
            return Reader(f"{name} {number}", through[number % gateways], history, progress, Random(rng.random()))

        def appender(number: int) -> Appender:
            by = [direct, *through][number % (gateways + 1)]
            back = reader("back", number + 1) if number % 4 < 3 else None
            return Appender(f"a{number}", by, history, progress, workload, Random(rng.random()), back)

        appenders = [appender(number) for number in range(size.appenders)]
        others = [reader("reader", number).read() for number in range(size.readers)]
        others += [reader("tail", number).check_tails() for number in range(size.tail_checks)]
        others += [reader("follower", number).follow(is_sse=number % 4 > 1) for number in range(size.followers)]
        if has_faults:
            others.append(nemesis.run())
        async with _all(others):
            await asyncio.gather(*(one.run(size.rounds) for one in appenders))
        await nemesis.settle()
        for client in (direct, *through):
            await Reader("in the end", client, history, progress, rng).read_once("seq_num=0")
        final = await _whole(direct)
    return Result(len(history), history.definite, len(final), history.judge(final))


async def _clients(stack: AsyncExitStack, origin: str, gateways: int, rng: Random) -> list[Client]:
    """A client of the origin itself, and one of each gateway; every second one asks the origin over HTTP/2."""
    found = []
    for number in range(gateways + 1):
        url = origin
        if number:
            config = GatewayConfig.for_origin(
                origin,
                protocol="s2",
                origin_http="2" if number % 2 == 0 else "1.1",
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                shutdown_timeout_s=2,
            )
            gateway = await start_gateway(config, rng=Random(rng.random()))
            stack.push_async_callback(gateway.stop)
            url = gateway.gateway_url
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        found.append(Client(http, url))
    return found


@asynccontextmanager
async def _all(coroutines: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Have these go on meanwhile.  An error in one of them ends the run."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in coroutines]
        yield
        for task in tasks:
            task.cancel()


async def _whole(client: Client) -> list[bytes]:
    """The content of every record of the stream."""
    found: list[bytes] = []
    async with asyncio.timeout(BOUND_S):
        while (answer := await client.read(f"seq_num={len(found)}")).status == 200:
            batch = json_format.decode_read_batch(answer.body, Format.RAW)
            found += [content_hash(record.body) for record in batch.records]
    assert answer.status == 416, answer
    return found
