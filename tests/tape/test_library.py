"""The library: the sum of costs, the budget, what eviction may take and what it must leave."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.metrics_seam import Silent
from gateway.protocol.freshness import Lifetime
from gateway.tape import block as block_module
from gateway.tape.eviction import POLICIES, Eviction
from gateway.tape.library import USE_S, Library
from gateway.tape.stream import End, Group, Stream, StreamKey
from gateway.tape.tape import TAPE_COST

FOR_EVER = Lifetime(None, None)


def key(name: str, partition: str = "") -> StreamKey:
    return StreamKey(Group("default", f"/{name}"), "", partition)


def new_library(
    budget_bytes: int, policy: str = "lru", order: Eviction[StreamKey] | None = None
) -> tuple[Library, Silent]:
    """A library by a policy's name, or with an `order` that the test looks at."""
    recorder = Silent()
    mint: Callable[[], str] = map(str, count()).__next__
    return Library(budget_bytes, POLICIES[policy]() if order is None else order, mint, recorder), recorder


def fill(library: Library, stream: Stream, size: int, now: float = 0.0) -> None:
    start = stream.tape.tail or "-1"
    end = f"{int(start) + 2:08d}"
    library.lay(stream, start, end, [b"x" * size], now)
    stream.tape.reached(end)


class LibraryAgainstRecount(RuleBasedStateMachine):
    keys = st.sampled_from([key("a"), key("a", "p"), key("b")])

    policy = next(iter(POLICIES))

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.order: Eviction[StreamKey] = POLICIES[self.policy]()
        self.library, self.recorder = new_library(4_500, order=self.order)
        self.pinned: list[Stream] = []
        self.ended: list[Stream] = []
        self.lent: dict[Stream, int] = {}
        self.library.on_forget = self.take_back

    def take_back(self, stream: Stream) -> None:
        """What was made of dropped bytes goes with them."""
        self.library.take_back(self.lent.pop(stream, 0))

    @rule(key=keys, size=st.sampled_from([1, 700, 2_000]))
    def lend(self, key: StreamKey, size: int) -> None:
        stream = self.library.open(key, self.now)
        before = stream.tape.size
        if self.library.lend(size, stream):
            self.lent[stream] = self.lent.get(stream, 0) + size
            assert self.library.cost + self.library.lent <= self.library.budget_bytes
        assert stream.tape.size == before
        assert stream.ended is None

    @rule()
    def time_goes_by(self) -> None:
        self.now += USE_S

    @rule(key=keys)
    def answer_without_opening(self, key: StreamKey) -> None:
        stream = self.library.find(key)
        if stream is not None:
            self.library.touch(stream)

    @rule(key=keys, size=st.sampled_from([1, 1_500, 3_000]), is_known=st.booleans())
    def lay(self, key: StreamKey, size: int, is_known: bool) -> None:
        stream = self.library.open(key, self.now)
        stream.lifetime = FOR_EVER if is_known else stream.lifetime
        fill(self.library, stream, size, self.now)

    @rule(key=keys, size=st.sampled_from([1, 3_000]))
    def read_for_a_while(self, key: StreamKey, size: int) -> None:
        stream = self.library.open(key, self.now)
        stream.pins += 1
        fill(self.library, stream, size, self.now)
        self.library.release(stream)

    @rule(key=keys)
    def pin(self, key: StreamKey) -> None:
        stream = self.library.open(key, self.now)
        stream.pins += 1
        self.pinned.append(stream)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.pinned:
            index = data.draw(st.integers(0, len(self.pinned) - 1))
            self.library.release(self.pinned.pop(index))

    @rule(key=keys)
    def lay_on_an_ended_record(self, key: StreamKey) -> None:
        stream = self.library.open(key, self.now)
        assert self.library.drop(stream, End.DELETED)
        assert not self.library.drop(stream, End.GONE)
        assert stream.ended is End.DELETED
        fill(self.library, stream, 100)
        assert stream.tape.block_count == 0
        assert self.library.find(key) is None

    @rule(key=keys)
    def forget_bytes(self, key: StreamKey) -> None:
        stream = self.library.find(key)
        if stream is not None:
            self.library.forget_bytes(stream)
            assert stream.tape.block_count == 0

    @rule(key=keys)
    def purge(self, key: StreamKey) -> None:
        assert all(stream.ended is End.RECREATED for stream in self.library.purge(key.group, End.RECREATED))
        assert not self.library.group(key.group)

    @invariant()
    def cost_is_the_sum_and_fits_the_budget_but_for_what_is_pinned(self) -> None:
        streams = list(self.library)
        assert self.library.cost == sum(stream.tape.cost for stream in streams)
        assert self.library.lent == sum(self.lent.values())
        assert self.recorder.cache_bytes == self.library.cost + self.library.lent
        assert self.library.cost + self.library.lent <= self.library.budget_bytes or not any(
            stream.tape.block_count for stream in streams
        )
        assert len(self.library) == len(streams) == self.recorder.tapes
        assert all(stream.ended is None for stream in streams)
        held = sum(TAPE_COST for stream in streams if stream.pins)
        # The stream that was opened or laid last is never given up whole.
        assert self.library.cost <= max(self.library.budget_bytes, held + TAPE_COST)

    @invariant()
    def every_stream_can_still_be_given_up(self) -> None:
        order = self.order
        held = [stream for stream in self.library if stream.key in order]
        assert all(stream.pins or stream.key in order for stream in self.library)
        assert len(order) == len(held)

    def teardown(self) -> None:
        for stream in self.pinned:
            self.library.release(stream)
        for stream in list(self.library):
            self.library.drop(stream, End.PURGED)
        assert self.library.cost == 0
        assert len(self.library) == 0
        assert not self.library.groups()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_budget_holds_in_every_order_of_events(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "SEAL_BYTES", 1_000)

    class Against(LibraryAgainstRecount):
        pass

    Against.policy = policy
    run_state_machine_as_test(Against, settings=settings(max_examples=100, stateful_step_count=40))


