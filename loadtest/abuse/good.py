"""Good clients: five kinds, each request on a kept connection, every answer checked.

The writer and the readers of a live stream are in one process, so that the time of an append and the time of its
arrival are read from one clock.  The time of a request that becomes due while the client still waits for the previous
one counts from when it was due: if the gateway stops for a second, all requests of that second notice.  After a longer
stop, which may be the client's own on a busy machine, a client makes up for the last `MOST_BEHIND_S` alone: to make up
for ten seconds at once would exceed what the gateway admits from it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from loadtest.abuse.wire import HOST, Cut, Reply, Wire
from loadtest.reading import NOW, EventReader, Fault, Message, Reader

PATIENCE_S: Final = 30.0
"""Time without an answer after which a request counts as refused."""
KINDS: Final = ("hit", "miss", "append", "long-poll", "sse", "join")
HOT: Final = 4
"""Streams that are read as hits."""
_HOT_BYTES: Final = 4_096
_COLD_BYTES: Final = 2_048
_MESSAGE_BYTES: Final = 200
_PER_S: Final = {"hit": 10.0, "miss": 2.0, "append": 1.0, "join": 1.0}
"""Requests a second of one client; live readers read what is appended."""
MOST_BEHIND_S: Final = 2.0
"""Requests that are late by more than this are left out."""
_BINARY: Final = {"Content-Type": "application/octet-stream", "Stream-Closed": "true"}
_JSON: Final = {"Content-Type": "application/json"}
_AGAIN_S: Final = 0.5
_Kind = Callable[["Client", int], Coroutine[Any, Any, None]]
_EXAMPLES: Final = 5


@dataclass
class Tally:
    """Outcomes of the good clients' requests in one phase."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """The first refusals and faults, as text."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once requests of every kind have been answered."""

    def took(self, kind: str, seconds: list[float]) -> None:
        """Count answered requests, by how long they took."""
        self.seconds[kind] += seconds
        if not self.answered.is_set() and all(self.seconds[one] for one in KINDS):
            self.answered.set()

    def forget(self) -> None:
        """Count answers anew; refusals and faults stay."""
        self.seconds.clear()
        self.answered.clear()

    def say(self, text: str) -> None:
        """Keep an example."""
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


class Refused(Exception):
    """A request was not answered as it should have been."""


