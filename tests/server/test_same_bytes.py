"""Two gateways get the same bytes, cut anywhere, pipelined or damaged: the one that answers from remembered bytes gives
the same answers, or is stricter.

The streams are closed, so that the correct answer does not change between the two.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import RunningGateway
from gateway.server.turns import Turns
from tests.effort import examples
from tests.server.conftest import Pair, always_late, close, connect, create_closed, start_pair, stop_pair
from tests.waiting import pass_turns

TARGETS = [
    "/s?offset=-1",
    "/s?offset=-1&x=1",
    "/s",
    "/none?offset=-1",
    "/s?offset=%2",
    "/s?offset=-1&offset=-1",
    "/j?offset=-1",
]
LINES = [
    "Accept: */*",
    "accept:text/plain",
    "User-Agent: a b c",
    "traceparent: 00-1",
    "Cookie: a=b",
    "cookie:",
    "COOKIE: a=b",
    "Cookie:\ta\t",
    "User-agent: a",
    "Cookie: a=\\u00e9",
    "X-Unknown: 1",
    "Origin: https://a.example",
    "Accept-Encoding: gzip",
    "Connection: keep-alive",
    "Connection: close",
    "Content-Length: 0",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Host: other",
    "Authorization: Bearer a",
    'If-None-Match: "a"',
    "Range: bytes=0-1",
    " folded: line",
    "User-Agent : space before colon",
    "User-Agent: bad\x00value",
    "No colon here",
    "Expect: 100-continue",
    "Upgrade: h2c",
]
ENDS = [
    "\r\n\r\n",
    "\n\n",
    "\r\n",
    "\r\n\r\n\r\n",
    "\r\n\r\nhello",
    # It would be a meaningless line if it were not behind the end of the head.
    "\r\n\r\nCookie: a=b\r\n",
    "\r\n\r\ntraceparent: 00-1\r\n\r\n",
    "\r\nCookie: a=b\r\n\r\nUser-Agent: a\r\n\r\n",
]


def agents_once(lines: list[str]) -> list[str]:
    """Leave out further User-Agent lines: the origin refuses two, but only one of the gateways may have to ask it."""
    agents = [line for line in lines if line.lower().startswith("user-agent:")]
    return [line for line in lines if line not in agents] + agents[:1]


requests = st.builds(
    lambda method, target, version, lines, end: (
        "\r\n".join([f"{method} {target} {version}", "Host: edge", *agents_once(lines)]).encode("latin-1", "replace")
        + end.encode()
    ),
    st.sampled_from(["GET"] * 8 + ["HEAD", "get", "POST"]),
    st.sampled_from(TARGETS[:1] * 4 + TARGETS),
    st.sampled_from(["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", ""]),
    st.lists(st.sampled_from(LINES), max_size=4),
    st.sampled_from(ENDS[:1] * 8 + ENDS),
)
plain = st.just(b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge\r\n\r\n")
chunks = st.lists(st.one_of(plain, plain, requests), min_size=1, max_size=5)


class World:
    """A pair on a loop of its own, for a test whose examples are not coroutines.  If `waits`, each request to the first
    gateway has to wait for its turn."""

    def __init__(self, *, waits: bool) -> None:
        self.loop = uvloop.new_event_loop()
        self.pair: Pair = self.loop.run_until_complete(
            start_pair(client_header_timeout_s=1.0, client_idle_timeout_s=1.0)
        )
        self.loop.run_until_complete(create_closed(self.pair))
        self.loop.run_until_complete(create_closed(self.pair, "/j", b"[1]", "application/json"))
        if waits:
            self.pair.fast.clients.turns = always_late(self.loop)

    def ask_both(self, pieces: list[bytes]) -> tuple[tuple[bytes, bool], tuple[bytes, bool]]:
        async def both() -> tuple[tuple[bytes, bool], tuple[bytes, bool]]:
            fast, strict = await asyncio.gather(feed(self.pair.fast, pieces), feed(self.pair.strict, pieces))
            return fast, strict

        return self.loop.run_until_complete(both())

    def close(self) -> None:
        self.loop.run_until_complete(stop_pair(self.pair))
        self.loop.close()


@pytest.fixture(scope="module", params=[False, True], ids=["at once", "in turns"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(waits=request.param)
    yield world
    world.close()


async def feed(gateway: RunningGateway, pieces: list[bytes]) -> tuple[bytes, bool]:
    """Everything that the gateway answers to these pieces, each sent in a write of its own.

    Also returns whether the connection was reset: TCP may then have dropped the end of the answer (RFC 9112 §9.6).
    """
    reader, writer = await connect(gateway)
    said = b""
    was_reset = False
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            # A few turns of the loop, which both ends share, so that pieces arrive separately.
            await pass_turns(5)
        writer.write(b"GET /end HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            while data := await reader.read(65_536):
                said += data
    except (ConnectionError, RuntimeError):
        # The gateway has closed the connection, which uvloop reports by a RuntimeError.
        was_reset = True
    finally:
        await close(writer)
    return said, was_reset


def essence(said: bytes) -> list[tuple[int, bytes]]:
    """Statuses and bodies; headers whose values are specific to one gateway are left out."""
    parts = re.split(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n", said)
    found = []
    for status, rest in zip(parts[1::2], parts[2::2], strict=True):
        _, _, body = rest.partition(b"\r\n\r\n")
        found.append((int(status), body))
    return found


@settings(max_examples=examples(40, 300))
@given(chunks, st.lists(st.integers(0, 400), max_size=4))
def test_remembered_and_parsed_requests_get_the_same_answers(world: World, sent: list[bytes], cuts: list[int]) -> None:
    joined = b"".join(sent)
    places = sorted({min(cut, len(joined)) for cut in cuts})
    pieces = [joined[a:b] for a, b in zip([0, *places], [*places, len(joined)], strict=True) if a < b] if cuts else sent
    (fast, fast_was_reset), (strict, strict_was_reset) = world.ask_both(pieces)
    assert b"Traceback" not in fast + strict
    by_door, by_strict = essence(fast), essence(strict)
    if fast_was_reset or strict_was_reset:
        both = min(len(by_door), len(by_strict))
        by_door, by_strict = by_door[: max(0, both - 1)], by_strict[: max(0, both - 1)]
    assert by_door == by_strict


def test_remembered_answers_took_part(world: World) -> None:
    request = b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge\r\n\r\n"
    remembered = world.pair.fast.clients.remembered
    assert remembered is not None
    before = remembered.served
    for _ in range(3):
        world.ask_both([request])
    assert remembered.served > before


def test_requests_waited_for_their_turns(world: World) -> None:
    turns, before = world.pair.fast.clients.turns, world.pair.fast.clients.turns.waited
    world.ask_both([b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge\r\nAccept-Encoding: none\r\n\r\n"])
    world.ask_both([b"POST /none HTTP/1.1\r\nHost: edge\r\n\r\n"])
    assert (turns.waited > before) == (type(turns) is not Turns)
    assert not turns
