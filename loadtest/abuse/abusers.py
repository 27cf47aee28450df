"""Kinds of abusive clients; more are in `hoarders`.  Each is a coroutine that runs until it is cancelled.

Slow clients hold connections and cost the load generator nothing.  Floods have a rate: all clients of the kind together
send that many requests a second, as many as one core could serve if it did nothing else.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from loadtest.abuse import hoarders
from loadtest.abuse.http2 import Http2
from loadtest.abuse.tls import Tls
from loadtest.abuse.wire import Cut, Wire, request

LARGE: Final = "/abuse/large"
TEXT: Final = "/abuse/text"
UPLOADS: Final = "/abuse/uploads"
POLLED: Final = "/abuse/polled"
LARGE_BYTES: Final = 1 << 20
TEXT_BYTES: Final = 1 << 20

_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 10.0
_READ: Final = "/hot/0?offset=-1"
_HEAD_LISTS: Final = (7, 25, 120)
"""Lists in a huge head: about 56, 200 and 960 kB."""
_SLOW_UPLOADS: Final = 6
_POLLS: Final = 110
_RESETS: Final = 100
_PIECES: Final = 20_000
_WINDOWS: Final = 60
_MOST_SETTINGS: Final = 2_730
"""Settings in the longest frame that is accepted."""


@dataclass
class Spot:
    """One abusive client: its source address, its rate, and the outcomes of its strikes."""

    port: int
    tls_port: int
    source: str
    rng: random.Random
    every_s: float
    """Mean pause between two strikes of this client."""
    got: Counter[str] = field(default_factory=Counter)
    """Strikes, and how they ended: statuses, `cut`, `no answer`.  Shared by all clients of the kind."""

    def name(self) -> str:
        """A random name."""
        return f"{self.rng.getrandbits(64):016x}"

    async def strikes(self, strike: Callable[[], Awaitable[None]]) -> None:
        """Strike again and again, at random times."""
        while True:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.every_s))
            await self.struck(strike)

    async def struck(self, strike: Callable[[], Awaitable[None]], bound_s: float = _PATIENCE_S) -> None:
        """Strike once, and count the outcome."""
        self.got["tries"] += 1
        try:
            async with asyncio.timeout(bound_s):
                await strike()
        except Cut:
            self.got["cut"] += 1
        except TimeoutError:
            self.got["no answer"] += 1

    async def read(self, data: bytes, is_right: Callable[[int, bytes], bool] = lambda status, body: True) -> None:
        """Send a request on a connection of its own; read the whole reply.

        A reply for which `is_right` returns False counts as wrong.  It is called with the status and the body, also
        with the beginning of a body that does not end in time.
        """
        wire = await Wire.open(self.port, self.source)
        try:
            # A server may answer and stop reading before it has received the whole request.
            sending = asyncio.ensure_future(wire.send(data))
            try:
                head = await wire.head()
                self.got[str(head.status)] += 1
                body = bytearray()
                try:
                    async for part in wire.parts(head):
                        body += part
                finally:
                    if not is_right(head.status, bytes(body)):
                        self.got["wrong"] += 1
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            wire.close()


async def slow_heads(spot: Spot) -> None:
    """Send a byte of a header field every second."""

    async def strike() -> None:
        wire = await Wire.open(spot.port, spot.source)
        try:
            await wire.send(b"GET /hot/0?offset=-1 HTTP/1.1\r\nHost: edge.test\r\nX-Slow: ")
            await _dripped(spot, wire, 1.0)
        finally:
            wire.close()

    await _for_ever(spot, strike)


async def slow_bodies(spot: Spot) -> None:
    """Begin uploads of 60 kB, of 100 kB and of no announced length, and send a byte of each every four seconds."""
    text = {"Content-Type": "text/plain"}
    begun = [request("POST", UPLOADS, text, b"x" * size)[: 1 - size] for size in (60_000, 100_000)]
    begun.append(request("POST", UPLOADS, {**text, "Transfer-Encoding": "chunked"}) + b"ffff\r\n")

    async def strike() -> None:
        wire = await Wire.open(spot.port, spot.source)
        try:
            await wire.send(spot.rng.choice(begun))
            await _dripped(spot, wire, 4.0)
        finally:
            wire.close()

    await asyncio.gather(*(_for_ever(spot, strike) for _ in range(_SLOW_UPLOADS)))


async def stops_reading(spot: Spot) -> None:
    """Request 1 MiB and read none of it: from the cache, with credentials and with a query of its own."""

    async def strike() -> None:
        ways: tuple[tuple[str, dict[str, str]], ...]
        ways = ("", {"Authorization": f"Bearer {spot.name()}"}), (f"&x={spot.name()}", {}), ("", {})
        query, headers = spot.rng.choice(ways)
        wire = await Wire.open(spot.port, spot.source, receive_bytes=4_096)
        try:
            await wire.ask("GET", f"{LARGE}?offset=-1{query}", headers)
            spot.got[str((await wire.head()).status)] += 1
            wire.stop_reading()
            await asyncio.sleep(60)
        finally:
            wire.close()

    await asyncio.gather(*(_for_ever(spot, strike) for _ in range(2)))


async def unknown_names(spot: Spot) -> None:
    """Read streams that do not exist."""
    await spot.strikes(lambda: spot.read(request("GET", f"/abuse/{spot.name()}?offset=-1")))


async def invented_credentials(spot: Spot) -> None:
    """Read a stream with credentials that are new every time."""
    await spot.strikes(lambda: spot.read(request("GET", _READ, {"Authorization": f"Bearer {spot.name()}"})))


async def huge_heads(spot: Spot) -> None:
    """Send long lists of content codings, each different."""

    async def strike() -> None:
        line = f"Accept-Encoding: {spot.name()}," + "a," * 4_000 + "\r\n"
        head = request("GET", _READ)[:-2] + line.encode() * spot.rng.choice(_HEAD_LISTS)
        await spot.read(head + b"\r\n")

    await spot.strikes(strike)


async def storms(spot: Spot) -> None:
    """Connect and leave by RST; every second time after a request."""

    async def strike() -> None:
        wire = await Wire.open(spot.port, spot.source)
        try:
            if spot.rng.random() < 0.5:
                await wire.ask("GET", _READ)
        finally:
            wire.close(resets=True)

    await spot.strikes(strike)


async def poll_floods(spot: Spot) -> None:
    """Hold 110 long-polls with random queries on one HTTP/2 connection; replace each that ends."""

    async def strike() -> None:
        wire = await Http2.open(spot.port, spot.source)
        try:
            held = 0
            while True:
                held -= await wire.ended(spot.got, spot.rng.uniform(0, 2 * spot.every_s))
                if held < _POLLS:
                    spot.got["tries"] += 1
                    held += 1
                    await wire.ask(f"{POLLED}?offset=now&live=long-poll&x={spot.name()}")
        finally:
            wire.close()

    await _for_ever(spot, strike)


async def compression(spot: Spot) -> None:
    """Read a text of 1 MiB in each coding, by queries that are new every time."""

    async def strike() -> None:
        coding = spot.rng.choice(("br", "zstd", "gzip"))
        accepts = {"Accept-Encoding": f"{coding};q=0.{spot.rng.randrange(1, 999):03}"}
        await spot.read(request("GET", f"{TEXT}?offset=-1&x={spot.name()}", accepts))

    await spot.strikes(strike)


async def cancelled(spot: Spot) -> None:
    """Send a request and leave at once; or send a hundred over HTTP/2 and reset each (rapid reset)."""

    async def strike() -> None:
        if spot.rng.random() < 0.02:
            http2 = await Http2.open(spot.port, spot.source)
            try:
                for _ in range(_RESETS):
                    await http2.ask(f"/abuse/{spot.name()}?offset=-1", resets=True)
                    spot.got["tries"] += 1
                await http2.ended(spot.got, 1.0)
            finally:
                http2.close()
            return
        wire = await Wire.open(spot.port, spot.source)
        try:
            await wire.ask("GET", f"/abuse/{spot.name()}?offset=-1")
        finally:
            wire.close()

    await spot.strikes(strike)


async def tiny_pieces(spot: Spot) -> None:
    """Send much in pieces of one byte: DATA frames, chunks, and window settings for many open streams."""
    chunked = request("POST", UPLOADS, {"Content-Type": "text/plain", "Transfer-Encoding": "chunked"})

    async def strike() -> None:
        if spot.rng.random() < 0.4:
            await spot.read(chunked + b"1\r\nx\r\n" * _PIECES + b"0\r\n\r\n")
            return
        http2 = await Http2.open(spot.port, spot.source)
        try:
            if spot.rng.random() < 0.5:
                await http2.upload_in_bytes(UPLOADS, _PIECES)
            else:
                for _ in range(_WINDOWS):
                    await http2.ask(f"{POLLED}?offset=now&live=long-poll")
                await http2.resize_windows(_MOST_SETTINGS, 10)
            await http2.ended(spot.got, 1.0)
        finally:
            http2.close()

    await spot.strikes(strike)


async def tiny_records(spot: Spot) -> None:
    """Send a request over TLS, head and body, in records of one byte."""
    data = request("POST", UPLOADS, {"Content-Type": "text/plain"}, b"x" * _PIECES)

    async def strike() -> None:
        tls = await Tls.open(spot.tls_port, spot.source)
        try:
            await tls.send_in_bytes(data)
            spot.got[await tls.status()] += 1
        finally:
            tls.close()

    await spot.strikes(strike)


async def tag_lists(spot: Spot) -> None:
    """Read with an If-None-Match of 32 kB, each with other tags."""

    async def strike() -> None:
        tags = "".join(f'If-None-Match: "{spot.name()}",' + '"",' * 2_600 + '""\r\n' for _ in range(4))
        await spot.read(request("GET", _READ)[:-2] + tags.encode() + b"\r\n")

    await spot.strikes(strike)


async def _for_ever(spot: Spot, strike: Callable[[], Awaitable[None]]) -> None:
    while True:
        await spot.struck(strike, bound_s=120.0)
        await asyncio.sleep(spot.rng.uniform(0, 2 * _AGAIN_S))


async def _dripped(spot: Spot, wire: Wire, every_s: float) -> None:
    """Send a byte at regular intervals until the gateway ends the connection."""

    async def drip() -> None:
        while True:
            await asyncio.sleep(spot.rng.uniform(0, 2 * every_s))
            await wire.send(b"x")

    dripping = asyncio.ensure_future(drip())
    try:
        spot.got[str((await wire.head()).status)] += 1
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


Kind = Callable[[Spot], Coroutine[Any, Any, None]]

ALL_STRUCK: Final = "every kind has struck"
"""A line of a child's output."""
KINDS: Final[dict[str, tuple[Kind, float]]] = {
    "slow heads": (slow_heads, 0),
    "slow bodies": (slow_bodies, 0),
    "clients that stop reading": (stops_reading, 0),
    "floods of unknown names": (unknown_names, 400),
    "invented credentials": (invented_credentials, 50),
    "huge header lists": (huge_heads, 20),
    "connection storms": (storms, 100),
    "long-poll floods": (poll_floods, 300),
    "compression": (compression, 4),
    "cancelled requests": (cancelled, 50),
    "pieces of one byte": (tiny_pieces, 8),
    "TLS records of one byte": (tiny_records, 4),
    "lists of tags": (tag_lists, 40),
    "long-polls of many pages": (hoarders.many_pages, 0),
    "answers that the cache has dropped": (hoarders.dropped_answers, 0),
    "cold bodies that are not read": (hoarders.cold_bodies, 0),
    "queries of one path": (hoarders.crowds, 60),
    "S2 sessions that are not read": (hoarders.unread_sessions, 0),
}
"""Each kind, with the rate of all its clients together (strikes a second); 0: as often as their connections end."""
