"""An engine on a manual clock with an in-memory origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.config.gateway import GatewayConfig
from gateway.engine.answer import Answer, Rendered
from gateway.engine.core import Engine
from gateway.engine.long_poll_waiter import Waiter, WaitingPoll
from gateway.engine.read import Read
from gateway.engine.relay import Relay, RelayedCall
from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.route import Route
from gateway.engine.sse import Subscription
from gateway.errors import GatewayError
from gateway.limits.memory import SharedBytes
from gateway.live.frames import chunk
from gateway.live.subscriber import Subscriber
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.names import SSE_DATA_ENCODING
from gateway.protocol.sse import Control, encode_control, encode_data
from gateway.protocol.target import parse_target
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.origin_call import Body, Handed
from gateway.upstream.reply import Reply
from tests.memory_upstream import Asked, MemoryUpstream
from tests.waiting import eventually

TEXT = {"Content-Type": "text/plain"}
BINARY = {"Content-Type": "application/octet-stream"}

Start = Callable[..., "EngineBench"]
"""Makes benches, of a script and settings."""


def part_of_stream(body: bytes, end: str, **more: str) -> Callable[[Asked], None]:
    """A script that answers reads with `body`, which ends at the tail `end`."""
    fields = {**TEXT, "Stream-Next-Offset": end, "Stream-Up-To-Date": "true"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return lambda asked: asked.answer(200, fields, body if asked.method == "GET" else b"")


class BinaryOrigin:
    """One stream of bytes at the script's side: it answers reads that are not live, and leaves live ones to the test.

    Its offsets are four digits, which count bytes.
    """

    def __init__(self, body: bytes = b"ab") -> None:
        self.body = body
        self.is_closed = False
        self.fields: dict[str, str] = {}

    @property
    def tail(self) -> str:
        return f"{len(self.body):04d}"

    def __call__(self, asked: Asked) -> None:
        if asked.is_live:
            return
        offset = asked.query.get("offset", "-1")
        start = {"-1": 0, "now": len(self.body)}.get(offset)
        fields = {**BINARY, "Stream-Next-Offset": self.tail, "Stream-Up-To-Date": "true", **self.fields}
        if self.is_closed:
            fields["Stream-Closed"] = "true"
        body = self.body[int(offset) if start is None else start :]
        asked.answer(200, fields, body if asked.method == "GET" else b"")


def confirm(asked: Asked, at: str, *, is_closed: bool = False) -> None:
    """Open a live request's SSE answer, which confirms that `at` is the tail."""
    asked.begin(200, {"Content-Type": "text/event-stream", SSE_DATA_ENCODING: "base64"})
    asked.inflow.say(encode_control(Control(at, None if is_closed else "1", True, is_closed)))


def bring(asked: Asked, data: bytes, at: str, *, is_closed: bool = False) -> None:
    """Data on an open live request, which leads to `at`."""
    event = encode_data(data, base64=True) if data else b""
    asked.inflow.say(event + encode_control(Control(at, None if is_closed else "2", True, is_closed)))


class LongPoll:
    """A long-poll client without a connection; what it was answered is in `answers`."""

    shape = "plain"

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[bytes] = []
        self.has_left = False
        self.relayed_at: str | None = None
        """The offset after which its own request is to be answered, if it is relayed."""

    def render(self, answer: Answer) -> Rendered:
        body = answer.body if answer.parts is None else b"".join(answer.parts.held(answer.is_json) or ())
        return Rendered(body, (), len(body), answer, SharedBytes(len(body)))

    def send_rendered(self, rendered: Rendered) -> None:
        self.answers.append(rendered.answer)
        self.bodies.append(rendered.head)

    def account(self, rendered: Rendered) -> None:
        """Nothing is counted here."""

    def split(self) -> list[LongPoll]:
        return []

    def waits(self, waiter: Waiter) -> None:
        """No other reader waits with it."""

    def relay(self, at: str) -> None:
        self.relayed_at = at

    def has_gone(self) -> None:
        self.has_left = True


class EventStream:
    """An SSE client without a connection; it takes nothing while `is_full`, and one part at a time if it `is_slow`."""

    carrier = 0

    def __init__(self) -> None:
        self.is_full = False
        self.is_slow = False
        self.live_bytes = 0
        self.live_first_byte_s = 0.0
        self.said = b""
        self.ended: list[tuple[CloseReason, bool]] = []

    def send_chunk(self, chunk: bytes, size: int) -> None:
        head, _, rest = chunk.partition(b"\r\n")
        assert int(head, 16) == size
        assert rest.endswith(b"\r\n")
        self.said += rest[:size]
        self.is_full = self.is_slow

    def send_view(self, piece: memoryview) -> None:
        self.send_chunk(chunk(bytes(piece)), len(piece))

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        self.ended.append((reason, in_order))

    def events(self) -> list[tuple[str, str]]:
        """Name and data of every event so far, comments left out; the data of a stream of bytes is in base64."""
        found = []
        for block in self.said.decode().split("\n\n"):
            fields = [line.partition(":")[::2] for line in block.splitlines() if line and not line.startswith(":")]
            if fields:
                name = next(value.strip() for field, value in fields if field == "event")
                found.append((name, "\n".join(value.removeprefix(" ") for field, value in fields if field == "data")))
        return found


