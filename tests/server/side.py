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
from pathlib import Path
from random import Random
from typing import Any, Final

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.server.conftest import BOUND_S, Response, close, connect, read_response
from tests.waiting import eventually

_SERVER: Final = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    "shutdown_timeout_s": 0.2,
    "live_linger_s": 0,
    "credential_headers": ["authorization"],
    "trusted_proxies": ["127.0.0.1/32"],
    "sink": "file",
    "client_address": "full",
}
_FREE: Final = ("age", "date", "ratelimit", "ratelimit-policy")
"""Remembered answers do not state the rest of a limit."""
_REQUESTS: Final = "durable_gateway_requests_total"
_FREE_OF_LINES: Final = ("id", "time", "partition", "duration_s", "first_byte_s", "subscribers", "collapsed")
"""Ids and times are those of each side; live readers that leave together are counted together."""
_INCARNATION: Final = re.compile(r'"([^":]+):')
_UP_TO_DATE: Final = b'"upToDate":true'

Essence = tuple[int, dict[str, tuple[str, ...]], bytes]
"""A response as it is compared: status, headers, body."""


class Side:
    """A gateway with its origin and one connection."""

    def __init__(self, *, is_fast: bool) -> None:
        self.is_fast = is_fast
        self.more: dict[str, Any] = {}
        self.tags: list[str] = []
        self.tail: dict[str, str] = {}
        """The latest offset named, by path."""
        self.hits = 0
        self.requests: list[str] = []
        """The counts of requests by route, mode and outcome, after `stop`."""
        self._folder = tempfile.TemporaryDirectory(prefix="side-")
        self._log = Path(self._folder.name, "access.log")
        self._names: dict[str, int] = {}
        self.origin: RunningOrigin
        self.gateway: RunningGateway

    def load(self) -> GatewayConfig:
        config = GatewayConfig.for_origin(
            self.origin.url, fast_path=self.is_fast, path=str(self._log), **_SERVER | self.more
        )
        (route,) = config.routes
        by_cookie = route.model_copy(update={"name": "b", "prefix": "/b", "credential_headers": ("cookie",)})
        return config.model_copy(update={"routes": (route, by_cookie)})

    async def start(self, clock: ManualClock) -> None:
        self.origin = await start_origin(OriginSettings(), clock=clock)
        self.gateway = await start_gateway(self.load(), clock=clock, rng=Random(0), load=self.load)
        await self._connect()

    async def _connect(self) -> None:
        self._reader, self._writer = await connect(self.gateway)

    async def stop(self) -> None:
        remembered = self.gateway.clients.remembered
        self.hits = remembered.served if remembered is not None else 0
        await close(self._writer)
        await self.gateway.stop()
        text = self.gateway.metrics.exposition()[0].decode()
        self.requests = sorted(line for line in text.splitlines() if line.startswith(_REQUESTS) and line[-4:] != " 0.0")
        await self.origin.stop(grace_s=0)

    def logged(self) -> tuple[list[str], dict[str, int]]:
        """The lines of the access log after `stop`, sorted and without the fields that may differ; and the sums of the
        traffic with the origin."""
        lines = [json.loads(line) for line in self._log.read_bytes().splitlines()]
        sums = {name: sum(line.pop(name, 0) for line in lines) for name in ("fetched_bytes", "origin_requests")}
        for line in lines:
            for name in _FREE_OF_LINES:
                line.pop(name, None)
        self._folder.cleanup()
        return sorted(json.dumps(line, sort_keys=True) for line in lines), sums

    async def reload(self, more: dict[str, Any]) -> None:
        self.more = more
        await self.gateway.reload()

    def purge(self, path: str, *, is_soft: bool) -> None:
        engine = self.gateway.engine
        for stream in [stream for stream in engine.store if stream.key.group.path == path]:
            (engine.purge.revalidate if is_soft else engine.purge.drop)(stream)

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

    def request(
        self, method: str, target: str, lines: Sequence[str], tag: int | None = None, body: bytes | None = None
    ) -> bytes:
        fields = ["Host: edge", *lines]
        if tag is not None and self.tags:
            fields.append(f"If-None-Match: {self.tags[-1 - tag % len(self.tags)]}")
        if body is not None:
            fields.append(f"Content-Length: {len(body)}")
        return "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""]).encode() + (body or b"")

    def send(self, data: bytes) -> None:
        """Send on the connection of this side."""
        self._writer.write(data)

    async def answer(self, method: str = "GET") -> Essence:
        """The next answer on the connection of this side."""
        response = await (read_response(self._reader) if method != "HEAD" else self._head_response())
        if response.headers.get("connection") == ["close"]:
            await close(self._writer)
            await self._connect()
        return self._essence(response)

    async def _head_response(self) -> Response:
        async with asyncio.timeout(BOUND_S):
            return Response(*_parsed(await self._reader.readuntil(b"\r\n\r\n")), b"")

    async def ask(self, method: str, target: str, lines: Sequence[str], tag: int | None, body: bytes | None) -> Essence:
        self.send(self.request(method, target, lines, tag, body))
        return await self.answer(method)

    async def follow(
        self, target: str, variants: Sequence[Sequence[str]], more: dict[str, Any] | None
    ) -> list[Essence]:
        """What SSE readers that come one after the other are sent until they are up to date; `more` is put into effect
        before the last one comes."""
        found, writers = [], []
        try:
            for number, lines in enumerate(variants):
                if more is not None and number == len(variants) - 1:
                    await self.reload(more)
                reader, writer = await connect(self.gateway)
                writers.append(writer)
                writer.write(self.request("GET", target, lines))
                found.append(self._essence(await _live_response(reader)))
        finally:
            for writer in writers:
                await close(writer)
        return found

    async def wait(
        self, target: str, at: str, variants: Sequence[Sequence[str]], leaving: int, append: bytes
    ) -> list[Essence]:
        """The answers of long-polls at the tail `at` after an append; the one with the number `leaving` leaves
        before."""
        opened = [await connect(self.gateway) for _ in variants]

        async def has_readers(count: int) -> None:
            topics = self.gateway.engine.live.topics
            await eventually(
                lambda: sum(topic.readers for topic in topics() if topic.is_confirmed) == count,
                state=lambda: [*topics()],
            )

        try:
            for number, ((_, writer), lines) in enumerate(zip(opened, variants, strict=True), 1):
                writer.write(self.request("GET", f"{target}?offset={at}&live=long-poll", lines))
                await has_readers(number)
            await close(opened[leaving][1])
            await has_readers(len(variants) - 1)
            self.send(append)
            found = [await self.answer("POST")]
            for number, (reader, _) in enumerate(opened):
                if number != leaving:
                    found.append(self._essence(await read_response(reader)))
            return found
        finally:
            for _, writer in opened:
                await close(writer)

    async def settle(self, clock: ManualClock) -> None:
        """End what lingers, and wait until nothing goes on by itself; no time goes by."""
        engine = self.gateway.engine

        def is_settled() -> bool:
            clock.advance(0.0)
            topics = list(engine.live.topics())
            return (
                not engine.fetches
                and all(topic.is_hot and not topic.readers for topic in topics)
                and all(topic.is_confirmed or topic.stream.tape.closed_at is not None for topic in topics)
            )

        await eventually(is_settled, state=lambda: (engine.fetches, list(engine.live.topics())))

    def _essence(self, response: Response) -> Essence:
        """A response as it is compared, and its tag for later requests."""
        headers = {name: tuple(values) for name, values in response.headers.items() if name not in _FREE}
        for tag in headers.get("etag", ()):
            if tag not in self.tags:
                self.tags.append(tag)
        if "etag" in headers:
            headers["etag"] = tuple(_INCARNATION.sub(self._numbered, tag) for tag in headers["etag"])
        return response.status, headers, response.body

    def _numbered(self, found: re.Match[str]) -> str:
        return f'"{self._names.setdefault(found[1], len(self._names))}:'


def _parsed(head: bytes) -> tuple[int, dict[str, list[str]]]:
    lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, list[str]] = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        headers.setdefault(name.lower(), []).append(value.strip())
    return int(lines[0].split(" ")[1]), headers


async def _live_response(reader: asyncio.StreamReader) -> Response:
    """An SSE answer up to the event that says that its reader is up to date, or another answer."""
    async with asyncio.timeout(BOUND_S):
        status, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        if headers.get("transfer-encoding") != ["chunked"]:
            return Response(status, headers, await reader.readexactly(int(headers.get("content-length", ["0"])[0])))
        body = b""
        while _UP_TO_DATE not in body and (size := int(await reader.readline(), 16)):
            body += await reader.readexactly(size)
            await reader.readline()
        return Response(status, headers, body)
