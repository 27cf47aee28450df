"""The arrival of a body that is read on for others, who wait for its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.engine.flight_bodies import receive
from gateway.errors import UpstreamCongested
from gateway.http.reply_lines import Head
from gateway.tape.arriving_charge import ArrivingCharge
from gateway.upstream.flight import WINDOW_BYTES, Flight, StreamHead
from gateway.upstream.incoming import Inflow
from gateway.upstream.reply import Reply
from tests.tape.store_machine import key, new_store

BUDGET = 8 << 20
CHUNK = 1 << 16


class Stalling:
    """A reply that always has more; `held` is set while it is not read."""

    head = Head(200, "OK", CIMultiDictProxy(CIMultiDict()), None, is_delimited=True)
    has_arrived = False

    def __init__(self) -> None:
        self.on_reclaim: Callable[[], object] = lambda: None
        self.taken = 0
        self.held = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            self.taken += CHUNK
            yield b"x" * CHUNK

    async def hold(self, until: Awaitable[None]) -> None:
        self.held.set()
        await until
        self.held.clear()


@pytest.mark.parametrize("room", [0, CHUNK // 2, CHUNK, 4 * CHUNK + 1])
async def test_a_body_read_on_for_others_leaves_as_soon_as_the_cache_has_no_room(room: int) -> None:
    store, _ = new_store(BUDGET)
    others = ArrivingCharge(store, store.open(key("other"), 0.0))
    assert others.grow(BUDGET // 2 - WINDOW_BYTES - room)
    flight, reply = Flight("-1", BUDGET), Stalling()
    reader = flight.attach()
    receiving: asyncio.Task[Any] = asyncio.create_task(
        receive(
            store.open(key("s"), 0.0),
            flight,
            StreamHead("0009", False, False),
            cast("Reply", reply),
            store,
            Inflow(),
            lambda size: None,
        )
    )
    await reply.held.wait()
    assert flight.charged_bytes == WINDOW_BYTES
    reply.on_reclaim()
    with pytest.raises(UpstreamCongested):
        await asyncio.wait_for(receiving, 10)
    # The chunk that did not fit is the last.
    assert reply.taken <= WINDOW_BYTES + room + CHUNK
    assert store.lent == others.size
    flight.detach(reader)
