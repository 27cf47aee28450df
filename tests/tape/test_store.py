"""The tape store: the sum of costs, the budget, what eviction may take and what it must leave."""

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2.records import Record
from gateway.tape import block as block_module
from gateway.tape import paths
from gateway.tape.arriving_charge import ArrivingCharge
from gateway.tape.eviction import POLICIES, USE_S
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from tests.effort import examples
from tests.tape.store_machine import BLOCK_OVERHEAD, FOR_EVER, StoreAgainstRecount, Told, fill, key, new_store


@pytest.mark.parametrize("policy", POLICIES)
def test_the_budget_holds_in_every_order_of_events(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "SEAL_BYTES", 1_000)

    class Against(StoreAgainstRecount):
        pass

    Against.policy = policy
    run_state_machine_as_test(Against, settings=settings(max_examples=examples(30, 100), stateful_step_count=40))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_deleted", [True, False])
def test_streams_that_sleep_are_evicted_like_others(
    policy: str, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    monkeypatch.setattr(paths, "MOST_EVENTS", 2)
    store, _ = new_store(10 * (BLOCK_OVERHEAD + 1_000), policy)
    for number in range(8):
        fill(store, store.open(key("s", str(number)), 0.0), 1_000)
    for _ in range(3):
        store.tell(key("s").group, Told(lambda stream: is_deleted and store.drop_stream(stream, End.DELETED)))
    for number in range(20):
        fill(store, store.open(key(f"other {number}"), 1.0), 1_000)
        assert store.cost <= store.budget_bytes
    assert not store.group(key("s").group)


def crowded_store(
    monkeypatch: pytest.MonkeyPatch, count: int, most_dozing: int
) -> tuple[TapeStore, list[Stream], list[Stream]]:
    """A store with so many streams of one path, two of them awake; the streams; those whose answers were dropped."""
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    monkeypatch.setattr(paths, "MOST_DOZING", most_dozing, raising=False)
    store, _ = new_store(1 << 20)
    dropped: list[Stream] = []
    store.on_forget = dropped.append
    return store, [store.open(key("s", str(number)), 0.0) for number in range(count)], dropped


def test_sleeping_streams_keep_remembered_answers_until_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    store, streams, dropped = crowded_store(monkeypatch, 8, 100)
    for stream in streams * 3:
        assert store.find(stream.key) is stream
    assert not dropped
    sleeping = [stream for stream in streams if not stream.is_awake]
    assert len(sleeping) == 6
    for _ in range(2):
        store.tell(key("s").group, Told(lambda stream: None))
    assert sorted(map(id, dropped)) == sorted(map(id, sleeping))


def test_a_bounded_number_of_sleeping_streams_keeps_remembered_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    _, streams, dropped = crowded_store(monkeypatch, 8, 4)
    assert dropped == streams[:2]


def test_streams_that_were_in_use_together_fall_asleep_when_they_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _, _ = crowded_store(monkeypatch, 0, 100)
    held = []
    for number in range(60):
        stream = store.open(key("s", str(number)), 0.0)
        fill(store, stream, 1)
        stream.hold()
        held.append(stream)
    assert len(store.awake(key("s").group)) == 60
    for stream in held:
        store.release(stream)
    assert len(store.awake(key("s").group)) == 2


def test_a_loan_is_taken_back_if_an_eviction_fails() -> None:
    store, _ = new_store(3 * (BLOCK_OVERHEAD + 1_000))
    fill(store, store.open(key("a"), 0.0), 1_000)

    def fail(stream: Stream) -> None:
        raise RuntimeError

    store.on_forget = fail
    with pytest.raises(RuntimeError):
        store.lend(store.budget_bytes - BLOCK_OVERHEAD, store.open(key("b"), 0.0))
    assert store.lent == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_body_charged_while_it_arrives_evicts_the_same_streams_as_one_stored_at_once(policy: str) -> None:
    rng = random.Random(7)
    sizes = [rng.randrange(500, 30_000) for _ in range(40)]
    stores = [new_store(100_000, policy)[0] for _ in range(2)]
    for step in range(600):
        number = min(int(rng.paretovariate(0.7)), len(sizes)) - 1
        for arrives, store in enumerate(stores):
            stream = store.open(key(str(number)), step * USE_S)
            stream.hold()
            if not stream.block_count:
                arriving = ArrivingCharge(store, stream)
                for _ in range(4 * arrives):
                    assert arriving.grow(sizes[number] // 4)
                arriving.release()
                fill(store, stream, sizes[number], step * USE_S)
            store.release(stream)
        at_once, bit_by_bit = ({stream.key for stream in store if stream.block_count} for store in stores)
        assert at_once == bit_by_bit, step


def test_a_stream_whose_bytes_are_on_their_way_begins_on_probation() -> None:
    store, recorder = new_store(3 * (BLOCK_OVERHEAD + 1_100), "s3-fifo")
    late = store.open(key("late"), 0.0)
    late.hold()
    others = [store.open(key(name), 0.0) for name in "abcd"]
    for other in others:
        fill(store, other, 1_000)
    assert recorder.counts["eviction",] == sum(other.ended is End.EVICTED for other in others)
    fill(store, late, 1_000)
    store.release(late)
    for name in "efg":
        fill(store, store.open(key(name), 10.0), 1_000)
    assert late.ended is End.EVICTED


def fourth_stream_after(policy: str, use: Callable[[TapeStore, Stream], object]) -> list[End | None]:
    """Fill the store with three streams, use the first, store a fourth; return how the first three ended."""
    store, recorder = new_store(3 * (BLOCK_OVERHEAD + 1_100), policy)
    streams = [store.open(key(name), 0.0) for name in "abc"]
    for stream in streams:
        fill(store, stream, 1_000)
    use(store, streams[0])
    fill(store, store.open(key("d"), 0.0), 1_000)
    assert recorder.counts["eviction",] == 1
    return [stream.ended for stream in streams]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_used_again_outlives_the_others(policy: str) -> None:
    assert fourth_stream_after(policy, lambda store, stream: store.open(stream.key, USE_S)) == [
        None, End.EVICTED, None,
    ]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_remembered_answer_is_a_use(policy: str) -> None:
    assert fourth_stream_after(policy, TapeStore.touch) == [None, End.EVICTED, None]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_in_quick_succession_are_one_use(policy: str) -> None:
    assert fourth_stream_after(policy, lambda store, stream: store.open(stream.key, USE_S * 0.9)) == [
        End.EVICTED, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_followed", [True, False])
def test_bytes_stored_for_live_readers_are_a_use_and_a_slow_fetch_is_not(policy: str, is_followed: bool) -> None:
    def append(store: TapeStore, stream: Stream) -> None:
        stream.is_followed = is_followed
        fill(store, stream, 1, now=5 * USE_S)

    first, second, _ = fourth_stream_after(policy, append)
    assert (first, second) == ((None, End.EVICTED) if is_followed else (End.EVICTED, None))


def test_a_stream_that_returns_soon_after_eviction_skips_probation() -> None:
    store, _ = new_store(3 * (BLOCK_OVERHEAD + 1_100), "s3-fifo")
    for name in "abcd":
        fill(store, store.open(key(name), 0.0), 1_000)
    assert store.find(key("a")) is None
    back = store.open(key("a"), 10.0)
    fill(store, back, 1_000)
    for name in "efghijkl":
        fill(store, store.open(key(name), 10.0), 1_000)
    assert back.ended is None


def test_a_deleted_stream_returns_on_probation() -> None:
    store, _ = new_store(3 * (BLOCK_OVERHEAD + 1_100), "s3-fifo")
    for name in "abc":
        fill(store, store.open(key(name), 0.0), 1_000)
    first = store.find(key("a"))
    assert first is not None
    store.drop_stream(first, End.DELETED)
    again = store.open(key("a"), 10.0)
    fill(store, again, 1_000)
    for name in "efg":
        fill(store, store.open(key(name), 10.0), 1_000)
    assert again.ended is End.EVICTED


def test_a_pinned_stream_loses_its_bytes_and_keeps_its_facts() -> None:
    store, _ = new_store(5_300)
    followed = store.open(key("followed"), 0.0)
    followed.holds += 1
    followed.expiry.know(FOR_EVER)
    fill(store, followed, 2_000)
    followed.tape.reached("00000009", is_closed=True)
    fill(store, store.open(key("other"), 0.0), 2_500)
    assert followed.ended is None
    assert followed.tape.block_count == 0
    assert followed.tape.is_closed_at("00000009")
    assert store.find(followed.key) is followed
    assert repr(followed) == "<Stream /followed in memory, 0 blocks, 1 holds>"


def test_a_stream_that_lost_its_bytes_while_pinned_is_evictable_afterwards() -> None:
    store, _ = new_store(5_300)
    for number in range(50):
        stream = store.open(key(str(number)), 0.0)
        stream.holds += 1
        stream.expiry.know(FOR_EVER)
        fill(store, stream, 1_500)
        fill(store, store.open(key("other"), 0.0), 2_500)
        store.release(stream)
    assert store.cost <= store.budget_bytes
    assert len(store) <= 4


def test_an_unpinned_empty_stream_is_dropped() -> None:
    store, _ = new_store(5_300)
    stream = store.open(key("a"), 0.0)
    stream.holds += 1
    store.release(stream)
    assert len(store) == 0
    assert store.cost == 0


def test_a_write_affects_every_query_and_partition_of_a_path() -> None:
    store, _ = new_store(100_000)
    group = Group("default", "/a")
    affected = [
        store.open(StreamKey(group, query, Partition(partition)), 0.0) for query in ("", "x=1") for partition in "pq"
    ]
    other = store.open(key("b"), 0.0)
    assert set(map(id, store.group(group))) == set(map(id, affected))
    assert other not in store.group(group)


def test_a_stream_whose_route_speaks_another_protocol_now_is_begun_again() -> None:
    store, _ = new_store(1 << 20)
    durable = store.open(key("s"), 0.0)
    fill(store, durable, 1_000)
    records = store.open_as(RecordStream, key("s"), 0.0)
    assert durable.ended is End.PURGED
    store.store_records(records, 0, [Record(0, 0, (), b"x" * 1_000)], 0.0)
    assert (store.cost, len(store), records.block_count) == (records.cost, 1, 1)
    assert store.open_as(RecordStream, key("s"), 0.0) is records
    assert store.open(key("s"), 0.0).cost == store.cost
    assert records.ended is End.PURGED
