"""Flights: readers, watchers, kept chunks, and every way to end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from multidict import CIMultiDict

from gateway.errors import UpstreamBroken, UpstreamUnreachable
from gateway.upstream.collapse import FetchEnd
from gateway.upstream.flight import (
    WINDOW_BYTES,
    Beyond,
    Flight,
    FlightReader,
    Head,
    NotShareable,
    OriginError,
    StreamHead,
)
from tests.waiting import pass_turns

HEAD = StreamHead("5", True, False)
KEEP = 8 * WINDOW_BYTES


async def taken(reader: FlightReader) -> bytes:
    return b"".join([chunk async for chunk in reader.chunks()])


@pytest.fixture
async def idle_task() -> AsyncIterator["asyncio.Task[None]"]:
    """Stands for the flight's task."""
    task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    yield task  # type: ignore[misc]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_every_reader_gets_the_whole_body_whenever_it_attached() -> None:
    flight = Flight("-1", KEEP)
    first = flight.attach()
    flight.announce(HEAD)
    flight.add_chunk(b"a")
    second = flight.attach()
    flight.add_chunk(b"b")
    flight.land()
    third = flight.attach()
    assert [await taken(reader) for reader in (first, second, third)] == [b"ab"] * 3
    assert flight.length == 2


async def test_readers_read_while_the_body_arrives() -> None:
    flight = Flight("-1", KEEP)
    chunks = flight.attach().chunks()
    flight.announce(HEAD)
    flight.add_chunk(b"a")
    assert await anext(chunks) == b"a"
    waiting = asyncio.ensure_future(anext(chunks))
    await pass_turns()
    assert not waiting.done()
    flight.add_chunk(b"b")
    assert await waiting == b"b"


async def test_a_failure_reaches_all_watchers_and_readers() -> None:
    flight = Flight("-1", KEEP)
    reading = asyncio.ensure_future(taken(flight.attach()))
    flight.watch()
    watching = asyncio.ensure_future(flight.until_over())
    await pass_turns()
    flight.announce(HEAD)
    flight.add_chunk(b"a")
    flight.fail(UpstreamBroken("early"))
    with pytest.raises(UpstreamBroken):
        await reading
    await watching
    assert flight.is_over


async def test_a_failure_before_the_head_is_the_head() -> None:
    flight = Flight("-1", KEEP)
    flight.attach()
    error = UpstreamUnreachable()
    flight.fail(error)
    assert flight.head is error


@pytest.mark.parametrize(
    ("head", "end"),
    [
        (OriginError(404, CIMultiDict(), b""), FetchEnd.REFUSED),
        (NotShareable("no-store"), FetchEnd.FOREIGN),
        (Beyond("9", up_to_date=True, is_closed=False), FetchEnd.LANDED),
        (UpstreamBroken(), FetchEnd.FAILED),
    ],
    ids=["refusal", "foreign", "beyond the tail", "error"],
)
async def test_any_head_but_a_stream_head_ends_the_flight(head: Head, end: FetchEnd) -> None:
    flight = Flight("-1", KEEP)
    flight.watch()
    flight.announce(head)
    assert flight.end is end
    assert flight.head is head


async def test_only_the_last_reader_to_leave_cancels_the_fetch(idle_task: "asyncio.Task[None]") -> None:
    flight = Flight("-1", KEEP)
    flight.on_unused = idle_task.cancel
    leader, follower = flight.attach(), flight.attach()
    flight.watch()
    leader.detach()
    leader.detach()
    flight.unwatch()
    await pass_turns()
    assert not idle_task.cancelled()
    assert flight.readers == 1
    follower.detach()
    await pass_turns()
    assert idle_task.cancelled()
    assert flight.end is FetchEnd.GIVEN_UP


async def test_leaving_a_flight_that_is_over_cancels_nothing(idle_task: "asyncio.Task[None]") -> None:
    flight = Flight("-1", KEEP)
    flight.on_unused = idle_task.cancel
    reader = flight.attach()
    flight.announce(HEAD)
    flight.land()
    reader.detach()
    await pass_turns()
    assert not idle_task.cancelled()


async def test_a_cancelled_reader_does_not_affect_the_others() -> None:
    flight = Flight("-1", KEEP)
    readings = [asyncio.ensure_future(taken(flight.attach())) for _ in range(3)]
    await pass_turns()
    readings[0].cancel()
    await pass_turns()
    flight.announce(HEAD)
    flight.add_chunk(b"a")
    flight.land()
    assert await asyncio.gather(*readings[1:]) == [b"a", b"a"]


