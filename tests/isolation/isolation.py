"""Thirty principals over shared tapes, with expiry, revocation, renewal and faults of the origin, and a judge.

A third of the principals have tokens (JWT), a third signed URLs, and a third sessions that a service knows
(forward-auth).  The service knows of expiries and permissions, and nothing of revocations.  Requests come over HTTP/1.1
and HTTP/2.

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
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.auth.remembered_verdicts import Revocation
from gateway.auth.signed_urls import Signed, SigningKey, signed_query
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.scenarios.credentials import bearer, jwt_rule
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Answer, Dropped, Wire
from tests.waiting import at_rest, eventually, time_passing

PRINCIPALS: Final = 30
STREAMS: Final = 6
_READABLE: Final = 2
"""Streams that one principal may read."""
_LIFE_S: Final = 40
_SERVICE_KEEP_S: Final = 10
"""The longest time for which the service's verdicts may be kept."""
_SERVICE_LATE_S: Final = 1
"""A verdict that may not be kept is asked for again after less than this time, while it has a live read."""
_FAILING_S: Final = 0.1
"""The longest wait for what does not come if the origin or the service fails."""
_LINK_KEYS: Final = 16
"""As many as a rule may have."""
_POLLS: Final = 4
"""Long-polls that wait at one stream together, of its readers, and as many of anybody."""
_ROUNDS: Final = 3
"""Times that each of them asks."""
_MARK: Final = re.compile(rb"<(\d+):(\d+)>")
_OF_STREAMS: Final = re.compile(r"(?i)stream-|etag|x-content-(?!type-options)")
_TEXT: Final = {"Content-Type": "text/plain"}
_SESSION: Final = "X-Session"
_WRITER: Final = {**_TEXT, **bearer("writer", streams=["* /**"], exp=1_790_000_000 + 10**7)}


class Way(Enum):
    """How a principal shows who it is."""

    TOKEN = 0
    LINK = 1
    SESSION = 2


@dataclass
class Token:
    """One token of a principal, or its signed URLs, or its session."""

    principal: str
    way: Way
    headers: dict[str, str]
    expires_at: float
    number: str
    streams: frozenset[int]
    signatures: dict[int, str] = field(default_factory=dict)
    """The signed parameters of each stream's URL."""
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


