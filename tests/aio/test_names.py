"""Name lookups by the system's resolver, which may be silent for minutes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from gateway.commands import exchange
from gateway.commands.exchange import Transient, open_session, request
from gateway.upstream.resolver import look_up
from tests.waiting import eventually


class Silent:
    """A resolver without an answer until `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.lookups = 0

    def getaddrinfo(self, *name: Any, **how: Any) -> list[Any]:
        self.lookups += 1
        self.gate.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "silent")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    resolver = Silent()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.gate.set()


def test_the_loop_ends_while_lookups_go_on(silent: Silent) -> None:
    async def give_up() -> None:
        for number in range(8):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(look_up(f"{number}.slow.test", 80), 0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(give_up())
    assert silent.lookups == 8
    assert not silent.gate.is_set()


async def test_a_name_is_looked_up_while_others_get_no_answer(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [asyncio.create_task(look_up(f"{number}.slow.test", 80)) for number in range(16)]
    await eventually(lambda: silent.lookups == len(waiting))
    monkeypatch.undo()
    assert await look_up("127.0.0.1", 80) == ["127.0.0.1"]
    silent.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, socket.gaierror) for one in found)


async def test_a_command_says_that_a_name_was_not_resolved(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CONNECT_S", 0.05)
    async with open_session("http://slow.test", {}) as session:
        with pytest.raises(Transient, match=r"slow\.test:80: its name was not resolved within 0\.05 s"):
            async with request(session, "GET", "http://slow.test/a"):
                pass


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".test", "\udce4.test"])
async def test_an_impossible_name_has_no_address(name: str) -> None:
    with pytest.raises(socket.gaierror):
        await look_up(name, 80)
