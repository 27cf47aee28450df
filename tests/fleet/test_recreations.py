"""Streams that another member has re-created, without this member hearing of it."""

from __future__ import annotations

from tests.fleet.site import Site


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