def body(name: str, size: int) -> bytes:
    """The content of the stream with this name; it differs between names."""
    seed = blake2b(name.encode(), digest_size=64).digest()
    return (seed * (size // 64 + 1))[:size]


class Good:
    """All good clients.  `tally` is that of the current phase."""

    def __init__(self, gateway: int, origin: int, rng: Callable[[], float]) -> None:
        self.tally = Tally()
        self._gateway = gateway
        self._origin = origin
        self._rng = rng
        self._acknowledged: dict[int, int] = {}
        """The number of the last acknowledged message of each live stream."""

    async def prepare(self, count: int) -> None:
        """Create the streams that `count` clients of a kind use.  Raises Cut and Refused."""
        with Client(self._origin) as origin:
            for number in range(HOT):
                await _put(origin, f"/hot/{number}", _HOT_BYTES)
            for number in range(count):
                _expect(await origin.answer("PUT", f"/live/{number}", _JSON, b""), 200, 201)
                self._acknowledged[number] = -1

    def clients(self, count: int) -> list[Coroutine[Any, Any, None]]:
        """`count` clients of each kind, half as many of SSE and of joins; each to be run until it is cancelled."""
        runs = (self._hits, self._misses, self._appends, self._polls, self._events, self._joins)
        numbers = (range(count),) * 4 + (range(0, count, 2), range(1, count, 2))
        work = [(kind, run, n) for kind, run, of in zip(KINDS, runs, numbers, strict=True) for n in of]
        return [self._kept(*one, f"127.0.{1 + at // 250}.{1 + at % 250}") for at, one in enumerate(work)]

    # -- one client

    async def _kept(self, kind: str, run: _Kind, number: int, source: str) -> None:
        """Begin again after each refusal."""
        while True:
            with Client(self._gateway, source) as client:
                try:
                    await run(client, number)
                except (Cut, Refused, TimeoutError) as error:
                    self.tally.refused[kind] += 1
                    self.tally.say(f"{kind}: {type(error).__name__} {error}")
            await asyncio.sleep(_AGAIN_S)

    async def _hits(self, client: Client, number: int) -> None:
        name = f"/hot/{number % HOT}"
        wanted = body(name, _HOT_BYTES)
        async for start in self.turns("hit"):
            reply = await client.answer("GET", f"{name}?offset=-1")
            self._took("hit", start)
            self._check("hit", reply, wanted)

    async def _misses(self, client: Client, number: int) -> None:
        with Client(self._origin) as origin:
            async for _ in self.turns("miss"):
                name = f"/cold/{number}/{secrets.token_hex(6)}"
                await _put(origin, name, _COLD_BYTES)
                start = time.monotonic()
                reply = await client.answer("GET", f"{name}?offset=-1")
                self._took("miss", start)
                self._check("miss", reply, body(name, _COLD_BYTES))

    async def _appends(self, client: Client, number: int) -> None:
        async for start in self.turns("append"):
            sequence = self._acknowledged[number] + 1
            # A message without an acknowledgement is sent again with the same number, and the origin accepts it once.
            producer = {"Producer-Id": f"writer-{number}", "Producer-Epoch": "0", "Producer-Seq": str(sequence)}
            message = Message(sequence, time.monotonic()).encode(_MESSAGE_BYTES)
            reply = await client.answer("POST", f"/live/{number}", {**_JSON, **producer}, message)
            _expect(reply, 200, 204)
            self._acknowledged[number] = sequence
            self._took("append", start)

    async def _polls(self, client: Client, number: int) -> None:
        reader = await _at_tail(client, number)
        while True:
            acknowledged = self._acknowledged[number]
            reply = await client.answer("GET", f"/live/{number}?{reader.query('long-poll')}", bound_s=2 * PATIENCE_S)
            _expect(reply, 200, 204)
            self._delivered("long-poll", *reader.reply(reply.body, _titled(reply.headers), acknowledged))

    async def _events(self, client: Client, number: int) -> None:
        reader = await _at_tail(client, number)
        while True:
            events = EventReader(reader, self._acknowledged[number])
            parts = await client.parts(f"/live/{number}?{reader.query('sse')}")
            while part := await _within(anext(parts, b"")):
                self._delivered("sse", *events.feed(part))
            # The gateway ends an event stream after its lifetime, and the reader comes back.
            client.close()
            reader.rewind()

    async def _joins(self, client: Client, number: int) -> None:
        """Follow a stream without other readers, each time a new one."""
        with Client(self._origin) as origin:
            async for _ in self.turns("join"):
                name = f"/joined/{number}/{secrets.token_hex(6)}"
                message = Message(0, 0.0).encode(_MESSAGE_BYTES)
                _expect(await origin.answer("PUT", name, _JSON, b"[" + message + b"]"), 200, 201)
                start = time.monotonic()
                reader = Reader()
                events = EventReader(reader, 0)
                parts = await client.parts(f"{name}?{reader.query('sse')}")
                while reader.confirmed != 0:
                    part = await _within(anext(parts, b""))
                    _, faults = events.feed(part)
                    if faults or not part:
                        raise Refused(f"no message: {faults}")
                self._took("join", start)
                client.close()

    # -- requests of a client

    async def turns(self, kind: str) -> AsyncIterator[float]:
        """The times at which the requests of one client start: now, or when they were due if that is past."""
        every_s = 1 / _PER_S[kind]
        due = time.monotonic() + every_s * self._rng()
        while True:
            late = time.monotonic() - due
            if late < 0:
                await asyncio.sleep(-late)
                yield time.monotonic()
            else:
                yield due
            due = max(due + every_s, time.monotonic() - MOST_BEHIND_S)

    def _took(self, kind: str, start: float) -> None:
        self.tally.took(kind, [time.monotonic() - start])

    def _check(self, kind: str, reply: Reply, wanted: bytes) -> None:
        _expect(reply, 200)
        if reply.body != wanted:
            self.tally.wrong[kind] += 1
            self.tally.say(f"{kind}: {len(reply.body)} bytes that are not the stream's {len(wanted)}")

    def _delivered(self, kind: str, messages: list[Message], faults: list[Fault]) -> None:
        now = time.monotonic()
        self.tally.took(kind, [now - message.sent_at for message in messages])
        for fault in faults:
            self.tally.wrong[kind] += 1
            self.tally.say(f"{kind}: {fault}")


class Client:
    """One client's connection, opened when it is needed.  Raises Cut, Refused and TimeoutError."""

    def __init__(self, port: int, source: str = HOST) -> None:
        self._port = port
        self._source = source
        self._wire: Wire | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] = {},
        body: bytes | None = None,
        bound_s: float = PATIENCE_S,
    ) -> Reply:
        """Send a request; return the whole reply."""
        async with asyncio.timeout(bound_s):
            wire = await self._opened()
            await wire.ask(method, target, headers, body)
            reply = await wire.reply()
        if wire.is_over:
            self.close()
        return reply

    async def parts(self, target: str) -> AsyncIterator[bytes]:
        """Send a read; return the parts of its 200."""
        async with asyncio.timeout(PATIENCE_S):
            wire = await self._opened()
            await wire.ask("GET", target)
            head = await wire.head()
        _expect(head, 200)
        return wire.parts(head)

    async def _opened(self) -> Wire:
        if self._wire is None:
            self._wire = await Wire.open(self._port, self._source)
        return self._wire

    def close(self) -> None:
        """Drop the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


async def _within(part: Awaitable[bytes]) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await part


async def _at_tail(client: Client, number: int) -> Reader:
    """A reader at the tail as it is now."""
    reply = await client.answer("GET", f"/live/{number}?offset={NOW}")
    _expect(reply, 200)
    return Reader(reply.headers["stream-next-offset"])


async def _put(client: Client, name: str, size: int) -> None:
    _expect(await client.answer("PUT", name, _BINARY, body(name, size)), 200, 201)


def _expect(reply: Reply, *statuses: int) -> None:
    if reply.status not in statuses:
        raise Refused(f"{reply.status} {reply.body[:100]!r}")


def _titled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.title(): value for name, value in headers.items()}
