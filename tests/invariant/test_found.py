"""Sequences of events that once went wrong, each as short as possible; `World` judges every answer."""

import asyncio

import pytest

from tests.invariant.conftest import Begin, followed
from tests.invariant.world import PollReader, Reader, SseReader, ignoring_result


@pytest.mark.parametrize("reader", [PollReader, SseReader])
def test_a_stream_re_created_at_the_origin_with_other_offsets_is_read_live_from_its_start(
    begin: Begin, reader: type[Reader]
) -> None:
    """The known tail is not an offset of the new stream, and the client did not ask for it."""
    world = begin(trust_s=0.0)
    world.run(world.create(messages=1))
    world.run(world.delete(is_direct=True))
    world.run(world.create(messages=2, is_direct=True))
    follower = reader(world, "-1")
    world.run(world.reach_quiet())
    assert follower.at != "-1"


def test_an_empty_cache_still_streams(begin: Begin) -> None:
    world = begin(cache_bytes=0, max_chunk_bytes=1 << 22)
    world.run(world.create(messages=100_000))
    assert world.run(world.catch_up(None)).is_up_to_date


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0])
def test_the_cursor_of_an_sse_connection_never_goes_back(begin: Begin, cache_bytes: int) -> None:
    """Also for a client whose own cursor is so high that the next is drawn at random, by the gateway or the origin."""
    world = begin("application/json", cache_bytes=cache_bytes)
    world.run(world.create(messages=1))
    reader = SseReader(world, "-1")
    reader.cursor = "99999999"
    for _ in range(20):
        world.run(world.append(1))
        world.run(world.reach_quiet())
    assert int(reader.cursor) > 99_999_999


@pytest.mark.parametrize("is_closing", [True, False])
def test_a_late_answer_to_a_write_does_not_change_the_stream_created_since(begin: Begin, is_closing: bool) -> None:
    """Its offset may exist in the new stream as well, which is neither closed nor at its tail there."""
    world = begin("application/json", is_nameless=True)
    world.run(world.create(messages=1))
    late = world.origin.faults.hold(kind="append", when="reply", times=1)
    world.holds.append(late)
    writing = world.spawn(ignoring_result(world.append(1, is_closing=is_closing)))
    world.run(late.waiting(1))
    world.run(world.delete())
    world.run(world.create(messages=1))
    reader = SseReader(world, "-1")
    world.run(world.until(lambda: reader.has_arrived))
    late.release()
    world.run(asyncio.wait_for(writing, 5))
    world.run(world.append(1))
    assert world.run(world.catch_up(None)).is_up_to_date
    world.run(world.reach_quiet())
    assert reader.alive is world.log.alive
    assert reader.task is not None
    assert not reader.task.done()


def test_a_read_in_flight_across_delete_and_create_is_not_stored_for_the_new_stream(begin: Begin) -> None:
    world = begin(is_nameless=True, max_chunk_bytes=20)
    world.run(world.create(messages=2))
    held = world.origin.faults.hold(kind="catchup", when="reply", times=1)
    world.holds.append(held)
    reading = world.spawn(ignoring_result(world.catch_up(None)))
    world.run(held.waiting(1))
    world.run(world.delete())
    world.run(world.create(messages=2))
    held.release()
    world.run(asyncio.wait_for(reading, 5))
    offset: str | None = None
    while not (answer := world.run(world.catch_up(offset))).is_up_to_date:
        offset = answer.end


@pytest.mark.parametrize("kind", ["delete", "create"])
def test_a_late_answer_to_delete_or_create_does_not_end_readers_of_the_new_stream(begin: Begin, kind: str) -> None:
    world = begin()
    world.run(world.create(messages=1))
    if kind == "create":
        world.run(world.delete())
    late = world.origin.faults.hold(kind=kind, when="reply", times=1)
    world.holds.append(late)
    writing = world.spawn(ignoring_result(world.delete() if kind == "delete" else world.create(messages=1)))
    world.run(late.waiting(1))
    if kind == "create":
        world.run(world.delete())
    world.run(world.create(messages=1))
    reader = PollReader(world, "-1")
    world.run(world.until(lambda: reader.has_arrived))
    late.release()
    world.run(asyncio.wait_for(writing, 5))
    world.run(world.append(1))
    world.run(world.reach_quiet())
    assert reader.task is not None
    assert not reader.task.done()


def test_a_long_poll_gets_bytes_that_are_evicted_during_its_tail_probe(begin: Begin) -> None:
    world = begin()
    world.run(world.create(messages=3))
    world.run(world.catch_up(None))
    faults = world.origin.faults
    world.holds += [unconfirmed := faults.hold(kind="sse"), look := faults.hold(kind="catchup")]
    polling = world.spawn(ignoring_result(world.long_poll("-1")))
    world.run(look.waiting(1))
    store = world.gateway.engine.store
    for stream in store:
        store.forget_bytes(stream)
    look.release()
    world.run(asyncio.wait_for(polling, 5))
    assert not unconfirmed.gate.is_open


