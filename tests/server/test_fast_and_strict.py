"""The same random traffic for two gateways on one clock: the one that remembers answers gives the same bytes.

Each gateway has an origin of its own, which sees the same writes.  Every request is sent some times on one connection,
so that the fast path takes part.  Left out of the comparison are the names of incarnations, which each gateway mints
for itself (their order of appearance is compared), Age, and Date: the origins write theirs by the machine's clock.
The origins send whole streams, because an answer that stops short of the tail may be repeated although the gateway
holds more by now.
"""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Final

import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.effort import examples
from tests.server.conftest import Response, close, connect, read_response

PATHS: Final = {"/t": "text/plain", "/j": "application/json", "/b": "application/octet-stream"}
QUERIES: Final = [
    "",
    "?offset=-1",
    "?offset=-1&x=1",
    "?offset=now",
    "?offset=-1&live=long-poll",
    "?offset=zzz",
    "?offset=",
]
LINES: Final = [
    "Accept: */*",
    "Accept-Encoding: gzip",
    "Cookie: a=b",
    "Authorization: Bearer a",
    "Origin: https://a.example",
    "User-Agent: u",
    "Cache-Control: no-cache",
    "X-Forwarded-For: 203.0.113.7",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
]
FRESH: Final[dict[str, object]] = {"tail_fresh_s": 20.0}
"""With it a tail is repeated for a while, so that open streams have remembered answers too."""
SETTINGS: Final[list[dict[str, object]]] = [
    FRESH,
    {**FRESH, "credentials": "shared"},
    {**FRESH, "cors": {"allow_origins": ["https://a.example"]}},
    {**FRESH, "trust_s": 1.0},
    {"credentials": "bypass"},
    {"tail": "asked"},
    {"cache": False},
]
_SERVER: Final = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.2, "live_linger_s": 0}
_FREE: Final = ("age", "date")
_INCARNATION: Final = re.compile(r'"([^":]+):')


class Side:
    """A gateway with its origin and one connection."""

    def __init__(self, *, is_fast: bool) -> None:
        self.is_fast = is_fast
        self.more: dict[str, object] = {}
        self.tags: list[str] = []
        self.tail: dict[str, str] = {}
        """The latest offset named, by path."""
        self.hits = 0
        self._names: dict[str, int] = {}
        self._origin: RunningOrigin
        self._gateway: RunningGateway

    def load(self) -> GatewayConfig:
        return GatewayConfig.for_origin(self._origin.url, fast_path=self.is_fast, **{**_SERVER, **self.more})

    async def start(self, clock: ManualClock) -> None:
        self._origin = await start_origin(OriginSettings(), clock=clock)
        self._gateway = await start_gateway(self.load(), clock=clock, rng=Random(0), load=self.load)
        self._reader, self._writer = await connect(self._gateway)

    async def stop(self) -> None:
        remembered = self._gateway.clients.remembered
        self.hits = remembered.served if remembered is not None else 0
        await close(self._writer)
        await self._gateway.stop()
        await self._origin.stop(grace_s=0)

    async def reload(self, more: dict[str, object]) -> None:
        self.more = more
        await self._gateway.reload()

    async def ask(self, method: str, target: str, lines: list[str], tag: int | None, body: bytes | None) -> Response:
        fields = ["Host: edge", *lines]
        if tag is not None and self.tags:
            fields.append(f"If-None-Match: {self.tags[-1 - tag % len(self.tags)]}")
        if body is not None:
            fields.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""])
        self._writer.write(head.encode() + (body or b""))
        if method != "HEAD":
            return await read_response(self._reader)
        async with asyncio.timeout(10):
            raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in raw[1:-2]:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return Response(int(raw[0].split(" ")[1]), headers, b"")

    def essence(self, response: Response) -> tuple[int, dict[str, tuple[str, ...]], bytes]:
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


