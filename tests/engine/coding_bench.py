"""The coder alone, on a library of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any

from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.routes import RouteConfig
from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.compression import Coder
from gateway.engine.read import Read
from gateway.engine.route import Route
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import negotiate
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.target import parse_target
from gateway.tape.eviction import LeastRecentlyUsed
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import NoMetrics
from tests.waiting import pass_turns


class Bench:
    """A coder on a library of its own, with a gate in the place of its thread."""

    def __init__(self, cache_bytes: int = 10 << 20, keep_bytes: int = 1 << 20, **route: Any) -> None:
        self.clock = ManualClock()
        self.recorder = NoMetrics()
        mint: Callable[[], str] = map(str, count()).__next__
        self.store = TapeStore(cache_bytes, LeastRecentlyUsed(), mint, self.recorder)
        self.coder = Coder(self.store, self.clock, self.recorder, min_bytes=1_000, keep_bytes=keep_bytes)
        self.thread = self.coder.executor
        self.gate = self.coder.executor = Gate()
        self.evicted: list[Stream] = []
        self.coder.on_evict = self.evicted.append
        self.store.on_forget = self.coder.forget_stream
        self.route = Route(RouteConfig(origin="http://127.0.0.1:1", **route), "n", self.clock)

    def stream(self, name: str = "s") -> Stream:
        return self.store.open(StreamKey(Group("default", f"/{name}"), "", Partition("")), self.clock.now())

    def read(self, stream: Stream, accept_encoding: str | None = "gzip", **more: Any) -> Read:
        target = parse_target(stream.key.group.path)
        source = self.route.source(target, self.route.source_headers(CIMultiDict()))
        accepted = negotiate(accept_encoding, None, self.route.codings)
        return Read(self.route, stream.key, source, "-1", accepted=accepted, **more)

    def answer(self, stream: Stream, body: bytes, end: str = "9", **headers: str) -> Answer:
        parts = Parts()
        parts.add_pieces((body[1:500], body[500:-1]), 0, stream.shared_bytes())
        fields = CIMultiDict({"ETag": f'"k:-1:{end}"', "Content-Type": "application/json", **headers})
        run = BodyRun(stream, "-1", end, stream.version.edition)
        return Answer(200, fields, Outcome.HIT, parts, is_json=True, stream=stream, run=run)

    async def code(self, stream: Stream, body: bytes, accept_encoding: str = "gzip", end: str = "9") -> Answer:
        """An answer through the coder, whose gate is open."""
        coding = asyncio.create_task(
            self.coder.code(self.read(stream, accept_encoding), self.answer(stream, body, end))
        )
        while not coding.done():
            await pass_turns(1)
            self.gate.release()
        return coding.result()


class Gate(Executor):
    """Holds what it is given until it is let go, and says how much that is."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **more)))
        return future

    def release(self) -> None:
        held, self.held = self.held, []
        for future, work in held:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
