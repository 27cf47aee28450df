"""Abusive clients that make the gateway hold, or look at, more than they cost themselves.

They hold answers that they do not read, in ways in which the same bytes are held many times over: with heads of their
own, after the cache has dropped them, while they arrive, in sessions of S2.  Or they invent queries of one path, and
have writes to it refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from loadtest.abuse.wire import Wire, request

if TYPE_CHECKING:
    from loadtest.abuse.abusers import Spot
    from loadtest.abuse.good import Client

PAGES: Final = "/abuse/pages"
CROWDED: Final = "/abuse/crowded"
COLD: Final = "/abuse/cold"
UNREAD: Final = "/abuse/unread/"
UNREAD_STREAMS: Final = 96
"""Streams of 1 MiB, together nearly as large as the cache."""
UNREAD_BYTES: Final = 1 << 20
COLD_BYTES: Final = 8 << 20
BASIN: Final = "abuse-basin"
RECORDS: Final = "/v1/streams/abuse/records"
RECORD_COUNT: Final = 80
RECORD_BYTES: Final = 1 << 16

_HELD_S: Final = 20.0
_APPENDED: Final = b"p" * (1 << 19)
_AGAIN_S: Final = 2.0
_S2: Final = {"s2-basin": BASIN, "Authorization": "Bearer abuse"}


async def many_pages(spot: Spot) -> None:
    """Long-poll in the name of a page of one's own, and read nothing of the answer; now and then append 512 KiB."""

    async def strike() -> None:
        if spot.rng.random() < 0.02:
            await spot.read(request("POST", PAGES, {"Content-Type": "application/octet-stream"}, _APPENDED))
            return
        await _held(spot, f"{PAGES}?offset=now&live=long-poll", {"Origin": f"https://{spot.name()}.test"})

    await _again(spot, strike)


async def dropped_answers(spot: Spot) -> None:
    """Ask for one of many answers of 1 MiB that clients have in common, and read none of it."""

    async def strike() -> None:
        await _held(spot, f"{UNREAD}{spot.rng.randrange(UNREAD_STREAMS)}?offset=-1", {})

    await _again(spot, strike)


async def cold_bodies(spot: Spot) -> None:
    """Ask for 8 MiB by an invented query, so that the origin is asked for it, and read none of it."""

    async def strike() -> None:
        await _held(spot, f"{COLD}?offset=-1&x={spot.name()}", {})

    await _again(spot, strike)


async def crowds(spot: Spot) -> None:
    """Read a stream by invented queries, and send it writes that it refuses."""

    async def strike() -> None:
        if spot.rng.random() < 0.3:
            await spot.read(request("POST", CROWDED, {"Content-Type": "image/png"}, b"x"))
        else:
            await spot.read(request("GET", f"{CROWDED}?offset=-1&x={spot.name()}"))

    await spot.strikes(strike)


async def unread_sessions(spot: Spot) -> None:
    """Begin sessions of S2, and reads by SSE, at random records of 5 MiB, and read nothing of them."""

    async def strike() -> None:
        form = spot.rng.choice(({"Accept": "text/event-stream"}, {"Content-Type": "s2s/proto"}))
        await _held(spot, f"{RECORDS}?seq_num={spot.rng.randrange(RECORD_COUNT)}", {**_S2, **form})

    await _again(spot, strike)


async def _held(spot: Spot, target: str, headers: dict[str, str]) -> None:
    """Ask, read the head of the answer, and then nothing for a while."""
    wire = await Wire.open(spot.port, spot.source, receive_bytes=4_096)
    try:
        await wire.ask("GET", target, headers)
        spot.got[str((await wire.head()).status)] += 1
        wire.stop_reading()
        await asyncio.sleep(_HELD_S)
    finally:
        wire.close()


async def _again(spot: Spot, strike: Callable[[], Awaitable[None]]) -> None:
    while True:
        await spot.struck(strike, bound_s=120.0)
        await asyncio.sleep(spot.rng.uniform(0, 2 * _AGAIN_S))


async def prepare(origin: Client) -> None:
    """Make the streams that they read, at the origin."""
    streams = {PAGES: b"", CROWDED: b"x" * 100, COLD: b"c" * COLD_BYTES}
    streams |= {f"{UNREAD}{number}": (b"%04d" % number) * (UNREAD_BYTES // 4) for number in range(UNREAD_STREAMS)}
    for path, data in streams.items():
        reply = await origin.answer("PUT", path, {"Content-Type": "application/octet-stream"}, data)
        if reply.status not in (200, 201):
            raise ValueError(f"{path} is not created: {reply.status} {reply.body[:200]!r}")


async def prepare_s2(origin: Client) -> None:
    """Make the records that they read, at the S2 origin."""
    basin = json.dumps({"basin": BASIN, "config": {"create_stream_on_append": True}}).encode()
    records = json.dumps({"records": [{"body": "r" * RECORD_BYTES}] * 10}).encode()
    asked = [("/v1/basins", basin), *[(RECORDS, records)] * (RECORD_COUNT // 10)]
    for path, data in asked:
        reply = await origin.answer("POST", path, {**_S2, "Content-Type": "application/json"}, data)
        if reply.status not in (200, 201):
            raise ValueError(f"{path} is not written: {reply.status} {reply.body[:200]!r}")