class FastAndStrict(RuleBasedStateMachine):
    """Traffic, time and reloads; after each step both sides have said the same."""

    hits = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.clock = ManualClock()
        self.sides = [Side(is_fast=True), Side(is_fast=False)]

    @initialize(filled=st.sets(st.sampled_from(sorted(PATHS)), min_size=1), more=st.sampled_from(SETTINGS))
    def begin(self, filled: set[str], more: dict[str, object]) -> None:
        for side in self.sides:
            side.more = more
            self.loop.run_until_complete(side.start(self.clock))
        for path in sorted(filled):
            self.write("PUT", path, 3_000, is_closing=False)

    def both(
        self, method: str, target: str, lines: list[str], tag: int | None = None, body: bytes | None = None
    ) -> None:
        async def ask() -> list[Response]:
            return await asyncio.gather(*(side.ask(method, target, lines, tag, body) for side in self.sides))

        fast, strict = (
            side.essence(response)
            for side, response in zip(self.sides, self.loop.run_until_complete(ask()), strict=True)
        )
        for offset in fast[1].get("stream-next-offset", ()):
            self.sides[0].tail[target.partition("?")[0]] = offset
        assert fast[0] == strict[0]
        assert sorted(fast[1].items() ^ strict[1].items()) == []
        assert fast[2] == strict[2]

    @rule(
        method=st.sampled_from(["GET", "GET", "GET", "HEAD"]),
        path=st.sampled_from(sorted(PATHS)),
        query=st.sampled_from(QUERIES),
        lines=st.lists(st.sampled_from(LINES), max_size=3, unique=True),
        tag=st.none() | st.integers(0, 9),
    )
    def read(self, method: str, path: str, query: str, lines: list[str], tag: int | None) -> None:
        if "long-poll" in query and method == "HEAD":
            query = ""
        for _ in range(4):
            self.both(method, path + query, lines, tag)

    @rule(path=st.sampled_from(sorted(PATHS)), line=st.sampled_from(LINES))
    def read_all(self, path: str, line: str) -> None:
        for lines in ([], [], [line], [line], []):
            self.both("GET", f"{path}?offset=-1", lines)
        for tag in (0, None, 0):
            self.both("GET", f"{path}?offset=-1", [line], tag)
        tail = self.sides[0].tail.get(path)
        for _ in range(3 if tail else 0):
            self.both("GET", f"{path}?offset={tail}", [])

    @rule(path=st.sampled_from(sorted(PATHS)), at=st.integers(0, 200), lines=st.sampled_from([[], LINES[1:2]]))
    def read_from_offset(self, path: str, at: int, lines: list[str]) -> None:
        for _ in range(3):
            self.both("GET", f"{path}?offset={0:016d}_{at:016d}", lines)

    @rule(
        method=st.sampled_from(["POST", "POST", "POST", "PUT", "DELETE"]),
        path=st.sampled_from(sorted(PATHS)),
        # None is empty: a long-poll would wait.
        size=st.sampled_from([1, 20, 3_000]),
        is_closing=st.sampled_from([False, False, False, True]),
    )
    def write(self, method: str, path: str, size: int, is_closing: bool) -> None:
        content_type = PATHS[path]
        body = b"[%s]" % b",".join([b"1"] * (size // 2 + 1)) if "json" in content_type else b"x" * size
        lines = [f"Content-Type: {content_type}", *(["Stream-Closed: true"] if is_closing else [])]
        self.both(method, path, lines, None, None if method == "DELETE" else body)

    @rule(
        seconds=st.sampled_from([0.01, 0.5, 1, 3, 30, 100]),
        more=st.sampled_from([*[None] * len(SETTINGS), *SETTINGS]),
    )
    def pass_time_and_perhaps_reload(self, seconds: float, more: dict[str, object] | None) -> None:
        async def pass_here() -> None:
            self.clock.advance(seconds)

        self.loop.run_until_complete(pass_here())
        for side in self.sides if more is not None else ():
            assert more is not None
            self.loop.run_until_complete(side.reload(more))

    @invariant()
    def both_saw_as_many_incarnations(self) -> None:
        assert len({len(side.tags) for side in self.sides}) == 1

    def teardown(self) -> None:
        for side in self.sides:
            self.loop.run_until_complete(side.stop())
        FastAndStrict.hits += self.sides[0].hits
        self.loop.close()


def test_remembered_answers_are_those_of_a_gateway_that_remembers_none() -> None:
    run_state_machine_as_test(
        FastAndStrict,
        settings=settings(
            max_examples=examples(80, 3_000),
            derandomize=True,
            stateful_step_count=25,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            deadline=None,
        ),
    )
    assert FastAndStrict.hits > 100, "the fast path took no part"
