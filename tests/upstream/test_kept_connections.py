"""How long connections to origins are kept, and what becomes of them: rest, hints, age, addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import UpstreamUnreachable
from gateway.upstream import resolver
from gateway.upstream.client import Exchanges
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.slots import SlotLimits
from tests.upstream.http2_peer import good, http2_origin
from tests.upstream.test_exchange import GOOD, Origin, Peer, always_good, body_of, origin, send
from tests.waiting import eventually

EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"


@pytest.fixture
async def exchanges() -> AsyncIterator[Exchanges]:
    made = Exchanges(SlotLimits(16))
    yield made
    await eventually(lambda: made.open_connections == 0)
    await made.close()


async def ask(exchanges: Exchanges, url: str, method: str = "GET", **more: Any) -> bytes:
    return await body_of(await send(exchanges, url, method, **more))


# -- the origin's hint


@pytest.mark.parametrize(
    ("hint", "kept_s"),
    [
        (None, 15.0),
        ("timeout=5", 4.0),
        ("timeout=5, max=1000", 4.0),
        ('max=7 , TIMEOUT = "5"', 4.0),
        ("timeout=1", 0.5),
        ("timeout=0", 0.0),
        ("timeout=3600", 15.0),
        ("timeout=-1", 15.0),
        ("timeout=5x", 15.0),
        ("xtimeout=5", 15.0),
        ("", 15.0),
        ("timeout=5," + " " * 300, 15.0),
    ],
)
def test_an_idle_connection_is_kept_for_less_than_the_origin_says(hint: str | None, kept_s: float) -> None:
    assert KeepAlive(idle_s=15.0).kept_s(hint) == kept_s


def test_ages_are_spread_over_a_fifth() -> None:
    ages = [KeepAlive(age_s=100.0).most_age_s(number) for number in range(1, 51)]
    assert all(80.0 <= age <= 100.0 for age in ages)
    assert all(abs(one - other) > 0.1 for index, one in enumerate(ages) for other in ages[:index])
    assert KeepAlive(age_s=0.0).most_age_s(7) == 0.0


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_connection_is_closed_before_the_origin_closes_it(exchanges: Exchanges, method: str) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.says(b"HTTP/1.1 204 N\r\nKeep-Alive: timeout=1\r\n\r\n")

    async with origin(script) as running:
        await ask(exchanges, running.url, method)
        began = asyncio.get_running_loop().time()
        await eventually(lambda: exchanges.connections()["shared"].idle == 0)
        assert asyncio.get_running_loop().time() - began < 15.0


async def test_a_connection_that_the_origin_does_not_keep_is_not_kept(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.says(b"HTTP/1.1 204 N\r\nKeep-Alive: timeout=0\r\n\r\n")

    async with origin(script) as running:
        for number in range(1, 4):
            await ask(exchanges, running.url, "POST")
            assert (running.connections, exchanges.connections()["shared"].idle) == (number, 0)


# -- rest


async def test_a_second_reply_to_one_request_does_not_answer_the_next(exchanges: Exchanges) -> None:
    """It comes after the first one and before the connection has rested."""
    second = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(GOOD)
        if peer.number == 1:
            await second.wait()
            await peer.says(EVIL)
        await peer.asked()

    exchanges.keep(KeepAlive(rest_s=60.0, idle_s=600.0))
    async with origin(script) as running:
        for _ in range(3):
            assert await ask(exchanges, running.url) == b"good"
        assert (running.connections, exchanges.connections()["shared"].idle) == (3, 3)
        second.set()
        await eventually(lambda: exchanges.connections()["shared"].idle == 2)
        assert await ask(exchanges, running.url) == b"good"


async def test_connections_that_rest_are_used_rather_than_replaced_at_the_bound() -> None:
    exchanges = Exchanges(SlotLimits(3))
    exchanges.keep(KeepAlive(rest_s=60.0, idle_s=600.0))
    async with origin(always_good) as running:
        for _ in range(20):
            assert await ask(exchanges, running.url) == b"good"
        assert running.connections == 3
        await exchanges.close()


async def test_a_connection_that_has_rested_is_used_again(exchanges: Exchanges) -> None:
    exchanges.keep(KeepAlive(rest_s=0.02))
    loop = asyncio.get_running_loop()
    async with origin(always_good) as running:
        for _ in range(5):
            assert await ask(exchanges, running.url) == b"good"
            rested_at = loop.time() + 0.02
            await eventually(lambda at=rested_at: loop.time() >= at)
        assert running.connections == 1


async def test_bytes_that_arrived_in_the_same_turn_as_the_request_close_the_connection(exchanges: Exchanges) -> None:
    """The event loop has not reported them yet when the connection is chosen."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    peers: list[Peer] = []

    async def script(peer: Peer) -> None:
        peers.append(peer)
        await peer.asked()
        await peer.says(GOOD)
        await peer.asked()
        await peer.says(GOOD)

    async with origin(script) as running:
        assert await ask(exchanges, running.url) == b"good"
        asking: list[asyncio.Task[bytes]] = []

        def say_and_ask() -> None:
            # In one turn of the loop: the gateway reads these bytes in the next one.
            peers[0].writer.write(EVIL)
            asking.append(asyncio.ensure_future(ask(exchanges, running.url)))
            arrived.set()

        loop.call_soon(say_and_ask)
        await arrived.wait()
        assert await asking[0] == b"good"
        assert running.connections == 2


