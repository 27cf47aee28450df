"""What the purge of one member does to reads at the others."""

from __future__ import annotations

from tests.fleet.site import Site
from tests.scenarios.wire import pairs
from tests.waiting import time_passing


async def test_a_reader_that_comes_after_the_owners_purge_gets_new_bytes(site: Site) -> None:
    path, owner, other = site.path_of("a"), site.members["a"], site.members["b"]
    assert (await owner.put(path, b"old")).status == 201
    first = await owner.begin(f"{path}?offset=-1&live=sse")
    assert (await anext(pairs(first)))[0] == "old"
    async with time_passing(site.clock):
        for _ in range(2):
            assert (await other.get(f"{path}?offset=-1")).body == b"old"
        # The owner's record stays, because it has a reader.  Its bytes get another name.
        [stream] = owner.gateway.engine.store
        assert owner.gateway.engine.purge.drop_stream(stream)
        late = await other.begin(f"{path}?offset=-1&live=sse")
        events = pairs(late)
        assert (await anext(events))[0] == "old"
        assert (await owner.post(path, b"new")).status == 204
        assert (await anext(events))[0] == "new"
    # The new name lets the other member forget its bytes once, not at each answer.
    assert site.fleet("b").members[0].asked < 12
