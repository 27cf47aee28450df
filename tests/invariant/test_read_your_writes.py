"""A write that was acknowledged through the gateway is in every read that starts afterwards.

The same URL is read before and after each write, because a cache errs by remembering.  `World` judges every answer;
these tests repeat reads, and hold reads and writes in flight while others overtake them.
"""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.origin.requests import Kind
from tests.effort import examples
from tests.invariant.conftest import Begin, followed
from tests.invariant.world import PollReader, Reader, SseReader, World, going_on, ignoring_result

ROUNDS = examples(25, 100)
"""For each content type and place; nine of them make hundreds of reads that each follow a write."""


async def read_to_the_tail(world: World, offset: str | None) -> str:
    """Read as a client does, answer by answer, until one is up to date."""
    for _ in range(1_000):
        answer = await world.catch_up(offset)
        assert answer.status == 200
        assert answer.end is not None
        if answer.is_up_to_date:
            return answer.end
        offset = answer.end
    raise AssertionError("a reader never gets to the tail")


async def keep_reading(world: World) -> None:
    while True:
        await world.catch_up(None)
        await world.catch_up(world.tokens[-1])


@pytest.mark.parametrize(
    ("content_type", "tail"),
    [
        ("application/json", "followed"),
        ("application/json", "asked"),
        ("text/plain", "followed"),
        ("application/octet-stream", "asked"),
    ],
)
@pytest.mark.parametrize("place", ["start", "tail", "closed"])
def test_the_same_url_shows_every_acknowledged_write(begin: Begin, content_type: str, tail: str, place: str) -> None:
    world = begin(content_type, max_chunk_bytes=1 << 20, tail=tail)

    async def life(length: int) -> None:
        await world.create(messages=1)
        for kind in (SseReader, PollReader):
            kind(world, "-1")
        alive = world.log.alive
        assert alive is not None
        for _ in range(length):
            offset = alive.tail.token if place == "tail" else "-1"
            before = await world.catch_up(offset)
            await world.append(1, is_closing=place == "closed")
            after = await world.catch_up(offset)
            if place == "tail":
                assert (before.end, after.end) == (offset, alive.tail.token)
            assert await read_to_the_tail(world, offset) == alive.tail.token
            assert after.is_closed == (place == "closed")
        await world.delete()

    reading = world.spawn(keep_reading(world))
    length = 1 if place == "closed" else 20
    for _ in range(ROUNDS // length):
        world.run(life(length))
    reading.cancel()


@pytest.mark.parametrize("kind", ["catchup", "head"])
@pytest.mark.parametrize("offset", ["-1", "tail", "now"])
@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("tail", ["followed", "asked"])
def test_a_read_in_flight_across_a_write_answers_no_later_reader(
    begin: Begin, kind: str, offset: str, tail: str, is_followed: bool
) -> None:
    """The origin has computed its answer but not sent it; by then its tail is old."""
    world = begin(tail=tail)
    world.run(world.create(messages=1))
    assert world.log.alive is not None
    if is_followed:
        SseReader(world, "-1")
        world.run(world.reach_quiet())
    offset = world.log.alive.tail.token if offset == "tail" else offset
    late = world.origin.faults.hold(kind=kind, when="reply", times=1)
    world.holds.append(late)

    def read() -> "asyncio.Task[None]":
        return world.spawn(ignoring_result(world.now() if offset == "now" else world.catch_up(offset)))

    early = read()
    world.run(going_on())
    world.run(world.append(1))
    after = read()
    world.run(going_on())
    late.release()
    world.run(asyncio.wait({early, after}))
    world.run(world.reach_quiet())


@pytest.mark.parametrize("reader", [SseReader, PollReader])
def test_a_follower_that_missed_a_write_confirms_no_tail(begin: Begin, reader: type[Reader]) -> None:
    """The one live request stalls just after it confirmed the tail."""
    first, _ = followed(begin)
    world, old_tail = followed(begin, stall_after=first.origin.counters.body_bytes[Kind.SSE])
    world.run(world.append(1))
    late = reader(world, old_tail)
    world.run(world.rest(seconds=6.0))  # longer than a long-poll: its reader is answered while nothing arrives
    world.run(world.reach_quiet())
    assert world.log.alive is not None
    assert late.at == world.log.alive.tail.token


@dataclass(frozen=True)
class Step:
    """Begin a read or a write, possibly held; release a held one; or check that everything is there."""

    what: str
    held: str | None = None
    pick: int = 0
    spins: int = 20


STEPS = st.builds(
    Step,
    st.sampled_from(["write", "write", "read start", "read tail", "poll", "follow", "metadata", "release", "look"]),
    st.sampled_from([None, "request", "reply"]),
    st.integers(0, 7),
    st.sampled_from([1, 3, 20]),
)
KINDS = {
    "write": "append",
    "read start": "catchup",
    "read tail": "catchup",
    "poll": "longpoll",
    "follow": "sse",
    "metadata": "head",
}


async def look(world: World) -> None:
    """Read now, after everything that has been acknowledged."""
    assert world.log.alive is not None
    acked = world.log.alive.acked
    answer = await world.catch_up(acked.token)
    assert answer.end is not None
    assert answer.end >= acked.token


async def take(world: World, step: Step) -> None:
    if step.held is not None and step.what in KINDS and len(world.holds) < 4:
        world.holds.append(world.origin.faults.hold(kind=KINDS[step.what], when=step.held, times=1))
    alive = world.log.alive
    assert alive is not None
    match step.what:
        case "write":
            world.spawn(ignoring_result(world.append(1)))
        case "read start":
            world.spawn(ignoring_result(world.catch_up("-1")))
        case "read tail":
            world.spawn(ignoring_result(world.catch_up(alive.tail.token)))
        case "poll":
            world.spawn(ignoring_result(world.long_poll(alive.acked.token)))
        case "follow":
            SseReader(world, "-1")
        case "metadata":
            world.spawn(ignoring_result(world.head()))
        case "release":
            if world.holds:
                world.holds.pop(step.pick % len(world.holds)).release()
        case "look":
            world.spawn(look(world))
    await going_on(step.spins)


@settings(max_examples=examples(20, 600))
@given(
    st.lists(STEPS, min_size=3, max_size=14),
    st.sampled_from(["application/json", "text/plain"]),
    st.booleans(),
    st.booleans(),
)
def test_no_interleaving_of_reads_and_writes_in_flight_hides_a_write(
    steps: list[Step], content_type: str, is_small: bool, is_asked: bool
) -> None:
    tail = "asked" if is_asked else "followed"
    world = World(content_type, cache_bytes=2_000 if is_small else 1 << 20, tail=tail)
    try:
        world.run(world.create(messages=1))
        for step in steps:
            world.run(take(world, step))
        world.run(world.reach_quiet())
        assert world.log.alive is not None
        assert world.run(read_to_the_tail(world, "-1")) == world.log.alive.tail.token
    finally:
        world.end()
