"""The verdict that a connection keeps with the beginning of its signed request line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.remembered_verdicts import Allowed
from gateway.server.authorising import Authoriser
from gateway.server.header_meanings import Presented, Section
from gateway.server.joins import Join
from gateway.server.request import Channel
from tests.scenarios.credentials import WALL, signed, signed_rule
from tests.server.conftest import Pair, close, connect, get, read_response, start_pair, stop_pair, write
from tests.waiting import eventually

LINK, OTHER = signed("/s", WALL + 7_200), signed("/s")
APPEND = signed("/s", methods="append")


class Polls:
    """Long-polls of several connections, which one append answers.  The first connection has a credential of its own,
    so the others join its group without being parsed."""

    def __init__(self, pair: Pair, wires: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway, self.wires, self.tail = pair.fast, wires, "-1"
        self.kept: list[Allowed | None] = []
        """The verdict that each join came with."""
        self.judged = 0
        join, authorise = self.gateway.clients.join, Authoriser.authorise

        def noting(channel: Channel, known: Join, section: Section, presented: Presented | None) -> bool:
            self.kept.append(presented.allowed if presented is not None else None)
            return join(channel, known, section, presented)

        def counting(authoriser: Authoriser, *arguments: Any, **more: Any) -> Any:
            self.judged += 1
            return authorise(authoriser, *arguments, **more)

        monkeypatch.setattr(self.gateway.clients, "join", noting)
        monkeypatch.setattr(Authoriser, "authorise", counting)

    def _is_waiting(self, number: int) -> bool:
        return len(self.gateway.routes.verdicts.live_reads()) == number

    async def read(self, number: int, target: str) -> None:
        """Send a catch-up read."""
        reader, writer = self.wires[number]
        writer.write(get(target))
        self.tail = (await read_response(reader)).headers["stream-next-offset"][0]

    async def wait(self, number: int, target: str, *lines: str, readers: int) -> None:
        """Send a long-poll, and wait until there are so many."""
        self.wires[number][1].write(get(f"{target}&offset={self.tail}&live=long-poll", *lines))
        await eventually(partial(self._is_waiting, readers))

    async def append(self, target: str = APPEND) -> None:
        await write(self.gateway, "POST", target, b"abc", Content_Type="text/plain")
        for reader, _ in self.wires:
            self.tail = (await read_response(reader)).headers["stream-next-offset"][0]
        await eventually(partial(self._is_waiting, 0))

    async def turn(self, *lines: str) -> tuple[Allowed | None, int]:
        """Let all connections poll once.  Returns the verdict that the last one came with, and how many were judged."""
        judged = self.judged
        await self.wait(0, OTHER, readers=1)
        for number in range(1, len(self.wires)):
            self.kept.clear()
            await self.wait(number, LINK, *lines, readers=number + 1)
        found, judged = self.kept[-1] if self.kept else None, self.judged - judged
        await self.append()
        return found, judged


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    found = await start_pair(auth=[signed_rule(tmp_path)], credentials="shared")
    for others in ("", "x=1"):
        target = signed("/s", methods="create", others=others)
        await write(found.fast, "PUT", target, b"held" + others.encode(), Content_Type="text/plain")
    yield found
    await stop_pair(found)


@pytest.fixture
async def polls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Polls]:
    wires = [await connect(pair.fast) for _ in range(4)]
    yield Polls(pair, wires, monkeypatch)
    for _, writer in wires:
        await close(writer)
    await eventually(lambda: pair.fast.clients.joins.beginnings.size == 0)


async def test_it_is_of_one_header_section(polls: Polls) -> None:
    await polls.read(0, f"{OTHER}&offset=-1")
    kept = [await polls.turn() for _ in range(4)][-1][0]
    assert kept is not None
    assert kept not in [(await polls.turn("User-Agent: other"))[0] for _ in range(4)]
    assert [await polls.turn() for _ in range(2)][-1][0] is kept


async def test_it_is_kept_by_a_client_that_begins_with_an_answer_to_others(polls: Polls) -> None:
    for _ in range(3):
        await polls.read(0, f"{OTHER}&offset=-1")
    for number in (1, 2, 3):
        await polls.read(number, f"{LINK}&offset=-1")
    assert [await polls.turn() for _ in range(4)][-1][0] is not None


async def test_once_it_has_lapsed_one_connection_is_judged_for_all_with_the_same_section(polls: Polls) -> None:
    await polls.read(0, f"{OTHER}&offset=-1")
    former, judged = [await polls.turn() for _ in range(4)][-1]
    assert judged == 1, "the group's first reader is parsed"
    # As after a revocation.
    polls.gateway.routes.verdicts.begin_edition()
    assert (await polls.turn())[1] == 2
    later, judged = await polls.turn()
    assert judged == 1
    assert later is not None
    assert later is not former


async def test_it_is_of_the_stream_that_was_signed(polls: Polls) -> None:
    """`x` is not covered by the first signature, and selects another stream."""
    await polls.read(0, f"{OTHER}&offset=-1")
    for _ in range(4):
        await polls.turn()
    (reader, writer), second = polls.wires[1], signed("/s", others="x=1")
    polls.wires = [polls.wires[0]]
    await polls.read(0, f"{second}&offset=-1")
    for _ in range(3):
        await polls.wait(0, second, readers=1)
        await polls.append(signed("/s", methods="append", others="x=1"))
    await polls.wait(0, second, readers=1)
    writer.write(get(f"{LINK}&x=1&offset={polls.tail}&live=long-poll"))
    assert (await asyncio.wait_for(read_response(reader), 20)).status == 401
    await polls.append(signed("/s", methods="append", others="x=1"))


async def test_a_request_that_may_not_join_for_another_reason_is_tried_once(
    polls: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try would draw again whether the request is traced."""
    await polls.read(0, f"{OTHER}&offset=-1")
    assert [await polls.turn() for _ in range(4)][-1][0] is not None
    tried: list[Presented | None] = []

    def refuse(channel: Channel, known: Join, section: Section, presented: Presented | None) -> bool:
        tried.append(presented)
        return False

    await polls.wait(0, OTHER, readers=1)
    monkeypatch.setattr(polls.gateway.clients, "join", refuse)
    await polls.wait(1, LINK, readers=2)
    assert len(tried) == 1
    polls.wires = polls.wires[:2]
    await polls.append()
