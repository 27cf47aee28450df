"""Live requests at the origin while members disagree about the owner of a stream, and after they agree again.

In each test, c owns the stream, but member a believes that c is lost.  So a asks b, which knows better.  For a's sake b
has a live request at the origin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from gateway.upstream.origin_call import Handed
from tests.fleet.site import Site
from tests.scenarios.wire import Event, pairs
from tests.waiting import eventually, time_passing

Events = AsyncIterator[tuple[str, Event]]


class Dispute:
    """The stream, and what its readers cost the origin."""

    def __init__(self, site: Site) -> None:
        self.site = site
        owned = [path for path in (f"/s/{number}" for number in range(1_000)) if site.owner(path) == "c"]
        next(one for one in site.fleet("a").members.values() if one.name == "c").lose()
        self.path = next(path for path in owned if site.owner(path) == "b")

    @property
    def live(self) -> int:
        """How many live requests for the stream the origin has now."""
        return self.site.origin.origin.store.get(self.path, 0.0).live_readers

    async def until_live(self, number: int) -> None:
        await eventually(lambda: self.live == number, state=lambda: self.live)

    async def begin(self, name: str) -> Events:
        """Begin an SSE read at a member, and wait for what the stream has."""
        events = pairs(await self.site.members[name].begin(f"{self.path}?offset=-1&live=sse"))
        assert (await anext(events))[0] == '["old"]'
        return events

    async def settle(self) -> None:
        """End the dispute."""
        async with time_passing(self.site.clock):
            await eventually(lambda: self.site.owner(self.path) == "c")

    async def check(self, *readers: Events) -> None:
        """Check that readers get what is appended, once."""
        assert (await self.site.members["b"].post(self.path, b'["new"]', Content_Type="application/json")).status == 204
        async with time_passing(self.site.clock):
            for events in readers:
                while not (data := (await anext(events))[0]):
                    pass
                assert data == '["new"]'


@pytest.fixture
async def dispute(apart: Site) -> Dispute:
    await apart.start_all(live_linger_s=20)
    found = Dispute(apart)
    assert (await apart.members["b"].put(found.path, b'["old"]', Content_Type="application/json")).status == 201
    return found


async def test_a_reader_that_joins_those_of_another_member_costs_no_live_request_in_the_end(dispute: Dispute) -> None:
    first = await dispute.begin("a")
    await dispute.until_live(1)
    # The live request at b moves to c, because b has a reader of its own now.
    second = await dispute.begin("b")
    third = await dispute.begin("c")
    await dispute.settle()
    await dispute.check(first, second, third)
    await dispute.until_live(1)


@pytest.mark.parametrize("joins", ["before", "after"])
async def test_a_reader_of_another_worker_that_joins_those_of_another_member_costs_no_live_request_in_the_end(
    joins: str, dispute: Dispute, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await dispute.begin("a")
    await dispute.until_live(1)
    if joins == "after":
        await dispute.settle()
        async with time_passing(dispute.site.clock):
            await dispute.until_live(2)
    with monkeypatch.context() as patch:
        # A worker of b that does not own the stream hands its clients' reads on to this one.
        patch.setattr("gateway.server.interpreting.Handed", SimpleNamespace(NO=Handed.BY_WORKER))
        second = await dispute.begin("b")
    third = await dispute.begin("c")
    if joins == "before":
        await dispute.settle()
    await dispute.check(first, second, third)
    await dispute.until_live(1)


async def test_a_reader_that_comes_after_those_of_another_member_costs_no_live_request(dispute: Dispute) -> None:
    first = await dispute.begin("a")
    await dispute.until_live(1)
    await dispute.settle()
    # Member b still has its live request, because its topic lingers.
    async with time_passing(dispute.site.clock):
        await dispute.until_live(2)
    second = await dispute.begin("b")
    await dispute.check(first, second)
    await dispute.until_live(1)


async def test_a_stream_that_is_followed_for_frequent_reads_costs_no_live_request_in_the_end(dispute: Dispute) -> None:
    first = await dispute.begin("a")
    reader, b = await dispute.begin("c"), dispute.site.members["b"]
    await dispute.until_live(2)
    engine = b.gateway.engine
    [topic] = engine.live.topics()
    engine.live.heat(topic, 1.0)
    await dispute.settle()
    for _ in range(25):
        # Clients of b read often enough for a stream that is followed for frequent reads.
        dispute.site.clock.advance(1.0)
        assert (await b.get(f"{dispute.path}?offset=-1")).body == b'["old"]'
    await dispute.until_live(1)
    await dispute.check(first, reader)


async def test_a_stream_of_a_member_with_readers_of_its_own_moves_to_a_member_that_returns(apart: Site) -> None:
    """Although its live request was begun for another member's reader."""
    await apart.start_all(live_linger_s=20, sse_lifetime_s=3_600)
    dispute = Dispute(apart)
    # There is no dispute: b believes, too, that c is lost.
    next(one for one in apart.fleet("b").members.values() if one.name == "c").lose()
    assert (await apart.members["b"].put(dispute.path, b'["old"]', Content_Type="application/json")).status == 201
    first = await dispute.begin("a")
    second = await dispute.begin("b")
    await dispute.until_live(1)
    await dispute.settle()
    third = await dispute.begin("c")
    began = apart.clock.now()
    async with time_passing(apart.clock):
        await eventually(lambda: apart.clock.now() > began + 3.0)
        await eventually(lambda: dispute.live == 1 or apart.clock.now() > began + 40.0)
    assert dispute.live == 1
    await dispute.check(first, second, third)