class Relayed(RelayedCall):
    """A relayed request whose answer is awaited."""

    __slots__ = ("answer",)

    def __init__(self, relay: Relay, request: RelayedRequest, body: Body) -> None:
        super().__init__(relay, request, body)
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def take_answer(self, reply: Reply) -> None:
        self.answer.set_result(reply)

    def take_failure(self, error: GatewayError) -> None:
        self.answer.set_exception(error)


class EngineBench:
    """An engine with its clock, upstream, metrics and route.  The caller must call `close`."""

    def __init__(self, script: Callable[[Asked], None] = lambda asked: None, **settings: Any) -> None:
        config = GatewayConfig.for_origin("http://origin.test", **settings)
        self.written: dict[str, str] = {}
        """Further fields of the writes that are relayed."""
        self.clock = ManualClock()
        self.upstream = MemoryUpstream(script)
        self.recorder = NoMetrics()
        surroundings = Surroundings(self.clock, Random(7), Tasks(), self.recorder)
        self.engine = Engine(config, surroundings, upstream=self.upstream)
        self.route = Route(config.routes[0], "edge", self.clock)

    def read(self, target: str, *, is_live: bool = False, is_handed: bool = False) -> Read:
        parsed = parse_target(target)
        credentials: CIMultiDict[str] = CIMultiDict()
        key = self.route.key(parsed, self.route.partition(credentials))
        source = self.route.source(parsed, self.route.source_headers(credentials))
        start = parsed.offset or "-1"
        return Read(
            self.route,
            key,
            source,
            start,
            parsed.cursor,
            is_live=is_live,
            handed=Handed.BY_WORKER if is_handed else Handed.NO,
        )

    async def body(self, target: str = "/s") -> tuple[int, bytes]:
        """The status and whole body of a catch-up read."""
        answer = await self.engine.catch_up(self.read(target))
        try:
            return answer.status, await _whole(answer)
        finally:
            answer.close()

    async def relay(self, mode: Mode, body: bytes | None = None, target: str = "/s", **credentials: str) -> Reply:
        parsed = parse_target(target)
        key = self.route.key(parsed, self.route.partition(CIMultiDict(credentials)))
        method = {Mode.APPEND: "POST", Mode.CREATE: "PUT", Mode.DELETE: "DELETE"}[mode]

        async def chunks() -> Any:
            yield body

        request = RelayedRequest(
            self.route, key.group, key, mode, method, parsed.path, parsed.query, parsed.query,
            CIMultiDict({**TEXT, **self.written}), "",
        )  # fmt: skip
        relayed = Relayed(self.engine.relay, request, chunks() if body is not None else None)
        relayed.send()
        return await relayed.answer

    @property
    def live(self) -> list[Asked]:
        """Live requests that the origin has been sent."""
        return [asked for asked in self.upstream.asked if asked.is_live]

    async def live_request(self, number: int = 1) -> Asked:
        """The live request of that number, once it has been sent."""
        await eventually(lambda: len(self.live) >= number, look_s=0, state=lambda: self.engine.live)
        return self.live[number - 1]

    async def poll(self, target: str, *, is_handed: bool = False) -> LongPoll:
        """A long-poll, answered or waiting; of another worker if it `is_handed`."""
        client = LongPoll()
        found = await self.engine.long_poll(self.read(target, is_live=True, is_handed=is_handed))
        if isinstance(found, WaitingPoll):
            found.start(client).start()
        else:
            client.send_rendered(client.render(found))
            found.close()
        return client

    async def subscribe(self, target: str, *, is_handed: bool = False) -> tuple[EventStream, Subscriber]:
        """An SSE client that is being sent what there is; another worker if it `is_handed`."""
        found = await self.engine.open_sse(self.read(target, is_live=True, is_handed=is_handed))
        assert isinstance(found, Subscription), found
        wire = EventStream()
        subscriber = found.start(wire)
        subscriber.start()
        return wire, subscriber

    @property
    def stream(self) -> Stream:
        (found,) = self.engine.store
        return found

    async def until(self, count: int) -> Asked:
        return await self.upstream.until(count)

    async def close(self) -> None:
        await self.engine.close()


async def _whole(answer: Answer) -> bytes:
    if answer.parts is None:
        return answer.body
    return b"".join([piece async for piece in answer.parts.stream(answer.is_json)])


@asynccontextmanager
async def benches() -> AsyncIterator[Start]:
    """Makes benches, which are closed when the block ends."""
    made: list[EngineBench] = []

    def start(script: Callable[[Asked], None] = lambda asked: None, **settings: Any) -> EngineBench:
        made.append(EngineBench(script, **settings))
        return made[-1]

    try:
        yield start
    finally:
        for bench in made:
            await bench.close()


def owned_elsewhere(start: Start, age_s: float) -> EngineBench:
    """A worker that does not own `/s`.  The origin fails.  The owner has two bytes in memory, which the origin last
    confirmed `age_s` seconds ago."""

    def owner(asked: Asked) -> None:
        if asked.is_live:
            return
        said_at = bench.clock.now() - (age_s if asked.method == "GET" else 0)
        facts = Remembered(BINARY["Content-Type"], "0002", False, said_at, False, False, (), ())
        said = HopSaid("1.1.1", said_at, "life", identity="id", is_stale=True, lifetime=Lifetime(None, None))
        asked.said = said._replace(remembered=facts)
        body = b"ab" if asked.query.get("offset") == "-1" else b""
        asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002"} if asked.method == "GET" else {}, body)

    bench = start(owner)
    return bench
