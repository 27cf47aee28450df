"""A gateway with its origin, one of several that are sent the same; what it answers is made comparable.

Left out are the names of incarnations, which each gateway mints for itself (their order of appearance is kept), Age,
and Date: the origins write theirs by the machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.scenarios.http2_wire import Call, Http2Wire
from tests.scenarios.wire import Answer, Dropped, Wire
from tests.server.conftest import BOUND_S
from tests.waiting import eventually

_SERVER: Final = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    # The end of a drain is for the lines of the access log.
    "shutdown_timeout_s": 5,
    "live_linger_s": 0,
    "credential_headers": ["authorization"],
    "trusted_proxies": ["127.0.0.1/32"],
    "sink": "file",
    "client_address": "full",
}
_FREE: Final = ("age", "date", "ratelimit", "ratelimit-policy")
"""Remembered answers do not state the rest of a limit."""
_FREE_METRICS: Final = (
    "durable_gateway_cache_bytes",
    "durable_gateway_client_bytes",
    "durable_gateway_event_loop_delay_seconds",
    "durable_gateway_requests_waited_total",
    "process_",
)
"""Remembered answers take memory; the other figures depend on the machine."""
_FREE_OF_LINES: Final = ("id", "time", "partition", "duration_s", "first_byte_s", "subscribers", "collapsed")
"""Ids and times are those of each side; live readers that leave together are counted together."""
_INCARNATION: Final = re.compile(r'"([^":]+):')
_UP_TO_DATE: Final = b'"upToDate":true'

Essence = tuple[int, dict[str, tuple[str, ...]], bytes]
"""A response as it is compared: status, headers, body.  The status is 0 if the connection or stream ended before."""

HTTP_1: Final = "1"
HTTP_2: Final = "2"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was sent.  Those on one connection of HTTP/1.1 have to be answered in order."""

    wire: Wire
    method: str
    call: Call | None
    """The stream, over HTTP/2."""

    async def answer(self, until: bytes | None = None) -> Answer:
        """The answer; its body ends with the piece that has `until` in it, if there is one."""
        wire, call, body = self.wire, self.call, b""
        try:
            if call is not None and isinstance(wire, Http2Wire):
                head = await wire.head_of(call)
                while (until is None or until not in body) and (piece := await wire.piece_of(call)):
                    body += piece
            else:
                head = await wire.head(self.method)
                while (until is None or until not in body) and (piece := await wire.piece()):
                    body += piece
        except Dropped:
            return Answer(0, CIMultiDict(), b"" if call is None else b"reset %d" % (call.reset or 0))
        return Answer(head.status, head.headers, body)

    async def leave(self) -> None:
        """Leave before the answer: take the stream back, or reset the connection.  One that is closed in order would
        be seen to be gone after most of a second."""
        if self.call is not None and isinstance(self.wire, Http2Wire):
            await self.wire.reset_stream(self.call)
        else:
            self.wire.reset()