async def test_the_fetch_pauses_while_the_fastest_reader_is_a_window_behind() -> None:
    flight = Flight("-1", KEEP)
    fast, slow = flight.attach(), flight.attach()
    flight.announce(HEAD)
    flight.add_chunk(b"x" * (WINDOW_BYTES - 1))
    await flight.until_wanted()
    flight.add_chunk(b"x")
    wanted = asyncio.ensure_future(flight.until_wanted())
    await pass_turns()
    assert not wanted.done()
    await anext(fast.chunks())
    await wanted
    assert slow.position == 0


async def test_a_watcher_lets_the_fetch_run_ahead_of_its_readers() -> None:
    flight = Flight("-1", KEEP)
    flight.attach()
    flight.announce(HEAD)
    flight.add_chunk(b"x" * WINDOW_BYTES)
    wanted = asyncio.ensure_future(flight.until_wanted())
    await pass_turns()
    assert not wanted.done()
    flight.watch()
    await wanted


async def test_a_fetch_without_readers_does_not_pause() -> None:
    flight = Flight("-1", KEEP)
    reader = flight.attach()
    flight.announce(HEAD)
    flight.add_chunk(b"x" * WINDOW_BYTES)
    reader.detach()
    await flight.until_wanted()


async def test_chunks_of_a_large_body_are_dropped_behind_the_slowest_reader() -> None:
    flight = Flight("-1", 2)
    first, second = flight.attach().chunks(), flight.attach().chunks()
    flight.announce(HEAD)
    for chunk in (b"a", b"b", b"c"):
        flight.add_chunk(chunk)
    assert not flight.is_kept
    assert [await anext(first) for _ in range(3)] == [b"a", b"b", b"c"]
    assert flight.base == 0
    assert [await anext(second) for _ in range(2)] == [b"a", b"b"]
    assert flight.base == 2
    assert flight.kept == [b"c"]
    flight.land()
    assert await anext(second) == b"c"
    assert flight.size == 3


async def test_a_watcher_learns_at_once_that_a_body_is_not_kept() -> None:
    flight = Flight("-1", 2)
    flight.watch()
    known = asyncio.ensure_future(flight.until_known())
    flight.announce(HEAD)
    flight.add_chunk(b"ab")
    await pass_turns()
    assert not known.done()
    flight.add_chunk(b"c")
    await known
    assert not flight.is_over


async def test_a_reader_too_far_behind_is_dropped_and_the_others_continue() -> None:
    flight = Flight("-1", 2)
    fast, slow = flight.attach(), flight.attach()
    chunks = fast.chunks()
    flight.announce(HEAD)
    piece = b"x" * (WINDOW_BYTES // 2)
    for _ in range(5):
        flight.add_chunk(piece)
        await anext(chunks)
    assert slow.is_dropped
    assert not fast.is_dropped
    with pytest.raises(UpstreamBroken):
        await taken(slow)
    flight.land()
    slow.detach()
    assert flight.readers == 1
    assert not flight.kept


async def test_the_only_reader_is_never_dropped_for_one_large_chunk() -> None:
    flight = Flight("-1", 1)
    reader = flight.attach()
    flight.announce(HEAD)
    flight.add_chunk(b"x" * WINDOW_BYTES)
    flight.add_chunk(b"y" * WINDOW_BYTES)
    flight.land()
    assert len(await taken(reader)) == 2 * WINDOW_BYTES


async def test_a_flight_that_dropped_chunks_takes_no_new_readers() -> None:
    flight = Flight("-1", 1)
    flight.announce(HEAD)
    flight.add_chunk(b"ab")
    flight.add_chunk(b"c")
    with pytest.raises(AssertionError):
        flight.attach()


async def test_the_length_is_known_early_only_when_the_chunks_are_the_body_itself() -> None:
    verbatim, unwrapped = Flight("-1", KEEP), Flight("-1", KEEP)
    verbatim.announce(HEAD, 5)
    unwrapped.announce(HEAD, 5, is_verbatim=False)
    assert (verbatim.length, unwrapped.length) == (5, None)
    assert (verbatim.expected, unwrapped.expected) == (5, 5)
    unwrapped.add_chunk(b"1,2")
    unwrapped.land()
    assert unwrapped.length == 3
