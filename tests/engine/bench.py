"""An engine on a manual clock with an in-memory origin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.answer import Answer
from gateway.engine.core import Engine
from gateway.engine.read import Read
from gateway.engine.relay import RelayedRequest
from gateway.engine.route import Route
from gateway.protocol.mode import Mode
from gateway.protocol.target import parse_target
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.asking import answer_to
from gateway.upstream.reply import Reply
from tests.memory_upstream import BOUND_S, Asked, MemoryUpstream

TEXT = {"Content-Type": "text/plain"}


def part_of_stream(body: bytes, end: str, **more: str) -> Callable[[Asked], None]:
    """A script that answers reads with `body`, which ends at the tail `end`."""
    fields = {**TEXT, "Stream-Next-Offset": end, "Stream-Up-To-Date": "true"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return lambda asked: asked.answer(200, fields, body if asked.method == "GET" else b"")


async def eventually(condition: Callable[[], bool]) -> None:
    """Run the loop until `condition` holds."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class EngineBench:
    """An engine with its clock, upstream, metrics and route.  The caller must call `close`."""

    def __init__(self, script: Callable[[Asked], None] = lambda asked: None, **settings: Any) -> None:
        config = GatewayConfig.for_origin("http://origin.test", **settings)
        self.clock = ManualClock()
        self.upstream = MemoryUpstream(script)
        self.recorder = NoMetrics()
        self.engine = Engine(config, self.clock, self.recorder, Random(7), upstream=self.upstream)
        self.route = Route(config.routes[0], "edge", self.clock)

    def read(self, target: str, *, is_live: bool = False) -> Read:
        parsed = parse_target(target)
        credentials: CIMultiDict[str] = CIMultiDict()
        key = self.route.key(parsed, self.route.partition(credentials))
        source = self.route.source(parsed, self.route.source_headers(credentials))
        return Read(self.route, key, source, parsed.offset or "-1", parsed.cursor, is_live=is_live)

    async def body(self, target: str = "/s") -> tuple[int, bytes]:
        """The status and whole body of a catch-up read."""
        answer = await self.engine.catch_up(self.read(target))
        try:
            return answer.status, await _whole(answer)
        finally:
            answer.close()

    async def relay(self, mode: Mode, body: bytes | None = None) -> Reply:
        parsed = parse_target("/s")
        key = self.route.key(parsed, self.route.partition(CIMultiDict()))
        method = {Mode.APPEND: "POST", Mode.CREATE: "PUT", Mode.DELETE: "DELETE"}[mode]

        async def chunks() -> Any:
            yield body

        request = RelayedRequest(
            self.route, key.group, key, mode, method, "/s", "", "", CIMultiDict(TEXT),
            chunks() if body is not None else None,
        )  # fmt: skip
        return await answer_to(lambda asker: self.engine.relay.ask(request, asker))

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