class Side:
    """A gateway with its origin and one connection of each version of HTTP."""

    def __init__(self, *, is_fast: bool) -> None:
        self.is_fast = is_fast
        self.server: dict[str, Any] = {}
        """Settings that no reload changes."""
        self.more: dict[str, Any] = {}
        self.tags: list[str] = []
        self.tail: dict[str, str] = {}
        """The latest offset named, by path."""
        self.hits = 0
        self.counts: list[str] = []
        """The metrics, after `stop`."""
        self._folder = tempfile.TemporaryDirectory(prefix="side-")
        self._log = Path(self._folder.name, "access.log")
        self._names: dict[str, int] = {}
        self._wires: dict[str, Wire] = {}
        """The connection of each version."""
        self.origin: RunningOrigin
        self.gateway: RunningGateway

    def load(self) -> GatewayConfig:
        config = GatewayConfig.for_origin(
            self.origin.url, fast_path=self.is_fast, path=str(self._log), **_SERVER | self.server | self.more
        )
        (route,) = config.routes
        by_cookie = route.model_copy(update={"name": "b", "prefix": "/b", "credential_headers": ("cookie",)})
        return config.model_copy(update={"routes": (route, by_cookie)})

    async def start(self, clock: ManualClock) -> None:
        self.origin = await start_origin(OriginSettings(), clock=clock)
        self.gateway = await start_gateway(self.load(), clock=clock, rng=Random(0), load=self.load)

    async def stop(self) -> None:
        remembered = self.gateway.clients.remembered
        self.hits = remembered.served if remembered is not None else 0
        # A connection that is open as the gateway stops is sent a GOAWAY, which is counted.
        await self._leave()
        await self.gateway.stop()
        self.counts = _counts(self.gateway.metrics.exposition()[0].decode().replace(self.origin.url, "origin"))
        await self.origin.stop(grace_s=0)

    async def _leave(self) -> None:
        """Close the connections, and wait until the gateway has seen it."""
        wires, self._wires = self._wires, {}
        for wire in wires.values():
            await wire.closed()
        await eventually(lambda: len(self.gateway.clients) == 0)

    def logged(self) -> tuple[list[str], dict[str, int]]:
        """The lines of requests in the access log after `stop`, sorted and without the fields that may differ; and the
        sums of the traffic with the origin, some of which may have lines of its own."""
        lines = [json.loads(line) for line in self._log.read_bytes().splitlines()]
        sums = {name: sum(line.pop(name, 0) for line in lines) for name in ("fetched_bytes", "origin_requests")}
        for line in lines:
            for name in _FREE_OF_LINES:
                line.pop(name, None)
        self._folder.cleanup()
        return sorted(json.dumps(line, sort_keys=True) for line in lines if line["is_final"] or "client" in line), sums

    async def reload(self, more: dict[str, Any]) -> None:
        self.more = more
        await self.gateway.reload()

    def purge(self, path: str, *, is_soft: bool) -> None:
        engine = self.gateway.engine
        for stream in [stream for stream in engine.store if stream.key.group.path == path]:
            (engine.purge.revalidate if is_soft else engine.purge.drop_stream)(stream)

    @property
    def live_requests(self) -> int:
        """Live requests that the origin has had."""
        requests = self.origin.origin.counters.requests
        return requests[Kind.LONGPOLL] + requests[Kind.SSE]

    @property
    def reads(self) -> int:
        """Requests for bytes or metadata that the origin has had."""
        requests = self.origin.origin.counters.requests
        return requests[Kind.CATCHUP] + requests[Kind.HEAD]

    # -- requests

    async def open(self, version: str) -> Wire:
        """A connection; `closed` is owed."""
        return await (Http2Wire if version == HTTP_2 else Wire).open(self.gateway.gateway_url)

    async def send(
        self,
        version: str,
        method: str,
        target: str,
        lines: Sequence[str],
        tag: int | None = None,
        body: bytes | None = None,
        wire: Wire | None = None,
    ) -> Exchange:
        """Send a request on `wire`; without it on the connection of this side."""
        fields = ["Host: edge", *lines]
        if tag is not None and self.tags:
            fields.append(f"If-None-Match: {self.tags[-1 - tag % len(self.tags)]}")
        if wire is None:
            if version not in self._wires:
                self._wires[version] = await self.open(version)
            wire = self._wires[version]
        if isinstance(wire, Http2Wire):
            pairs = [line.partition(":") for line in fields]
            await wire.ask(target, CIMultiDict([(name, value) for name, _, value in pairs]), method, body)
            return Exchange(wire, method, wire.call)
        if body is not None:
            fields.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""])
        await wire.send(head.encode() + (body or b""))
        return Exchange(wire, method, None)

    async def answer(self, exchange: Exchange, until: bytes | None = None) -> Essence:
        """The answer to a request, as far as `until`, as it is compared."""
        return await self._taken(exchange, await exchange.answer(until))

    async def _taken(self, exchange: Exchange, answer: Answer) -> Essence:
        if answer.headers.get("Connection") == "close" or (answer.status == 0 and exchange.call is None):
            await exchange.wire.closed()
            self._wires = {version: wire for version, wire in self._wires.items() if wire is not exchange.wire}
        return self._essence(answer)

    async def ask(
        self, version: str, method: str, target: str, lines: Sequence[str], tag: int | None, body: bytes | None
    ) -> Essence:
        return await self.answer(await self.send(version, method, target, lines, tag, body))

    async def follow(
        self, versions: Sequence[str], target: str, variants: Sequence[Sequence[str]], more: dict[str, Any] | None
    ) -> list[Essence]:
        """What SSE readers that come one after the other are sent until they are up to date; `more` is put into effect
        before the last one comes.  Each is on a connection of its own over HTTP/1.1; over HTTP/2 they share one."""
        found: list[Essence] = []
        wires = [shared := await self.open(HTTP_2)]
        try:
            for number, (version, lines) in enumerate(zip(versions, variants, strict=True)):
                if more is not None and number == len(variants) - 1:
                    await self.reload(more)
                if version == HTTP_1:
                    wires.append(await self.open(version))
                wire = shared if version == HTTP_2 else wires[-1]
                found.append(await self.answer(await self.send(version, "GET", target, lines, wire=wire), _UP_TO_DATE))
        finally:
            for wire in wires:
                wire.reset()
        return found

    async def read_across(
        self, versions: Sequence[str], target: str, variants: Sequence[Sequence[str]], more: dict[str, Any] | None
    ) -> list[Essence]:
        """The answers to equal reads, each on a connection of its own; those of SSE until they are up to date.  The
        first one waits for the origin while `more` is put into effect; without `more`, it comes during a drain that is
        undone after it."""
        gate = self.origin.origin.faults.hold(kind="catchup", times=1)
        if more is None:
            # A connection that is open as the drain begins is sent a GOAWAY.
            await self._leave()
            self.gateway.drain(BOUND_S)
        found: list[Essence] = []
        for number, (version, lines) in enumerate(zip(versions, variants, strict=True)):
            wire = await self.open(version)
            exchange = await self.send(version, "GET", target, lines, wire=wire)
            if number == 0:
                async with asyncio.timeout(BOUND_S):
                    await gate.waiting(1)
                if more is not None:
                    await self.reload(more)
                gate.release()
            found.append(await self.answer(exchange, _UP_TO_DATE if "live=" in target else None))
            if number == 0 and more is None:
                self.gateway.undo_drain()
            wire.reset()
        return found

    async def wait(
        self,
        versions: Sequence[str],
        target: str,
        at: str,
        variants: Sequence[Sequence[str]],
        leaving: int,
        append: tuple[list[str], bytes],
        more: dict[str, Any] | None,
    ) -> list[Essence]:
        """The answers of long-polls at the tail `at` after an append; that with the number `leaving` leaves before, if
        it waits.  Each is on a connection of its own.  `more` is put into effect before the append."""
        topics = self.gateway.engine.live.topics

        def readers() -> int:
            return sum(topic.readers for topic in topics() if topic.is_confirmed)

        wires: list[Wire] = []
        waiting: list[tuple[Exchange, asyncio.Task[Answer]]] = []
        try:
            count = 0
            for version, lines in zip(versions, variants, strict=True):
                wires.append(await self.open(version))
                query = f"{target}?offset={at}&live=long-poll"
                exchange = await self.send(version, "GET", query, lines, wire=wires[-1])
                task = asyncio.get_running_loop().create_task(exchange.answer())
                waiting.append((exchange, task))
                # A limit may refuse it.
                await eventually(lambda: readers() > count or task.done(), state=lambda: [*topics()])  # noqa: B023
                count = readers()
            exchange, task = waiting[leaving]
            if not task.done():
                del waiting[leaving]
                task.cancel()
                await exchange.leave()
                await eventually(lambda: readers() == count - 1, state=lambda: [*topics()])
            if more is not None:
                await self.reload(more)
            lines, body = append
            found = [await self.ask(versions[0], "POST", target, lines, None, body)]
            return [*found, *[await self._taken(exchange, await task) for exchange, task in waiting]]
        finally:
            for _, task in waiting:
                task.cancel()
            for wire in wires:
                await wire.closed()

    async def rest(self) -> None:
        """Wait until no request of the gateway's own waits for an answer of the origin; nothing that lingers ends."""
        engine = self.gateway.engine

        def is_at_rest() -> bool:
            return not engine.fetches and all(
                topic.is_confirmed or topic.failure is not None or topic.stream.tape.closed_at is not None
                for topic in engine.live.topics()
            )

        await eventually(is_at_rest, state=lambda: (engine.fetches, list(engine.live.topics())))

    async def settle(self, clock: ManualClock) -> None:
        """End what lingers, and wait until nothing goes on by itself; no time goes by."""
        engine = self.gateway.engine

        def is_settled() -> bool:
            clock.advance(0.0)
            topics = list(engine.live.topics())
            return (
                not engine.fetches
                and all(topic in engine.live_table.hot and not topic.readers for topic in topics)
                and all(topic.is_confirmed or topic.stream.tape.closed_at is not None for topic in topics)
            )

        await eventually(is_settled, state=lambda: (engine.fetches, list(engine.live.topics())))

    def _essence(self, answer: Answer) -> Essence:
        """A response as it is compared, and its tag for later requests."""
        names = dict.fromkeys(name.lower() for name in answer.headers)
        headers = {name: tuple(answer.headers.getall(name)) for name in names if name not in _FREE}
        for tag in headers.get("etag", ()):
            if tag not in self.tags:
                self.tags.append(tag)
        if "etag" in headers:
            headers["etag"] = tuple(_INCARNATION.sub(self._numbered, tag) for tag in headers["etag"])
        return answer.status, headers, answer.body

    def _numbered(self, found: re.Match[str]) -> str:
        return f'"{self._names.setdefault(found[1], len(self._names))}:'


def _counts(exposition: str) -> list[str]:
    """The samples that are compared."""
    return sorted(
        line for line in exposition.splitlines() if not line.startswith(("#", *_FREE_METRICS)) and line[-4:] != " 0.0"
    )
