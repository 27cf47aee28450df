"""Streams that another member has re-created, without this member hearing of it."""

from __future__ import annotations

import asyncio

from gateway.origin.faults import When
from tests.fleet.site import Site
from tests.waiting import BOUND_S, eventually, time_passing


async def test_an_append_to_a_shorter_later_stream_is_in_the_next_read_through_its_member(apart: Site) -> None:
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("a")
    writer, other = apart.members["b"], apart.members["c"]
    assert (await writer.put(path, b"the first life")).status == 201
    for _ in range(3):
        assert (await writer.get(f"{path}?offset=-1")).body == b"the first life"
    assert (await other.send("DELETE", path)).status == 204
    assert (await other.put(path, b"2")).status == 201
    # The append ends before the tail that the member knows.
    assert (await writer.post(path, b"nd")).status == 204
    assert (await writer.get(f"{path}?offset=-1")).body == b"2nd"


async def test_an_append_that_ends_at_the_tail_of_an_earlier_stream_is_in_the_next_read(apart: Site) -> None:
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("a")
    writer, other = apart.members["b"], apart.members["c"]
    assert (await writer.put(path, b"1st")).status == 201
    assert (await writer.post(path, b"abc")).status == 204
    for _ in range(3):
        assert (await writer.get(f"{path}?offset=-1")).body == b"1stabc"
    assert (await other.send("DELETE", path)).status == 204
    assert (await other.put(path, b"2nd")).status == 201
    assert (await writer.post(path, b"def")).status == 204
    assert (await writer.get(f"{path}?offset=-1")).body == b"2nddef"


async def test_a_long_poll_during_a_re_creation_joins_no_bytes_of_the_two_streams(apart: Site) -> None:
    """The origin does not end the live request of the deleted stream, and the writer has other credentials than the
    readers.  So only the PUT shows the owner that the stream has ended."""
    await apart.start_all(retry_attempts=0, live_linger_s=5)
    path, faults = apart.path_of("b"), apart.origin.origin.faults
    reader, owner = apart.members["a"], apart.members["b"]
    await owner.put(path, b"x")
    first = await reader.get(f"{path}?offset=-1")
    gate = faults.hold(kind="longpoll", when=When.REPLY, times=1)
    polling = asyncio.create_task(reader.get(f"{path}?offset={first.next_offset}&live=long-poll"))
    async with time_passing(apart.clock, 0.01):
        await eventually(lambda: apart.live_requests == 1 and "1 readers" in repr(owner.gateway.engine.live))
        assert (await owner.send_to(apart.origin.url, "DELETE", path)).status == 204
        writer = {"Content-Type": "text/plain", "Authorization": "Bearer w"}
        assert (await owner.send("PUT", path, writer, b"z")).status == 201
        assert (await owner.send("POST", path, writer, b"w")).status == 204
        await asyncio.wait_for(polling, BOUND_S)
        assert (await reader.get(f"{path}?offset=-1")).body == b"zw"
    gate.release()