async def test_a_body_behind_the_reply_to_a_head_does_not_answer_a_read(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        head = await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n")
        if head.startswith(b"HEAD"):
            # The late body looks like a reply.
            await peer.asked()
            await peer.says(EVIL)
        else:
            await peer.says(b"g" * 44)
            await peer.asked()

    async with origin(script) as running:
        await ask(exchanges, running.url, "HEAD")
        assert await ask(exchanges, running.url) == b"g" * 44
        assert running.connections == 2


# -- age


@pytest.mark.parametrize("is_http2", [False, True], ids=["http/1.1", "h2"])
async def test_a_connection_is_retired_at_its_age(exchanges: Exchanges, is_http2: bool) -> None:
    exchanges.keep(KeepAlive(age_s=0.01))
    async with http2_origin(good) if is_http2 else origin(always_good) as running:
        if is_http2:
            exchanges.configure_http2([running.url])

        async def is_replaced() -> bool:
            assert await ask(exchanges, running.url) == b"good"
            return running.connections == 3

        await eventually(is_replaced)
        shared = exchanges.connections()["shared"]
        assert shared.busy + shared.idle == 1


# -- addresses


class Moving:
    """An origin whose name leads to one of two servers."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.lookups = 0

    async def look_up(self, host: str, port: int) -> list[str]:
        self.lookups += 1
        return [self.address]


async def at_both(running: Origin) -> asyncio.Server:
    """Let the origin listen at a second address, at the same port."""
    return await asyncio.start_server(running.serve, "127.0.0.2", running.port)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_http2", [False, True], ids=["http/1.1", "h2"])
async def test_kept_connections_leave_an_address_that_the_name_no_longer_leads_to(
    monkeypatch: pytest.MonkeyPatch, method: str, is_http2: bool
) -> None:
    name = Moving()
    exchanges = Exchanges(SlotLimits(16), look_up=name.look_up)
    monkeypatch.setattr(resolver, "TTL_S", 0.0)
    async with http2_origin(good) if is_http2 else origin(always_good) as running:
        moved = await at_both(running)
        url = f"http://origin.test:{running.port}"
        if is_http2:
            exchanges.configure_http2([url])
        for _ in range(5):
            assert await ask(exchanges, url, method) == b"good"
        assert running.connections == 1, "the name leads to the same server"
        name.address = "127.0.0.2"

        async def has_moved() -> bool:
            assert await ask(exchanges, url, method) == b"good"
            return running.connections == 2

        await eventually(has_moved)
        for _ in range(5):
            assert await ask(exchanges, url, method) == b"good"
        assert running.connections == 2
        moved.close()
        await exchanges.close()


async def test_a_name_is_resolved_again_once_in_its_time_however_many_requests_there_are() -> None:
    name = Moving()
    exchanges = Exchanges(SlotLimits(16), look_up=name.look_up)
    async with origin(always_good) as running:
        for _ in range(20):
            await ask(exchanges, f"http://origin.test:{running.port}")
        assert (name.lookups, running.connections) == (1, 1)
        await exchanges.close()


async def test_renewing_resolves_names_again_and_uses_no_connection_made_before(exchanges: Exchanges) -> None:
    name = Moving()
    exchanges = Exchanges(SlotLimits(16), look_up=name.look_up)
    async with origin(always_good) as running:
        url = f"http://origin.test:{running.port}"
        moved = await at_both(running)
        await ask(exchanges, url)
        name.address = "127.0.0.2"
        exchanges.renew()
        await ask(exchanges, url)
        assert (name.lookups, running.connections) == (2, 2)
        moved.close()
        await exchanges.close()


async def test_an_address_that_refuses_is_no_reason_to_use_an_old_one(exchanges: Exchanges) -> None:
    name = Moving()
    exchanges = Exchanges(SlotLimits(16), look_up=name.look_up)
    async with origin(always_good) as running:
        url = f"http://origin.test:{running.port}"
        await ask(exchanges, url)
        name.address = "127.0.0.9"
        exchanges.renew()
        with pytest.raises(UpstreamUnreachable):
            await ask(exchanges, url)
        await exchanges.close()
