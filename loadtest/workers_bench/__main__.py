"""`python -m loadtest.workers_bench`: the cost of an operation with 1, 2 and 4 workers and with four gateways, the
spread of connections over workers, and the memory of each worker.

Several readers of a stream at one worker share work: an event is laid and framed once, a head and a first piece are
made once a second.  With the same readers over more workers, each of them does that work for fewer readers.  The rows
`...-each` give each worker as many readers as one worker has, as a gateway needs more workers for more readers.

Beside them stand four gateways of one process each on the same port, which share nothing (`reuse_port`).  They show
what the processes themselves cost: each of four takes fewer requests in a turn of its event loop, and they displace one
another from the caches of a processor.  What four workers take beyond that is the price of being one gateway.

The gateways run as in production: they write an access log, a trusted proxy sends another address for each client, and
they verify a token of each client.

The figures are processor time of all processes of the gateway together, from `/proc/<pid>/task/*/schedstat`, divided by
the operations.  A machine's speed may change by half from minute to minute.  So all arrangements are measured in each
round, one after the other, and ratios are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig
from loadtest.bench.production import ISSUER, key_set, token
from tests.offload.crowd import Client, Reply, Tally
from tests.served import durable_gateway, served
from tests.waiting import eventually
from tests.workers.process import GatewayProcess

CONNECTIONS: Final = 64
"""Connections that work at once, each by a client of its own."""
_STREAMS: Final = 40
_VISITS: Final = 16
"""Connections of each client before the measurement."""
_KIB: Final = json.dumps(["x" * 1020]).encode()
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Arrangement:
    """Gateways on one port, and the workers that each has."""

    gateways: int
    workers: int

    @property
    def processes(self) -> int:
        """The processes that serve."""
        return self.gateways * self.workers


ARRANGEMENTS: Final[Mapping[str, Arrangement]] = {
    "1 worker": Arrangement(1, 1),
    "2 workers": Arrangement(1, 2),
    "4 workers": Arrangement(1, 4),
    "4 gateways": Arrangement(4, 1),
}


RATIOS: Final = (("4 workers", "1 worker"), ("4 gateways", "1 worker"), ("4 workers", "4 gateways"))


@dataclass
class Site:
    """An origin and gateways, each a program of its own."""

    origin_url: str
    gateways: list[GatewayProcess]
    arrangement: Arrangement

    @property
    def gateway(self) -> GatewayProcess:
        """The only one, or the first."""
        return self.gateways[0]

    @property
    def pids(self) -> list[int]:
        """All processes of the gateways."""
        return [pid for gateway in self.gateways for pid in (gateway.pid, *gateway.worker_pids())]

    def busy_us(self) -> float:
        """The processor time that they have used."""
        return sum(_busy_ns(pid) for pid in self.pids) / 1e3

    async def author(self) -> Client:
        """A connection to the origin."""
        return await Client.open(self.origin_url, Tally())

    async def clients(self, count: int) -> list[Client]:
        """So many connections to the gateway."""
        return [await self.client(number) for number in range(count)]

    async def client(self, number: int) -> Client:
        """A connection to the gateway by one of the clients."""
        number %= CONNECTIONS
        headers = {
            "User-Agent": f"bench/{number}",
            "X-Forwarded-For": f"10.7.0.{number}",
            "Authorization": f"Bearer {token(number)}",
        }
        return await Client.open(self.gateway.url, Tally(), headers)

    async def have_tokens_verified(self) -> None:
        """Let each process verify nearly all tokens, which takes longer than an operation, and is done once for each
        token."""
        for number in range(_VISITS * CONNECTIONS):
            client = await self.client(number)
            await client.send("GET", "/none?offset=-1")
            client.close()


@asynccontextmanager
async def site(arrangement: Arrangement) -> AsyncIterator[Site]:
    """Gateways so arranged, before one origin."""
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workers-bench-")))
            (folder / "jwks.json").write_text(key_set())
            gateways: list[GatewayProcess] = []
            address = "127.0.0.1:0"
            for number in range(arrangement.gateways):
                log = folder / f"access-{number}.log"
                config = _config(urls["origin"], address, log, is_shared=arrangement.gateways > 1)
                gateway = await GatewayProcess.start(config, arrangement.workers, is_cold=True)
                stack.push_async_callback(gateway.stop)
                gateways.append(gateway)
                address = urlsplit(gateway.url).netloc
            on = Site(urls["origin"], gateways, arrangement)
            await on.have_tokens_verified()
            yield on


def _config(origin: str, address: str, log: Path, *, is_shared: bool) -> GatewayConfig:
    rule = {
        "by": "jwt",
        "issuer": ISSUER,
        "audience": ["bench"],
        "keys_file": str(log.with_name("jwks.json")),
        "permissions": ["* /**"],
    }
    config = GatewayConfig.for_origin(
        origin,
        admin="127.0.0.1:0",
        sink="file",
        path=str(log),
        trusted_proxies=["127.0.0.1/32"],
        credentials="shared",
        auth=[rule],
        client_new_streams_per_s=0,
        shutdown_timeout_s=0.3,
        max_connections=4_000,
        client_connections=4_000,
        client_live_reads=4_000,
    )
    listener = ListenerConfig(address=address, reuse_port=is_shared)
    return config.model_copy(update={"listeners": (listener,)})


async def _create(on: Site, streams: int, prefix: str, body: bytes = _KIB) -> None:
    author = await on.author()
    for number in range(streams):
        assert (await author.send("PUT", f"/{prefix}/{number}", _JSON, body)).status == 201
    author.close()


async def _each(
    on: Site, count: int, ask: Callable[[Client, int], Awaitable[object]], connections: int = CONNECTIONS
) -> float:
    """Microseconds for each of so many operations, made on some connections at once."""
    crowd = await on.clients(connections)

    async def work(client: Client, first: int) -> None:
        for number in range(first, count, connections):
            await ask(client, number)

    before = on.busy_us()
    await asyncio.gather(*(work(client, first) for first, client in enumerate(crowd)))
    used_us = on.busy_us() - before
    for client in crowd:
        client.close()
    return used_us / count


async def hit(on: Site) -> float:
    """A catch-up read of 1 KB that is in memory; the stream is closed, so that its tail is known.

    One connection reads, and has read each stream before.  A worker with several answers them in one turn of its loop,
    which is cheaper, and the figures would compare the sizes of the turns.
    """
    author = await on.author()
    for number in range(_STREAMS):
        await author.send("PUT", f"/hit/{number}", {**_JSON, "Stream-Closed": "true"}, _KIB)
    author.close()
    (client,) = await on.clients(1)

    async def read(times: int) -> None:
        for number in range(times):
            assert (await client.send("GET", f"/hit/{number % _STREAMS}?offset=-1")).status == 200

    await read(16 * _STREAMS)
    before = on.busy_us()
    await read(4_000)
    used_us = on.busy_us() - before
    client.close()
    return used_us / 4_000


async def miss(on: Site) -> float:
    """The first read of a stream."""
    await _create(on, 2_000, "miss")

    async def ask(client: Client, number: int) -> None:
        assert (await client.send("GET", f"/miss/{number}?offset=-1")).status == 200

    return await _each(on, 2_000, ask)


async def post(on: Site) -> float:
    """An append of 100 bytes; each of the connections appends to a stream of its own."""
    return await _post(on, CONNECTIONS)


async def post_shared(on: Site) -> float:
    """The same with eight connections for each stream: every worker applies the writes of all of them."""
    return await _post(on, CONNECTIONS // 8)


async def _post(on: Site, streams: int) -> float:
    await _create(on, streams, "post", b"[1]")
    body = json.dumps(["y" * 96]).encode()

    async def ask(client: Client, number: int) -> None:
        assert (await client.send("POST", f"/post/{number % streams}", _JSON, body)).status in (200, 204)

    return await _each(on, 4_000, ask)


async def join(on: Site) -> float:
    """A new connection that subscribes by SSE to a stream with readers, until its first event."""
    return await _join(on, _STREAMS)


async def join_at_each(on: Site) -> float:
    """The same with so few streams that each worker is joined at each of them as often as one worker is."""
    return await _join(on, _STREAMS // on.arrangement.processes)


async def _join(on: Site, streams: int) -> float:
    await _create(on, streams, "join", b"[1]")
    keepers = await on.clients(4 * _STREAMS)

    async def begin(client: Client, number: int) -> None:
        subscription = await client.subscribe(f"/join/{number % streams}?offset=-1&live=sse")
        async for event in subscription.events():
            if event.name == "control":
                break

    for number, client in enumerate(keepers):
        await begin(client, number)

    async def ask(_: Client, number: int) -> None:
        client = await on.client(number)
        await begin(client, number)
        client.close()

    found = await _each(on, 2_000, ask)
    for client in keepers:
        client.close()
    return found


async def delivery(on: Site) -> float:
    """An event for one of 200 SSE readers of a stream, one append at a time."""
    return await _delivery(on, streams=4, readers=200)


async def delivery_at_each(on: Site) -> float:
    """The same with 200 readers at each worker, so that each hands an event to as many readers."""
    return await _delivery(on, streams=2, readers=200 * on.arrangement.processes)


async def _delivery(on: Site, streams: int, readers: int) -> float:
    rounds = 25
    await _create(on, streams, "sse", b"[0]")
    crowd = await on.clients(streams * readers)
    seen: Counter[int] = Counter()

    async def follow(client: Client, number: int) -> None:
        subscription = await client.subscribe(f"/sse/{number % streams}?offset=-1&live=sse")
        async for event in subscription.events():
            if event.name == "data":
                seen[number % streams] += 1

    tasks = [asyncio.create_task(follow(client, number)) for number, client in enumerate(crowd)]
    author, count = await on.author(), 0

    async def append(number: int) -> None:
        await author.send("POST", f"/sse/{number}", _JSON, b"[1]")

    async def have(number: int, events: int) -> None:
        await eventually(lambda: seen[number] >= readers * events)

    for number in range(streams):
        await have(number, 1)
    before = on.busy_us()
    for round_ in range(rounds):
        for number in range(streams):
            await append(number)
            await have(number, 2 + round_)
            count += readers
    used_us = on.busy_us() - before
    await _over(tasks, crowd)
    author.close()
    return used_us / count


async def long_poll(on: Site) -> float:
    """A long-poll that waits, and the append that answers it and 199 others."""
    return await _long_poll(on, streams=4, readers=200)


async def long_poll_at_each(on: Site) -> float:
    """The same with 200 readers at each worker, so that each answers as many at once."""
    return await _long_poll(on, streams=2, readers=200 * on.arrangement.processes)


async def _long_poll(on: Site, streams: int, readers: int) -> float:
    rounds = 10
    await _create(on, streams, "poll", b"[0]")
    crowd = await on.clients(streams * readers)
    author = await on.author()
    tails = [(await author.send("HEAD", f"/poll/{number}")).next_offset for number in range(streams)]
    before = 0.0
    for round_ in range(1 + rounds):
        if round_ == 1:
            before = on.busy_us()
        polls: list[asyncio.Task[Reply]] = [
            asyncio.create_task(
                client.send("GET", f"/poll/{number % streams}?offset={tails[number % streams]}&live=long-poll")
            )
            for number, client in enumerate(crowd)
        ]
        # They have been sent, and most wait; who comes later is answered from memory.
        await asyncio.sleep(0.3)
        for number in range(streams):
            tails[number] = (await author.send("POST", f"/poll/{number}", _JSON, b"[1]")).next_offset
        assert {reply.status for reply in await asyncio.gather(*polls)} == {200}
    used_us = on.busy_us() - before
    await _over([], crowd)
    author.close()
    return used_us / (rounds * len(crowd))


async def _over(tasks: list[asyncio.Task[None]], crowd: list[Client]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in crowd:
        client.close()


OPERATIONS: Final[Mapping[str, Callable[[Site], Awaitable[float]]]] = {
    "hit": hit,
    "long-poll": long_poll,
    "long-poll-each": long_poll_at_each,
    "sse": delivery,
    "sse-each": delivery_at_each,
    "join": join,
    "join-each": join_at_each,
    "post": post,
    "post-shared": post_shared,
    "miss": miss,
}


async def spread(on: Site, count: int) -> list[int]:
    """How many of so many connections each worker has, the most first."""
    crowd = await on.clients(count)
    found: dict[int, int] = {}
    ports = {client.port for client in crowd}

    def are_accepted() -> bool:
        found.clear()
        found.update({port: pid for port, pid in on.gateway.worker_of_ports().items() if port in ports})
        return len(found) == count

    await eventually(are_accepted, look_s=0.05)
    for client in crowd:
        client.close()
    each = Counter(found.values())
    return sorted((each[pid] for pid in on.gateway.worker_pids()), reverse=True)


async def memory(on: Site, streams: int) -> dict[str, Any]:
    """Private and proportional memory (MiB) of each process, before and after so many streams of 1 KB were read."""
    idle = [_memory_mib(pid) for pid in on.pids]
    await _create(on, streams, "memory")

    async def ask(client: Client, number: int) -> None:
        assert (await client.send("GET", f"/memory/{number}?offset=-1")).status == 200

    await _each(on, streams, ask)
    full = [_memory_mib(pid) for pid in on.pids]
    return {"idle": idle, "full": full}


def _busy_ns(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return total


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(kib / 1024, 1)


async def main(argv: list[str]) -> None:
    """Measure, and write JSON to stdout."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.workers_bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*OPERATIONS], default=list(OPERATIONS), metavar="NAME")
    parser.add_argument("--streams", type=int, default=10_000, help="streams that memory is measured with; 0 for none")
    options = parser.parse_args(argv)
    found: dict[str, dict[str, list[float]]] = {name: {title: [] for title in ARRANGEMENTS} for name in options.only}
    for _ in range(options.rounds):
        for name in options.only:
            for title, arrangement in ARRANGEMENTS.items():
                async with site(arrangement) as on:
                    each_us = await OPERATIONS[name](on)
                found[name][title].append(each_us)
                print(f"{name:<14} {title:<10} {each_us:8.1f} µs", file=sys.stderr, flush=True)
    document: dict[str, Any] = {
        "us": {name: {title: round(median(us), 1) for title, us in of.items()} for name, of in found.items()},
        "ratio": {
            name: {f"{one} to {other}": _ratio(of[one], of[other]) for one, other in RATIOS}
            for name, of in found.items()
        },
    }
    if options.streams:
        async with site(ARRANGEMENTS["4 workers"]) as on:
            document["spread"] = {count: await spread(on, count) for count in (10, 100, 1_000)}
        document["memory_mib"] = {}
        for title in ("1 worker", "4 workers"):
            async with site(ARRANGEMENTS[title]) as on:
                document["memory_mib"][title] = await memory(on, options.streams)
    print(json.dumps(document, indent=2))


def _ratio(of: list[float], to: list[float]) -> float:
    """The median of the ratios in each round."""
    return round(median(one / other for one, other in zip(of, to, strict=True)), 2)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1:]))
