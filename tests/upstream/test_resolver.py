"""Name resolution: lookups are cached and shared, and failed addresses are tried last."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.upstream.resolver import MOST_LOOKUPS, RETRY_S, STALE_S, TTL_S, Resolver
from tests.waiting import pass_turns


class Names:
    """A name server: its answers, and the lookups it received."""

    def __init__(self) -> None:
        self.answer: list[str] | OSError = ["192.0.2.1", "192.0.2.2", "192.0.2.1"]
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.clock = ManualClock()
        self.resolved: list[list[str]] = []
        self.resolver = Resolver(Tasks(), self.clock.now, self.look_up, lambda host, port, at: self.resolved.append(at))

    async def look_up(self, host: str, port: int) -> list[str]:
        self.asked += 1
        await self.gate.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    async def addresses(self) -> list[str]:
        return await self.resolver.addresses("origin.test", 80)


async def test_connections_rotate_over_the_addresses_of_a_name() -> None:
    names = Names()
    assert [(await names.addresses())[0] for _ in range(4)] == ["192.0.2.1", "192.0.2.2"] * 2
    assert sorted(await names.addresses()) == ["192.0.2.1", "192.0.2.2"]
    assert names.asked == 1


async def test_a_name_is_resolved_again_after_its_time() -> None:
    names = Names()
    await names.addresses()
    names.answer = ["192.0.2.3"]
    names.clock.advance(TTL_S - 0.1)
    assert "192.0.2.3" not in await names.addresses()
    names.clock.advance(0.1)
    assert await names.addresses() == ["192.0.2.3"]


async def test_a_failed_address_is_tried_last_until_the_next_lookup() -> None:
    names = Names()
    await names.addresses()
    names.resolver.avoid_address("origin.test", 80, "192.0.2.1")
    for _ in range(3):
        assert await names.addresses() == ["192.0.2.2", "192.0.2.1"]
    names.resolver.avoid_address("origin.test", 80, "192.0.2.2")
    assert await names.addresses() == ["192.0.2.1", "192.0.2.2"]
    names.clock.advance(TTL_S)
    assert {(await names.addresses())[0] for _ in range(2)} == {"192.0.2.1", "192.0.2.2"}


async def test_a_name_in_use_is_resolved_again_in_the_background() -> None:
    names = Names()
    names.resolver.refresh("origin.test", 80)
    assert names.asked == 0, "no request has needed it yet"
    await names.addresses()
    names.answer = ["192.0.2.3"]
    for _ in range(3):
        names.resolver.refresh("origin.test", 80)
    assert names.asked == 1
    names.clock.advance(TTL_S)
    for _ in range(3):
        names.resolver.refresh("origin.test", 80)
    await pass_turns()
    assert (names.asked, names.resolved) == (2, [["192.0.2.1", "192.0.2.2"], ["192.0.2.3"]])


async def test_the_last_addresses_are_used_for_a_while_when_lookups_fail() -> None:
    names = Names()
    await names.addresses()
    names.answer = socket.gaierror(socket.EAI_AGAIN, "no name server")
    names.clock.advance(TTL_S)
    assert sorted(await names.addresses()) == ["192.0.2.1", "192.0.2.2"]
    await names.addresses()
    assert names.asked == 2, "a failed lookup is not repeated at once"
    names.clock.advance(RETRY_S)
    await names.addresses()
    assert names.asked == 3
    names.clock.advance(STALE_S)
    with pytest.raises(socket.gaierror):
        await names.addresses()


async def test_forgotten_names_are_resolved_again() -> None:
    names = Names()
    await names.addresses()
    names.answer = ["192.0.2.3"]
    names.resolver.forget_addresses()
    assert await names.addresses() == ["192.0.2.3"]


async def test_concurrent_lookups_are_shared_and_survive_a_cancelled_waiter() -> None:
    names = Names()
    names.gate.clear()
    asking = [asyncio.create_task(names.addresses()) for _ in range(3)]
    await pass_turns(1)
    asking[0].cancel()
    await pass_turns(1)
    names.gate.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [sorted(one) for one in found[1:] if isinstance(one, list)] == [["192.0.2.1", "192.0.2.2"]] * 2
    assert names.asked == 1


async def test_only_so_many_names_are_looked_up_at_once() -> None:
    names = Names()
    names.gate.clear()
    asking = [asyncio.create_task(names.resolver.addresses(f"{number}.test", 80)) for number in range(40)]
    await pass_turns(3)
    assert names.asked == MOST_LOOKUPS
    names.gate.set()
    assert len(await asyncio.gather(*asking)) == names.asked == 40


async def test_a_failed_lookup_is_not_cached() -> None:
    names = Names()
    answers: list[list[str] | OSError] = [socket.gaierror(socket.EAI_NONAME, "no such name"), []]
    for answer in answers:
        names.answer = answer
        with pytest.raises(socket.gaierror):
            await names.addresses()
    names.answer = ["192.0.2.1"]
    assert await names.addresses() == ["192.0.2.1"]
    assert names.asked == 3


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
async def test_an_address_needs_no_resolving(address: str) -> None:
    names = Names()
    assert await names.resolver.addresses(address, 80) == [address]
    assert names.asked == 0
