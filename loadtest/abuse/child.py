"""The processes next to the gateway: `python -m loadtest.abuse.child ROLE JSON`, ended by SIGTERM.

`origin` serves an in-memory origin at `port`, and tells each connection at `count_port` the number of its requests and
how late its loop has been since it was asked last, as JSON.  `abusers` strikes at the gateway, and on SIGTERM prints
the outcomes of each kind as JSON.  `hostile` serves `ports`, by kind.  `callers` reads from the routes of hostile
origins, and prints the outcomes.  Each prints a line once it may be ended.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from gateway.origin.app import OriginSettings, start_origin
from gateway.origin.s2.app import S2OriginSettings, start_s2_origin
from loadtest.abuse import abusers, hoarders, hostile
from loadtest.abuse.delays import note_delays
from loadtest.abuse.good import Client, body
from loadtest.abuse.wire import request

NETS: Final = 4
"""Source addresses that the abusive clients of one kind share."""
_CALLER_BOUND_S: Final = 5.0
_CALLER_EVERY_S: Final = 1.0
_NAMES: Final = 4
_LOOK_S: Final = 0.05
_MOST_LOOKS: Final = 1_000


async def origin(port: int, count_port: int, s2_port: int) -> None:
    """An in-memory origin that reports the number of its requests and its delays, and one of S2 at `s2_port`."""
    running = await start_origin(OriginSettings(port=port))
    await start_s2_origin(S2OriginSettings(port=s2_port))
    late_s: list[float] = []

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = {"requests": running.origin.counters.total_requests, "late_s": late_s.copy()}
        late_s.clear()
        writer.write(json.dumps(said).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(tell, "127.0.0.1", count_port) as server:
        await asyncio.gather(server.serve_forever(), note_delays(late_s))


async def strike(ports: dict[str, int], kinds: list[str], count: int, flood: float) -> None:
    """`count` abusive clients, the same number of each kind; floods strike at the share `flood` of their rates.

    Prints their outcomes when it is cancelled.
    """
    words = b" ".join(body(str(n), 64).hex().encode() for n in range(abusers.TEXT_BYTES // 129))
    streams = {
        abusers.UPLOADS: ("text/plain", b""),
        abusers.POLLED: ("application/json", b""),
        abusers.LARGE: ("application/octet-stream", body("large", abusers.LARGE_BYTES)),
        abusers.TEXT: ("text/plain", words),
    }
    with Client(ports["origin"]) as there:
        for path, (content_type, data) in streams.items():
            closed = {"Stream-Closed": "true"} if data else {}
            reply = await there.answer("PUT", path, {"Content-Type": content_type, **closed}, data)
            if reply.status not in (200, 201):
                raise ValueError(f"{path} is not created: {reply.status} {reply.body[:200]!r}")
        await hoarders.prepare(there)
    with Client(ports["s2"]) as there:
        await hoarders.prepare_s2(there)
    got = {kind: Counter[str]() for kind in kinds}
    rng = random.Random(1)
    each = max(1, count // len(kinds))
    work = []
    for kind in kinds:
        run, rate = abusers.KINDS[kind]
        # Kinds are numbered in their whole list, so that a kind has the same addresses in every run.
        subnet = 100 + list(abusers.KINDS).index(kind)
        for number in range(each):
            spot = abusers.Spot(
                ports["gateway"], ports["tls"], f"127.0.{subnet}.{1 + number % NETS}", random.Random(rng.random()),
                each / (rate * flood) if rate else 1.0, got[kind],
            )  # fmt: skip
            work.append(run(spot))
    await _until_cancelled(work, got)


async def call(port: int, kinds: list[str], count: int) -> None:
    """`count` clients that read and write at the routes of hostile origins; prints their outcomes."""
    got = {kind: Counter[str]() for kind in kinds}
    rng = random.Random(1)
    each = max(1, count // len(kinds))
    work = []
    for index, kind in enumerate(kinds):
        for number in range(each):
            source = f"127.0.{120 + index}.{1 + number % NETS}"
            work.append(_caller(port, source, kind, number, random.Random(rng.random()), got[kind]))
    await _until_cancelled(work, got)


async def _caller(port: int, source: str, kind: str, number: int, rng: random.Random, got: Counter[str]) -> None:
    spot = abusers.Spot(port, 0, source, rng, _CALLER_EVERY_S, got)
    reads = {0: "?offset=-1", 1: "?offset=now&live=long-poll", 2: "?offset=-1&live=sse"}
    name, way = divmod(number, len(reads) + 1)
    path = f"{hostile.prefix(kind)}/{name % _NAMES}"
    wanted = hostile.content(path)

    def is_right(status: int, body: bytes) -> bool:
        """Whether the answer is the stream's own: the other origins have no streams whose content could be known."""
        has_content = status == 200 and way == 0 and kind == hostile.LATE
        return hostile.POISON not in body and (not has_content or wanted.startswith(body))

    async def ask() -> None:
        if way in reads:
            await spot.read(request("GET", path + reads[way]), is_right)
        else:
            await spot.read(request("POST", path, {"Content-Type": "text/plain"}, b"hello"))

    while True:
        await asyncio.sleep(rng.uniform(0, 2 * _CALLER_EVERY_S))
        await spot.struck(ask, _CALLER_BOUND_S)


async def _until_cancelled(work: list[Coroutine[Any, Any, None]], got: dict[str, Counter[str]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
            group.create_task(_say_when_all_struck(got))
    finally:
        print(json.dumps(got), flush=True)


async def _say_when_all_struck(got: dict[str, Counter[str]]) -> None:
    for of in got.values():
        for _ in range(_MOST_LOOKS):
            if of["tries"]:
                break
            await asyncio.sleep(_LOOK_S)
    print(abusers.ALL_STRUCK, flush=True)


async def serve_hostile(ports: dict[str, int]) -> None:
    """A hostile origin of each kind at its port."""
    await asyncio.gather(asyncio.Event().wait(), *(hostile.serve(kind, port) for kind, port in ports.items()))


ROLES: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "origin": origin,
    "abusers": strike,
    "callers": call,
    "hostile": serve_hostile,
}


async def _main(role: str, arguments: dict[str, Any]) -> None:
    task = asyncio.ensure_future(ROLES[role](**arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print("started", flush=True)
    try:
        await task
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_main(sys.argv[1], json.loads(sys.argv[2])))
