"""Courses of events that once went wrong, each as short as it can be; `World` judges every answer."""

import pytest

from tests.invariant.conftest import Begin
from tests.invariant.world import PollReader, Reader, SseReader


@pytest.mark.parametrize("reader", [PollReader, SseReader])
def test_a_stream_re_created_at_the_origin_with_other_offsets_is_read_live_from_its_start(
    begin: Begin, reader: type[Reader]
) -> None:
    """The tail that is known is no offset of the new stream, and it is not the client who asked for it."""
    world = begin(trust_s=0.0)
    world.run(world.create(messages=1))
    world.run(world.delete(is_direct=True))
    world.run(world.create(messages=2, is_direct=True))
    follower = reader(world, "-1")
    world.run(world.settle())
    assert follower.at != "-1"


def test_a_cache_of_nothing_streams_all_the_same(begin: Begin) -> None:
    world = begin(cache_bytes=0, max_chunk_bytes=1 << 22)
    world.run(world.create(messages=100_000))
    assert world.run(world.catch_up(None)).is_up_to_date


def test_the_cursor_of_an_sse_connection_never_goes_back(begin: Begin) -> None:
    """Also for a client whose own is so high that the next one is drawn at random."""
    world = begin("application/json")
    world.run(world.create(messages=1))
    reader = SseReader(world, "-1")
    reader.cursor = "99999999"
    for _ in range(20):
        world.run(world.append(1))
        world.run(world.settle())
    assert int(reader.cursor) > 99_999_999