class Service:
    """The service that knows the sessions."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.server = HostileOrigin(self._reply, takes_head=True)
        self.sessions: dict[str, Token] = {}
        self.fails = False

    async def _reply(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(*self._verdict(asked)))

    def _verdict(self, asked: Asked) -> tuple[str, dict[str, str]]:
        if self.fails:
            return "500 Internal Server Error", {}
        session = self.sessions.get(asked.headers.get(_SESSION, ""))
        left_s = session.expires_at - self._clock.wall() if session is not None else 0
        if session is None or left_s <= 0:
            return "401 Unauthorized", {}
        if asked.headers["X-Forwarded-Uri"] not in {f"/s/{stream}" for stream in session.streams}:
            return "403 Forbidden", {}
        return "200 OK", {"X-User": session.principal, "Cache-Control": f"max-age={min(int(left_s), _SERVICE_KEEP_S)}"}


class Isolation:
    """One run."""

    def __init__(
        self,
        seed: int,
        gateway: RunningGateway,
        origin: RunningOrigin,
        service: Service,
        keys: list[SigningKey],
        clock: ManualClock,
    ) -> None:
        self._random = Random(seed)
        self._gateway = gateway
        self._service = service
        self._keys = {f"p{number}": key for number, key in zip(_of_way(Way.LINK), keys, strict=False)}
        """The signing key of each principal with signed URLs."""
        self._spare = keys[len(self._keys) :]
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
        wall = self._clock.wall()
        way = way_of(principal)
        token = Token(principal, way, {}, wall + life_s, f"t{self._numbers}", streams, ended=principal in self._revoked)
        if way is Way.TOKEN:
            claims = [f"read /s/{stream}" for stream in sorted(streams)]
            token.headers = bearer(principal, streams=claims, exp=token.expires_at, iat=int(wall) - 1, jti=token.number)
        elif way is Way.LINK:
            token.expires_at = int(token.expires_at)
            key = self._keys[principal]
            for path in (f"/s/{stream}" for stream in streams):
                token.signatures[int(path[3:])] = signed_query(Signed(str(int(token.expires_at)), path=path), key)
        else:
            token.headers = {_SESSION: token.number}
            self._service.sessions[token.number] = token
        return token

    @staticmethod
    def _target(token: Token, stream: int, query: str) -> str:
        """The target of a read; a signed URL of another stream is tried where the principal may not read."""
        parts = [query] if query else []
        if token.way is Way.LINK:
            # Some clients append the read's parameters to their URL, and others the signature.
            at = len(parts) if int(token.number[1:]) % 2 else 0
            parts.insert(at, token.signatures.get(stream) or token.signatures[min(token.streams)])
        return f"/s/{stream}" + ("?" + "&".join(parts) if parts else "")

    def _is_valid(self, token: Token) -> bool:
        return not token.ended and self._clock.wall() < token.expires_at

    def _has_ended(self, token: Token) -> bool:
        """Whether live reads have ended."""
        late_s = _SERVICE_LATE_S if token.way is Way.SESSION else 0
        return token.ended or self._clock.wall() >= token.expires_at + late_s

    def _may_read(self, token: Token, stream: int) -> bool:
        return self._is_valid(token) and stream in token.streams

    def _note_ends(self) -> None:
        """Note where the streams of live reads are whose credentials have ended just now."""
        for live in self._lives:
            if live.ended_after is None and self._has_ended(live.token):
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
        if answer.status not in (401, 403, 429) and not (answer.status == 503 and token.way is Way.SESSION):
            self._violated(f"answered with {answer.status}", token, stream)
        if of or any(map(_OF_STREAMS.match, answer.headers)):
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
        self._wires = [await kind.open(self._gateway.gateway_url) for kind in (Wire, Wire, Http2Wire)]

    async def _new_wire(self) -> Wire:
        return await self._random.choice((Wire, Wire, Http2Wire)).open(self._gateway.gateway_url)

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
                self._wires[at] = await type(wire).open(self._gateway.gateway_url)
            return None
        finally:
            if not self._wires:
                await wire.closed()

    async def step(self) -> None:
        """One action, chosen at random."""
        match self._random.choices(range(10), (30, 12, 8, 14, 8, 3, 3, 4, 2, 2))[0]:
            case 0:
                await self._read(self._random.choice(("", "offset=-1", "offset=now")))
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
            case 9:
                await self._outlive()

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
            target = self._target(token, stream, query)
            if (found := await self._send(method, target, token.headers)) is not None:
                self._judge(found, token, stream)
        if who is None and method == "GET" and self._random.random() < 0.3:
            # What is remembered of one stream must not open another, whose answer others have had.
            other = self._random.randrange(STREAMS)
            if readers := [one for one in self._tokens if other in one.streams and self._is_valid(one)]:
                await self._read(query, who=(self._random.choice(readers), other), times=3)
            await self._read(query, who=(token, other), times=1)

    async def _begin_live(self, who: tuple[Token, int] | None = None) -> None:
        token, stream = who or self._who()
        wire = await self._new_wire()
        await wire.ask(self._target(token, stream, f"offset={self._tails[stream]}&live=sse"), token.headers)
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
        """Long-polls of several principals at one stream, which writes answer."""
        stream = self._random.randrange(STREAMS)
        readers = [token for token in self._tokens if stream in token.streams]
        tokens = [*self._random.choices(readers, k=_POLLS), *(self._who()[0] for _ in range(_POLLS))]
        wires = [await self._new_wire() for _ in tokens]
        for _ in range(_ROUNDS):
            for token, wire in zip(tokens, wires, strict=True):
                await wire.ask(
                    self._target(token, stream, f"offset={self._tails[stream]}&live=long-poll"), token.headers
                )
            await self._have_waiting(sum(self._may_read(token, stream) for token in tokens))
            await self._write("POST", stream)
            await asyncio.gather(
                *(self._polled(token, stream, wire) for token, wire in zip(tokens, wires, strict=True))
            )
        for wire in wires:
            await wire.closed()

    async def _polled(self, token: Token, stream: int, wire: Wire) -> None:
        """Judge the answer to a long-poll, if there is one: a failing origin gives none."""
        with suppress(Dropped, ConnectionError, TimeoutError):
            async with asyncio.timeout(_FAILING_S):
                self._judge(await wire.answer("GET"), token, stream)

    async def _have_waiting(self, number: int) -> None:
        """Wait a little until so many live reads wait.  Fewer do if the origin or the service fails."""
        topics = self._gateway.engine.live.topics
        with suppress(AssertionError):
            await eventually(lambda: sum(topic.readers for topic in topics()) >= number, within_s=_FAILING_S)

    async def _revoke(self) -> None:
        """End a token or a principal, while it reads in every way; a write then shows what goes on."""
        token = self._random.choice(self._tokens)
        stream = self._random.choice(sorted(token.streams))
        await self._read("offset=-1", who=(token, stream), times=3)
        await self._begin_live((token, stream))
        if token.way is Way.TOKEN and self._random.random() < 0.7:
            revocation = Revocation("token", token.number)
            token.ended = True
        else:
            revocation = Revocation("principal", token.principal)
            if token.way is Way.LINK:
                revocation = Revocation("key", self._keys[token.principal].id)
            self._revoked.add(token.principal)
            for one in (*self._tokens, *self._old):
                one.ended |= one.principal == token.principal
        self._gateway.routes.verdicts.revoke(revocation, 10**6)
        self._note_ends()
        await self._read("offset=-1", who=(token, stream), times=1)
        await self._settle()
        await self._write("POST", stream)
        await self._settle()

    async def _outlive(self) -> None:
        """Read with a credential from memory, and again as soon as it has expired."""
        if not (valid := [token for token in self._tokens if self._is_valid(token)]):
            return
        token = min(valid, key=lambda one: one.expires_at)
        who = token, self._random.choice(sorted(token.streams))
        await self._read("offset=-1", who=who, times=3)
        self._clock.advance(token.expires_at - self._clock.wall() + 0.01)
        self._note_ends()
        await self._read("offset=-1", who=who, times=2)
        await self._settle()

    def _renew_some(self) -> None:
        """Principals whose tokens have ended come with new ones; one that was revoked is replaced."""
        for at, token in enumerate(self._tokens):
            if self._is_valid(token):
                continue
            self._old = [*self._old[-60:], token]
            name = token.principal
            if name in self._revoked:
                if token.way is Way.LINK and not self._spare:
                    continue
                name = f"{name.partition('-')[0]}-{self._numbers}"
                if token.way is Way.LINK:
                    self._keys[name] = self._spare.pop()
            self._tokens[at] = self._new_token(name, token.streams)

    def _fault(self) -> None:
        faults = self._origin.origin.faults
        match self._random.randrange(4):
            case 0:
                faults.status(503, method="GET")
            case 1:
                faults.refuse(method="GET")
            case 2:
                self._service.fails = True
            case 3:
                faults.clear()
                self._service.fails = False

    async def _settle(self) -> None:
        """Let ends of live reads, which are due, happen."""
        services = self._gateway.auth_services
        for _ in range(3):
            self._clock.advance(0.1)
            await asyncio.sleep(0)
            await eventually(lambda: "0 questions, 0 waiting" in repr(services), look_s=0)
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


def way_of(principal: str) -> Way:
    """How a principal shows who it is; those that take its place do the same."""
    return Way(int(principal.partition("-")[0][1:]) % len(Way))


def _of_way(way: Way) -> list[int]:
    return [number for number in range(PRINCIPALS) if way_of(f"p{number}") is way]


def _rules(folder: Path, keys: list[SigningKey], service: Service) -> list[dict[str, object]]:
    files = []
    for key in keys:
        files.append({"id": key.id, "file": str(folder / key.id)})
        (folder / key.id).write_bytes(key.secret)
    forward = {
        "by": "forward",
        "url": f"{service.server.url}/verify",
        "request_headers": [_SESSION.lower()],
        "principal_from": "x-user",
    }
    return [{"by": "signed", "keys": files}, jwt_rule(folder, permissions=[]), forward]


@asynccontextmanager
async def isolated(seed: int) -> AsyncIterator[Isolation]:
    """A run over an origin, a service and a gateway of its own; judged once it ends."""
    clock = ManualClock()
    keys = [SigningKey(f"key{number}", b"the secret of number %d" % number) for number in range(_LINK_KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        service = Service(clock)
        await service.server.start()
        origin = await start_origin(OriginSettings(), clock=clock)
        config = GatewayConfig.for_origin(
            origin.url, auth=_rules(Path(folder), keys, service), credentials="shared", listen="127.0.0.1:0",
            admin="127.0.0.1:0", shutdown_timeout_s=0.1, retry_attempts=0,
            # Most credentials outlast a live read, so that later requests join without being parsed.
            long_poll_timeout_s=2, sse_lifetime_s=12,
        )  # fmt: skip
        gateway = await start_gateway(config, clock=clock, rng=Random(seed))
        run = Isolation(seed, gateway, origin, service, keys, clock)
        try:
            await run.begin()
            yield run
            await run.end()
        finally:
            await gateway.stop()
            origin.origin.faults.clear()
            await origin.stop(grace_s=0)
            await service.server.stop()