def test_a_late_404_to_a_writer_does_not_end_readers_of_the_new_stream(begin: Begin) -> None:
    world = begin()
    world.run(world.create(messages=1))
    world.run(world.delete())
    late = world.origin.faults.hold(kind="delete", when="reply", times=1)
    world.holds.append(late)
    deleting = world.spawn(ignoring_result(world.delete()))
    world.run(late.waiting(1))
    world.run(world.create(messages=1, is_direct=True))
    reader = PollReader(world, "-1")
    world.run(world.until(lambda: reader.has_arrived))
    late.release()
    world.run(asyncio.wait_for(deleting, 5))
    world.run(world.append(1))
    world.run(world.reach_quiet())
    assert reader.task is not None
    assert not reader.task.done()


@pytest.mark.parametrize("how", ["length", "chunked", "reset"])
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_a_large_body_truncated_by_the_origin_never_ends_cleanly(begin: Begin, content_type: str, how: str) -> None:
    """Too large to be buffered: its head has been sent, with the offset after bytes that never arrive."""
    world = begin(content_type, max_chunk_bytes=1 << 22)
    world.run(world.create(messages=30_000))
    world.cause_trouble()
    faults = world.origin.faults
    if how == "reset":
        faults.drop(150_000, kind="catchup")
    else:
        faults.truncate(150_000, is_chunked=how == "chunked", kind="catchup")
    assert world.run(world.catch_up(None)).status is None
    world.run(world.reach_quiet())
    assert world.run(world.catch_up(None)).is_up_to_date


def test_a_lost_follower_confirms_no_tail(begin: Begin) -> None:
    """It knew the tail when it was connected, but not the writes since."""
    world, old_tail = followed(begin)
    gone = world.origin.faults.refuse(kind="sse", times=None)
    world.run(world.restart_origin())
    world.run(world.append(1, is_direct=True))
    reader = SseReader(world, old_tail)
    world.run(world.until(lambda: gone.hits > 0))
    world.run(world.reach_quiet())
    assert old_tail not in reader.up_to_date_at
    assert world.log.alive is not None
    assert reader.up_to_date_at == [world.log.alive.tail.token]


def test_a_replay_encoded_before_the_closure_reports_it_afterwards(begin: Begin) -> None:
    world = begin("application/json")
    world.run(world.create(messages=1))
    first = SseReader(world, "-1")
    world.run(world.reach_quiet())
    world.run(world.append(0, is_closing=True))
    second = SseReader(world, "-1")
    world.run(world.reach_quiet())
    assert first.requests == second.requests == 1


def test_closing_is_not_a_304_although_it_adds_no_bytes(begin: Begin) -> None:
    world = begin()
    world.run(world.create(messages=1))
    for offset in ("-1", world.tokens[-1]):
        world.run(world.catch_up(offset))
    world.run(world.append(0, is_closing=True))
    for offset in ("-1", world.tokens[-1]):
        assert world.run(world.catch_up(offset, is_conditional=True)).is_closed


@pytest.mark.parametrize("reader", [SseReader, PollReader])
def test_a_live_reader_of_a_body_too_large_for_the_cache_gets_it_as_it_arrives(
    begin: Begin, reader: type[Reader]
) -> None:
    world = begin(cache_bytes=2_000, max_chunk_bytes=1 << 22)
    world.run(world.create(messages=30_000))
    slow = world.origin.faults.stall(150_000, kind="catchup", times=1)
    world.holds.append(slow)
    follower = reader(world, "-1")
    world.run(world.until(lambda: follower.at != "-1" and not slow.held))


def test_a_stream_known_only_from_creation_and_live_events_is_not_mistaken_for_its_successor(begin: Begin) -> None:
    """No ETag names either of the two; it is deleted and created again while the live request is lost."""
    world, _ = followed(begin)
    world.run(world.append(1))
    world.run(world.reach_quiet())
    world.run(world.restart_origin(world.create_anew))
    world.run(world.reach_quiet())


def test_a_refusal_of_the_gateways_own_request_does_not_reach_the_client(begin: Begin) -> None:
    """The remembered tail is probed for a live read; meanwhile another read records a newer one."""
    world = begin(trust_s=0.0, is_nameless=True)
    world.run(world.create(messages=1))
    world.run(world.delete(is_direct=True))
    world.run(world.create(messages=6, is_direct=True))
    assert world.log.alive is not None
    world.cause_trouble()
    world.origin.faults.status(503, kind="catchup", times=1)
    look = world.origin.faults.hold(kind="catchup", times=1)
    world.holds.append(look)
    polling = world.spawn(ignoring_result(world.long_poll(world.log.alive.tail.token)))
    world.run(look.waiting(1))
    world.run(world.now())
    look.release()
    world.run(asyncio.wait_for(polling, 5))
