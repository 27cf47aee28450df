"""Live reads with credentials in their queries: their readers wait together, and each is judged by its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.guard import Guard
from gateway.auth.remembered_verdicts import Allowed
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import WALL, bearer, jwt_rule, signed, signed_rule, token
from tests.scenarios.hostile import Asked, part_of_stream
from tests.waiting import eventually

pytestmark = [pytest.mark.judging, pytest.mark.http_1]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    rules = [jwt_rule(tmp_path, parameter="access_token"), signed_rule(tmp_path)]
    return {"auth": rules, "credentials": "shared", "principal_header": "x-principal"}


def links(kind: str) -> tuple[str, str]:
    """URLs of the stream for Ada, whose credential ends first, and for Bob."""
    ends = (WALL + 4_000, WALL + 9_000)
    if kind == "signed":
        return signed("/shared/s", ends[0]), signed("/shared/s", ends[1])
    ada, bob = (token(name, exp=end) for name, end in zip(("ada", "bob"), ends, strict=True))
    return f"/shared/s?access_token={ada}", f"/shared/s?access_token={bob}"


@pytest.mark.parametrize("mode", ["long-poll", "sse"])
@pytest.mark.parametrize("kind", ["signed", "token"])
@pytest.mark.parametrize("is_sorted", [False, True])
async def test_readers_with_urls_of_their_own_wait_together_and_are_judged_once(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, mode: str, kind: str, *, is_sorted: bool
) -> None:
    judge, judged = Guard.judge, list[dict[str, str]]()

    def noting(self: Guard, asked: Any, *arguments: Any) -> Allowed:
        judged.append(asked.parameters)
        return judge(self, asked, *arguments)

    monkeypatch.setattr(Guard, "judge", noting)
    writer = {"Content-Type": "text/plain", **bearer("ada", exp=WALL + 99_999, streams=["* /shared/*"])}
    tail = (await edge.send("PUT", "/shared/s", writer, b"0123456789")).next_offset
    ada, bob = links(kind)
    topics, reads = edge.gateway.engine.live.topics, edge.gateway.routes.verdicts.live_reads

    def target(link: str) -> str:
        path, _, query = f"{link}&offset={tail}&live={mode}&cursor={len(tail)}".partition("?")
        return f"{path}?{'&'.join(sorted(query.split('&')) if is_sorted else query.split('&'))}"

    async def read() -> int:
        """Bob asks first, so that Ada joins.  The status of Ada's answer."""
        nonlocal tail
        wires = [await edge.begin(target(bob))]
        await eventually(lambda: any(topic.is_confirmed and topic.readers for topic in topics()))
        wires.append(await edge.begin(target(ada)))
        head = asyncio.ensure_future(wires[1].head())
        await eventually(lambda: len(reads()) == 2 or head.done())
        if mode == "long-poll" and not head.done():
            together.append([(len(topic.readers_now), topic.extra_clients) for topic in topics()])
        tail = (await edge.send("POST", "/shared/s", writer, b"abc")).next_offset
        status = (await bounded(head)).status
        for wire in wires:
            wire.reset()
        await eventually(lambda: not reads())
        return status

    together: list[list[tuple[int, int]]] = []
    assert [await read() for _ in range(2)] == [200] * 2
    judged.clear()
    together.clear()
    assert [await read() for _ in range(3)] == [200] * 3
    own = dict(pair.split("=", 1) for pair in ada.partition("?")[2].split("&"))
    assert own not in judged
    assert together == ([[(1, 1)]] * 3 if mode == "long-poll" else [])
    edge.clock.advance(4_001)
    assert await read() == 401


async def test_readers_that_waited_together_are_relayed_with_their_own_credentials(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    waits = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=long-poll" not in asked.target:
            writer.write(part_of_stream(b"x" if "offset=0001" not in asked.target else b"", "0001"))
        else:
            await waits.wait()
            writer.write(part_of_stream(b"y", "0002", **{"Cache-Control": "private"}))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, **settings)
    ada, bob = links("token")
    reads = edge.gateway.routes.verdicts.live_reads
    for link in (ada, bob):
        for _ in range(3):
            assert (await edge.get(f"{link}&offset=-1")).status == 200
    wires = [await edge.begin(f"{bob}&offset=0001&live=long-poll")]
    await eventually(lambda: len(reads()) == 1 and any("live=" in asked.target for asked in origin.asked))
    wires.append(await edge.begin(f"{ada}&offset=0001&live=long-poll"))
    await eventually(lambda: len(reads()) == 2)
    origin.asked.clear()
    waits.set()
    for wire in wires:
        assert (await bounded(wire.answer("GET"))).body == b"y"
    assert sorted(one.headers.get("x-principal", "") for one in origin.reads) == ["ada", "bob"]
