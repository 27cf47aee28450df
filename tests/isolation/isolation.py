"""Thirty principals over shared tapes, with expiry, revocation, renewal and faults of the origin, and a judge.

Every stream's bytes are marks that name it: `<3:17>` is the 17th mark of stream 3.  The judge knows by its own model
who may read what, and when.  It looks at each answer, and at all that live readers have received: no byte, flag or
header of a stream may reach a principal that may not read it, and no mark that was appended after its credential has
ended.  Time is that of a manual clock, so the same seed gives the same run of requests.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.auth.remembered_verdicts import Revocation
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.scenarios.credentials import bearer, jwt_rule
from tests.scenarios.wire import Answer, Dropped, Wire
from tests.waiting import at_rest, eventually, time_passing

PRINCIPALS: Final = 30
STREAMS: Final = 6
_READABLE: Final = 2
"""Streams that one principal may read."""
_LIFE_S: Final = 40
_MARK: Final = re.compile(rb"<(\d+):(\d+)>")
_OF_STREAMS: Final = re.compile(r"(?i)stream-|etag|x-content")
_TEXT: Final = {"Content-Type": "text/plain"}
_WRITER: Final = {**_TEXT, **bearer("writer", streams=["* /**"], exp=1_790_000_000 + 10**7)}


@dataclass
class Token:
    """One token of a principal."""

    principal: str
    headers: dict[str, str]
    expires_at: float
    number: str
    streams: frozenset[int]
    ended: bool = False
    """Whether it, or its principal, has been revoked."""


@dataclass
class Live:
    """A live read, and what has come of it."""

    token: Token
    stream: int
    wire: Wire
    received: bytearray = field(default_factory=bytearray)
    ended_after: int | None = None
    """The number of marks that its stream had when its credential ended."""
    task: asyncio.Task[None] | None = None


class Isolation:
    """One run."""

    def __init__(self, seed: int, gateway: RunningGateway, origin: RunningOrigin, clock: ManualClock) -> None:
        self._random = Random(seed)
        self._gateway = gateway
        self._origin = origin
        self._clock = clock
        self._marks = [0] * STREAMS
        self._tails = [""] * STREAMS
        self._revoked: set[str] = set()
        self._numbers = 0
        self._tokens: list[Token] = []
        self._old: list[Token] = []
        self._lives: list[Live] = []
        self._wires: list[Wire] = []
        self.violations: list[str] = []
        self.answers = 0
        self.refusals = 0

    def __repr__(self) -> str:
        return f"{self.answers} answers, {self.refusals} refusals, {len(self.violations)} violations"

    # -- the model

    def _new_token(self, principal: str, streams: frozenset[int]) -> Token:
        self._numbers += 1
        life_s = self._random.uniform(5, _LIFE_S)
        expires_at = self._clock.wall() + life_s
        claims = [f"read /s/{stream}" for stream in sorted(streams)]
        number = f"t{self._numbers}"
        headers = bearer(principal, streams=claims, exp=expires_at, iat=int(self._clock.wall()) - 1, jti=number)
        return Token(principal, headers, expires_at, number, streams, principal in self._revoked)

    def _is_valid(self, token: Token) -> bool:
        return not token.ended and self._clock.wall() < token.expires_at

    def _may_read(self, token: Token, stream: int) -> bool:
        return self._is_valid(token) and stream in token.streams

    def _note_ends(self) -> None:
        """Note where the streams of live reads are whose credentials have ended just now."""
        for live in self._lives:
            if live.ended_after is None and not self._is_valid(live.token):
                live.ended_after = self._marks[live.stream]

    # -- the judge

    def _violated(self, what: str, token: Token, stream: int) -> None:
        self.violations.append(f"{what}: {token.principal} with {token.number} and stream {stream}")

    def _judge(self, answer: Answer, token: Token, stream: int) -> None:
        self.answers += 1
        of = {int(found[1]) for found in _MARK.finditer(answer.body)}
        if self._may_read(token, stream):
            if answer.status in (401, 403):
                self._violated(f"refused with {answer.status}", token, stream)
            if of - {stream}:
                self._violated("bytes of another stream", token, stream)
            return
        self.refusals += 1
        if answer.status not in (401, 403, 429):
            self._violated(f"answered with {answer.status}", token, stream)
        if of or any(_OF_STREAMS.match(name) for name in answer.headers if name != "X-Content-Type-Options"):
            self._violated("bytes or fields of a stream", token, stream)

    def _judge_live(self, live: Live) -> None:
        for found in _MARK.finditer(bytes(live.received)):
            if int(found[1]) != live.stream:
                self._violated("live bytes of another stream", live.token, live.stream)
            elif live.ended_after is not None and int(found[2]) > live.ended_after:
                self._violated("live bytes after the end of the credential", live.token, live.stream)

    # -- the actions

    async def begin(self) -> None:
        """Make the streams, the principals and the connections that they share."""
        for stream in range(STREAMS):
            await self._write("PUT", stream)
        for number in range(PRINCIPALS):
            streams = frozenset(self._random.sample(range(STREAMS), _READABLE))
            self._tokens.append(self._new_token(f"p{number}", streams))
        self._wires = [await Wire.open(self._gateway.gateway_url) for _ in range(3)]

    async def _write(self, method: str, stream: int) -> None:
        self._marks[stream] += 1
        mark = b"<%d:%d>" % (stream, self._marks[stream])
        answer = await self._send(method, f"/s/{stream}", _WRITER, mark)
        if answer is not None and "Stream-Next-Offset" in answer.headers:
            self._tails[stream] = answer.next_offset

    async def _send(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None = None
    ) -> Answer | None:
        """An answer over one of the shared connections; None if it was broken off."""
        at = self._random.randrange(len(self._wires)) if self._wires else 0
        wire = self._wires[at] if self._wires else await Wire.open(self._gateway.gateway_url)
        try:
            await wire.ask(target, headers, method, body)
            return await wire.answer(method)
        except (Dropped, ConnectionError):
            if self._wires:
                self._wires[at] = await Wire.open(self._gateway.gateway_url)
            return None
        finally:
            if not self._wires:
                await wire.closed()

    async def step(self) -> None:
        """One action, chosen at random."""
        match self._random.choices(range(9), (30, 12, 8, 14, 8, 3, 3, 4, 2))[0]:
            case 0:
                await self._read(self._random.choice(("", "?offset=-1", "?offset=now")))
            case 1:
                await self._read("", "HEAD")
            case 2:
                await self._begin_live()
            case 3:
                await self._write("POST", self._random.randrange(STREAMS))
            case 4:
                self._clock.advance(self._random.uniform(0.1, 4))
                self._note_ends()
                await self._settle()
                if self._random.random() < 0.6:
                    self._renew_some()
            case 5:
                await self._revoke()
            case 6:
                self._renew_some()
            case 7:
                self._fault()
            case 8:
                await self._poll()

    def _who(self) -> tuple[Token, int]:
        """A principal, sometimes with an old token, and a stream."""
        old = self._old and self._random.random() < 0.2
        token = self._random.choice(self._old if old else self._tokens)
        is_mine = self._random.random() < 0.5
        return token, self._random.choice(sorted(token.streams)) if is_mine else self._random.randrange(STREAMS)

    async def _read(
        self, query: str, method: str = "GET", who: tuple[Token, int] | None = None, times: int | None = None
    ) -> None:
        token, stream = who or self._who()
        # Several times: the next ones are answered from memory.
        for _ in range(times or self._random.choice((1, 3))):
            if (answer := await self._send(method, f"/s/{stream}{query}", token.headers)) is not None:
                self._judge(answer, token, stream)

    async def _begin_live(self, who: tuple[Token, int] | None = None) -> None:
        token, stream = who or self._who()
        wire = await Wire.open(self._gateway.gateway_url)
        await wire.ask(f"/s/{stream}?offset={self._tails[stream]}&live=sse", token.headers)
        head = await wire.head()
        if head.status != 200:
            self._judge(head, token, stream)
            await wire.closed()
            return
        self._judge(head, token, stream)
        live = Live(token, stream, wire)
        live.task = asyncio.create_task(self._follow(live))
        self._lives.append(live)

    @staticmethod
    async def _follow(live: Live) -> None:
        with suppress(Dropped, ConnectionError, TimeoutError):
            while (event := await live.wire.event()) is not None:
                live.received += event.data.encode()

    async def _poll(self) -> None:
        """A long-poll that a write answers."""
        token, stream = self._who()
        wire = await Wire.open(self._gateway.gateway_url)
        await wire.ask(f"/s/{stream}?offset={self._tails[stream]}&live=long-poll", token.headers)
        if self._may_read(token, stream):
            topics = self._gateway.engine.live.topics
            with suppress(AssertionError):
                await eventually(lambda: any(topic.readers for topic in topics()))
        await self._write("POST", stream)
        with suppress(Dropped, ConnectionError, TimeoutError):
            async with asyncio.timeout(0.5):
                self._judge(await wire.answer("GET"), token, stream)
        await wire.closed()

    async def _revoke(self) -> None:
        """End a token or a principal, while it reads in every way; a write then shows what goes on."""
        token = self._random.choice(self._tokens)
        stream = self._random.choice(sorted(token.streams))
        await self._read("?offset=-1", who=(token, stream), times=3)
        await self._begin_live((token, stream))
        if self._random.random() < 0.7:
            revocation = Revocation("token", token.number)
            token.ended = True
        else:
            revocation = Revocation("principal", token.principal)
            self._revoked.add(token.principal)
            for one in (*self._tokens, *self._old):
                one.ended |= one.principal == token.principal
        self._gateway.routes.verdicts.revoke(revocation, 10**6)
        self._note_ends()
        await self._read("?offset=-1", who=(token, stream), times=1)
        await self._settle()
        await self._write("POST", stream)
        await self._settle()

    def _renew_some(self) -> None:
        """Principals whose tokens have ended come with new ones; one that was revoked is replaced."""
        for at, token in enumerate(self._tokens):
            if self._is_valid(token):
                continue
            self._old = [*self._old[-60:], token]
            name = token.principal
            if name in self._revoked:
                name = f"{name.partition('-')[0]}-{self._numbers}"
            self._tokens[at] = self._new_token(name, token.streams)

    def _fault(self) -> None:
        faults = self._origin.origin.faults
        match self._random.randrange(3):
            case 0:
                faults.status(503, method="GET")
            case 1:
                faults.refuse(method="GET")
            case 2:
                faults.clear()

    async def _settle(self) -> None:
        """Let ends of live reads, which are due, happen."""
        for _ in range(3):
            self._clock.advance(0.1)
            await asyncio.sleep(0)
        self._note_ends()
        for live in self._lives:
            self._judge_live(live)

    async def end(self) -> None:
        """Append to every stream once more, and judge what live readers have received."""
        self._note_ends()
        for stream in range(STREAMS):
            await self._write("POST", stream)
        # The 1 is for runs in which no live read has received anything.
        async with time_passing(self._clock):
            await at_rest(lambda: 1 + sum(len(live.received) for live in self._lives))
        for live in self._lives:
            live.wire.reset()
            if live.task is not None:
                live.task.cancel()
        await asyncio.gather(*(live.task for live in self._lives if live.task is not None), return_exceptions=True)
        for live in self._lives:
            self._judge_live(live)
            await live.wire.closed()
        for wire in self._wires:
            await wire.closed()


@asynccontextmanager
async def isolated(seed: int) -> AsyncIterator[Isolation]:
    """A run over an origin and a gateway of its own; judged once it ends."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        rules = [jwt_rule(Path(folder), permissions=[])]
        origin = await start_origin(OriginSettings(), clock=clock)
        config = GatewayConfig.for_origin(
            origin.url, auth=rules, credentials="shared", listen="127.0.0.1:0", admin="127.0.0.1:0",
            shutdown_timeout_s=0.1, retry_attempts=0,
        )  # fmt: skip
        gateway = await start_gateway(config, clock=clock, rng=Random(seed))
        run = Isolation(seed, gateway, origin, clock)
        try:
            await run.begin()
            yield run
            await run.end()
        finally:
            await gateway.stop()
            origin.origin.faults.clear()
            await origin.stop(grace_s=0)