def fourth_stream_after(policy: str, use: Callable[[Library, Stream], object]) -> list[End | None]:
    """Three streams fill the library, the first is used, a fourth comes: how the first three ended."""
    library, recorder = new_library(3 * 2_500, policy)
    streams = [library.open(key(name), 0.0) for name in "abc"]
    for stream in streams:
        fill(library, stream, 1_000)
    use(library, streams[0])
    fill(library, library.open(key("d"), 0.0), 1_000)
    assert recorder.counts["eviction",] == 1
    return [stream.ended for stream in streams]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_that_was_used_again_outlives_those_that_were_not(policy: str) -> None:
    assert fourth_stream_after(policy, lambda library, stream: library.open(stream.key, USE_S)) == [
        None, End.EVICTED, None,
    ]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_an_answer_given_elsewhere_is_a_use(policy: str) -> None:
    assert fourth_stream_after(policy, Library.touch) == [None, End.EVICTED, None]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_in_quick_succession_are_one_use(policy: str) -> None:
    assert fourth_stream_after(policy, lambda library, stream: library.open(stream.key, USE_S * 0.9)) == [
        End.EVICTED, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_followed", [True, False])
def test_bytes_laid_for_live_readers_are_a_use_and_a_fetch_that_took_long_is_not(
    policy: str, is_followed: bool
) -> None:
    def append(library: Library, stream: Stream) -> None:
        stream.is_followed = is_followed
        fill(library, stream, 1, now=5 * USE_S)

    first, second, _ = fourth_stream_after(policy, append)
    assert (first, second) == ((None, End.EVICTED) if is_followed else (End.EVICTED, None))


def test_a_stream_that_comes_back_soon_after_it_was_given_up_is_off_probation() -> None:
    library, _ = new_library(3 * 2_500, "s3-fifo")
    for name in "abcd":
        fill(library, library.open(key(name), 0.0), 1_000)
    assert library.find(key("a")) is None
    back = library.open(key("a"), 10.0)
    fill(library, back, 1_000)
    for name in "efghijkl":
        fill(library, library.open(key(name), 10.0), 1_000)
    assert back.ended is None


def test_a_stream_that_was_deleted_comes_back_as_a_newcomer() -> None:
    library, _ = new_library(3 * 2_500, "s3-fifo")
    for name in "abc":
        fill(library, library.open(key(name), 0.0), 1_000)
    first = library.find(key("a"))
    assert first is not None
    library.drop(first, End.DELETED)
    again = library.open(key("a"), 10.0)
    fill(library, again, 1_000)
    for name in "efg":
        fill(library, library.open(key(name), 10.0), 1_000)
    assert again.ended is End.EVICTED


def test_a_pinned_stream_loses_its_bytes_and_keeps_its_facts() -> None:
    library, _ = new_library(4_000)
    followed = library.open(key("followed"), 0.0)
    followed.pins += 1
    followed.lifetime = FOR_EVER
    fill(library, followed, 2_000)
    followed.tape.reached("00000009", is_closed=True)
    fill(library, library.open(key("other"), 0.0), 2_500)
    assert followed.ended is None
    assert followed.tape.block_count == 0
    assert followed.tape.is_closed_at("00000009")
    assert library.find(followed.key) is followed


def test_a_stream_that_was_pinned_while_it_lost_its_bytes_can_be_given_up_afterwards() -> None:
    library, _ = new_library(4_000)
    for number in range(50):
        stream = library.open(key(str(number)), 0.0)
        stream.pins += 1
        stream.lifetime = FOR_EVER
        fill(library, stream, 1_500)
        fill(library, library.open(key("other"), 0.0), 2_500)
        library.release(stream)
    assert library.cost <= library.budget_bytes
    assert len(library) <= 4


def test_a_stream_that_nobody_holds_and_that_holds_nothing_is_forgotten() -> None:
    library, _ = new_library(4_000)
    stream = library.open(key("a"), 0.0)
    stream.pins += 1
    library.release(stream)
    assert len(library) == 0
    assert library.cost == 0


def test_a_write_concerns_every_query_and_partition_of_a_path() -> None:
    library, _ = new_library(100_000)
    group = Group("default", "/a")
    concerned = [library.open(StreamKey(group, query, partition), 0.0) for query in ("", "x=1") for partition in "pq"]
    other = library.open(key("b"), 0.0)
    assert set(map(id, library.purge(group, End.DELETED))) == set(map(id, concerned))
    assert other.ended is None
