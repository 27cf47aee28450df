"""The tape store: the sum of costs, the budget, what eviction may take and what it must leave."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.protocol.freshness import Lifetime
from gateway.protocol.stream_key import Group, Partition, StreamKey
from gateway.tape import block as block_module
from gateway.tape.eviction import POLICIES
from gateway.tape.store import USE_S, TapeStore
from gateway.tape.stream import End, Stream
from gateway.tape.tape import TAPE_COST
from gateway.telemetry.metrics import NoMetrics

FOR_EVER = Lifetime(None, None)


def key(name: str, readers: str = "") -> StreamKey:
    return StreamKey(Group("default", f"/{name}"), "", Partition("", readers=readers))


def new_store(budget_bytes: int, policy: str = "lru") -> tuple[TapeStore, NoMetrics]:
    recorder = NoMetrics()
    mint: Callable[[], str] = map(str, count()).__next__
    return TapeStore(budget_bytes, POLICIES[policy](), mint, recorder), recorder


def fill(store: TapeStore, stream: Stream, size: int, now: float = 0.0) -> None:
    start = stream.tape.tail or "-1"
    end = f"{int(start) + 2:08d}"
    store.store(stream, start, end, [b"x" * size], now)
    stream.tape.reached(end)


class StoreAgainstRecount(RuleBasedStateMachine):
    """Any events in any order, beside a recount of costs and loans."""

    keys = st.sampled_from([key("a"), key("a", "p"), key("b")])

    policy = next(iter(POLICIES))

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tapes, self.recorder = new_store(4_500, self.policy)
        self.pinned: list[Stream] = []
        self.ended: list[Stream] = []
        self.lent: dict[Stream, int] = {}
        self.tapes.on_forget = self.take_back

    def take_back(self, stream: Stream) -> None:
        """Data derived from dropped bytes is dropped with them."""
        self.tapes.take_back(self.lent.pop(stream, 0))

    @rule(key=keys, size=st.sampled_from([1, 700, 2_000]))
    def lend(self, key: StreamKey, size: int) -> None:
        stream = self.tapes.open(key, self.now)
        before = stream.tape.size
        if self.tapes.lend(size, stream):
            self.lent[stream] = self.lent.get(stream, 0) + size
            assert self.tapes.cost + self.tapes.lent <= self.tapes.budget_bytes
        assert stream.tape.size == before
        assert stream.ended is None

    @rule()
    def time_goes_by(self) -> None:
        self.now += USE_S

    @rule(key=keys)
    def answer_without_opening(self, key: StreamKey) -> None:
        stream = self.tapes.find(key)
        if stream is not None:
            self.tapes.touch(stream)

    @rule(key=keys, size=st.sampled_from([1, 1_500, 3_000]), is_known=st.booleans())
    def store(self, key: StreamKey, size: int, is_known: bool) -> None:
        stream = self.tapes.open(key, self.now)
        stream.lifetime = FOR_EVER if is_known else stream.lifetime
        fill(self.tapes, stream, size, self.now)

    @rule(key=keys, size=st.sampled_from([1, 3_000]))
    def read_for_a_while(self, key: StreamKey, size: int) -> None:
        stream = self.tapes.open(key, self.now)
        stream.pins += 1
        fill(self.tapes, stream, size, self.now)
        self.tapes.release(stream)

    @rule(key=keys)
    def pin(self, key: StreamKey) -> None:
        stream = self.tapes.open(key, self.now)
        stream.pins += 1
        self.pinned.append(stream)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.pinned:
            index = data.draw(st.integers(0, len(self.pinned) - 1))
            self.tapes.release(self.pinned.pop(index))

    @rule(key=keys)
    def store_on_an_ended_record(self, key: StreamKey) -> None:
        stream = self.tapes.open(key, self.now)
        assert self.tapes.drop(stream, End.DELETED)
        assert not self.tapes.drop(stream, End.GONE)
        assert stream.ended is End.DELETED
        fill(self.tapes, stream, 100)
        assert stream.tape.block_count == 0
        assert self.tapes.find(key) is None

    @rule(key=keys)
    def forget_bytes(self, key: StreamKey) -> None:
        stream = self.tapes.find(key)
        if stream is not None:
            self.tapes.forget_bytes(stream)
            assert stream.tape.block_count == 0

    @rule(key=keys)
    def purge(self, key: StreamKey) -> None:
        assert all(stream.ended is End.RECREATED for stream in self.tapes.purge(key.group, End.RECREATED))
        assert not self.tapes.group(key.group)

    @invariant()
    def cost_is_the_sum_and_fits_the_budget_except_for_pinned_streams(self) -> None:
        streams = list(self.tapes)
        assert self.tapes.cost == sum(stream.tape.cost for stream in streams)
        assert self.tapes.lent == sum(self.lent.values())
        assert self.recorder.cache_bytes == self.tapes.cost + self.tapes.lent
        assert self.tapes.cost + self.tapes.lent <= self.tapes.budget_bytes or not any(
            stream.tape.block_count for stream in streams
        )
        assert len(self.tapes) == len(streams) == self.recorder.tapes
        assert all(stream.ended is None for stream in streams)
        held = sum(TAPE_COST for stream in streams if stream.pins)
        # The stream opened or stored last is never evicted whole.
        assert self.tapes.cost <= max(self.tapes.budget_bytes, held + TAPE_COST)

    @invariant()
    def every_stream_is_evictable_or_pinned(self) -> None:
        order = self.tapes._eviction
        held = [stream for stream in self.tapes if stream.key in order]
        assert all(stream.pins or stream.key in order for stream in self.tapes)
        assert len(order) == len(held)

    def teardown(self) -> None:
        for stream in self.pinned:
            self.tapes.release(stream)
        for stream in list(self.tapes):
            self.tapes.drop(stream, End.PURGED)
        assert self.tapes.cost == 0
        assert len(self.tapes) == 0
        assert not self.tapes._groups


@pytest.mark.parametrize("policy", POLICIES)
def test_the_budget_holds_in_every_order_of_events(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "SEAL_BYTES", 1_000)

    class Against(StoreAgainstRecount):
        pass

    Against.policy = policy
    run_state_machine_as_test(Against, settings=settings(max_examples=100, stateful_step_count=40))


def fourth_stream_after(policy: str, use: Callable[[TapeStore, Stream], object]) -> list[End | None]:
    """Fill the store with three streams, use the first, store a fourth; return how the first three ended."""
    store, recorder = new_store(3 * 2_500, policy)
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
    store, _ = new_store(3 * 2_500, "s3-fifo")
    for name in "abcd":
        fill(store, store.open(key(name), 0.0), 1_000)
    assert store.find(key("a")) is None
    back = store.open(key("a"), 10.0)
    fill(store, back, 1_000)
    for name in "efghijkl":
        fill(store, store.open(key(name), 10.0), 1_000)
    assert back.ended is None


def test_a_deleted_stream_returns_on_probation() -> None:
    store, _ = new_store(3 * 2_500, "s3-fifo")
    for name in "abc":
        fill(store, store.open(key(name), 0.0), 1_000)
    first = store.find(key("a"))
    assert first is not None
    store.drop(first, End.DELETED)
    again = store.open(key("a"), 10.0)
    fill(store, again, 1_000)
    for name in "efg":
        fill(store, store.open(key(name), 10.0), 1_000)
    assert again.ended is End.EVICTED


def test_a_pinned_stream_loses_its_bytes_and_keeps_its_facts() -> None:
    store, _ = new_store(4_000)
    followed = store.open(key("followed"), 0.0)
    followed.pins += 1
    followed.lifetime = FOR_EVER
    fill(store, followed, 2_000)
    followed.tape.reached("00000009", is_closed=True)
    fill(store, store.open(key("other"), 0.0), 2_500)
    assert followed.ended is None
    assert followed.tape.block_count == 0
    assert followed.tape.is_closed_at("00000009")
    assert store.find(followed.key) is followed
    assert repr(followed) == "<Stream /followed in memory, 0 blocks, 1 pins>"


def test_a_stream_that_lost_its_bytes_while_pinned_is_evictable_afterwards() -> None:
    store, _ = new_store(4_000)
    for number in range(50):
        stream = store.open(key(str(number)), 0.0)
        stream.pins += 1
        stream.lifetime = FOR_EVER
        fill(store, stream, 1_500)
        fill(store, store.open(key("other"), 0.0), 2_500)
        store.release(stream)
    assert store.cost <= store.budget_bytes
    assert len(store) <= 4


def test_an_unpinned_empty_stream_is_dropped() -> None:
    store, _ = new_store(4_000)
    stream = store.open(key("a"), 0.0)
    stream.pins += 1
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
    assert set(map(id, store.purge(group, End.DELETED))) == set(map(id, affected))
    assert other.ended is None
