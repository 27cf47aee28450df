"""A library in every order of events, against a recount of what it holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape import paths
from gateway.tape.costs import TAPE_COST
from gateway.tape.eviction import POLICIES, USE_S, Eviction
from gateway.tape.paths import PathEvent
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import NoMetrics

FOR_EVER = Lifetime(None, None)

BLOCK_OVERHEAD = 2_650
"""Slightly more than what a stream with one block costs beside its bytes."""


def key(name: str, readers: str = "") -> StreamKey:
    return StreamKey(Group("default", f"/{name}"), "", Partition("", readers=readers))


def new_store(
    budget_bytes: int, policy: str = "lru", order: Eviction[StreamKey] | None = None
) -> tuple[TapeStore, NoMetrics]:
    """A library by a policy's name, or with an `order` that the test looks at."""
    recorder = NoMetrics()
    mint: Callable[[], str] = map(str, count()).__next__
    return TapeStore(budget_bytes, POLICIES[policy]() if order is None else order, mint, recorder), recorder


def fill(store: TapeStore, stream: Stream, size: int, now: float = 0.0) -> None:
    start = stream.tape.tail or "-1"
    end = f"{int(start) + 2:08d}"
    store.store(stream, start, end, [b"x" * size], now)
    stream.tape.reached(end)


class Told:
    """An event that applies `change` to each stream, and is kept as one of its own."""

    def __init__(self, change: Callable[[Stream], object]) -> None:
        self.change = change

    def __call__(self, stream: Stream, /) -> None:
        self.change(stream)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        return None


class StoreAgainstRecount(RuleBasedStateMachine):
    """Two streams of a path are awake, and two events of it are kept for the others."""

    keys = st.sampled_from([key("a"), key("a", "p"), key("b"), key("a", "q"), key("a", "r")])

    policy = next(iter(POLICIES))

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.object(paths, "MOST_AWAKE", 2),
            mock.patch.object(paths, "MOST_EVENTS", 2),
        ]
        for patch in self.patches:
            patch.start()
        self.now = 0.0
        self.order: Eviction[StreamKey] = POLICIES[self.policy]()
        self.tapes, self.recorder = new_store(7_500, order=self.order)
        self.pinned: list[Stream] = []
        self.ended: list[Stream] = []
        self.lent: dict[Stream, int] = {}
        self.tapes.on_forget = self.take_back

    def take_back(self, stream: Stream) -> None:
        """What was made of dropped bytes goes with them."""
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
        if is_known:
            stream.expiry.know(FOR_EVER)
        fill(self.tapes, stream, size, self.now)

    @rule(key=keys, size=st.sampled_from([1, 3_000]))
    def read_for_a_while(self, key: StreamKey, size: int) -> None:
        stream = self.tapes.open(key, self.now)
        stream.holds += 1
        fill(self.tapes, stream, size, self.now)
        self.tapes.release(stream)

    @rule(key=keys)
    def pin(self, key: StreamKey) -> None:
        stream = self.tapes.open(key, self.now)
        stream.holds += 1
        self.pinned.append(stream)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.pinned:
            index = data.draw(st.integers(0, len(self.pinned) - 1))
            self.tapes.release(self.pinned.pop(index))

    @rule(key=keys)
    def store_on_an_ended_record(self, key: StreamKey) -> None:
        stream = self.tapes.open(key, self.now)
        assert self.tapes.drop_stream(stream, End.DELETED)
        assert not self.tapes.drop_stream(stream, End.GONE)
        assert stream.ended is End.DELETED
        fill(self.tapes, stream, 100)
        assert stream.tape.block_count == 0
        assert self.tapes.find(key) is None

    @rule(key=keys, change=st.sampled_from(["nothing", "forget", "drop"]))
    def tell(self, key: StreamKey, change: str) -> None:
        changes: dict[str, Callable[[Stream], object]] = {
            "nothing": lambda stream: None,
            "forget": self.tapes.forget_bytes,
            "drop": lambda stream: self.tapes.drop_stream(stream, End.DELETED),
        }
        self.tapes.tell(key.group, Told(changes[change]))

    @rule(key=keys)
    def forget_bytes(self, key: StreamKey) -> None:
        stream = self.tapes.find(key)
        if stream is not None:
            self.tapes.forget_bytes(stream)
            assert stream.tape.block_count == 0

    @rule(key=keys, data=st.data())
    def trim(self, key: StreamKey, data: st.DataObject) -> None:
        stream = self.tapes.find(key)
        if stream is not None:
            at = f"{data.draw(st.integers(0, int(stream.tape.tail or 0) + 2)):08d}"
            self.tapes.forget_before(stream, at)
            assert not [token for token in stream.tape.tokens() if token == "-1" or token < at]

    @rule(key=keys)
    def purge(self, key: StreamKey) -> None:
        for stream in self.tapes.group(key.group):
            assert self.tapes.drop_stream(stream, End.RECREATED)
            assert stream.ended is End.RECREATED
        assert not self.tapes.group(key.group)

    @invariant()
    def cost_is_the_sum_and_fits_the_budget_except_for_pinned_streams(self) -> None:
        streams = list(self.tapes)
        assert self.tapes.cost == sum(stream.cost for stream in streams)
        assert self.tapes.lent == sum(self.lent.values())
        assert self.tapes.cost + self.tapes.lent <= self.tapes.budget_bytes or not any(
            stream.tape.block_count for stream in streams
        )
        assert len(self.tapes) == len(streams)
        assert all(stream.ended is None for stream in streams)
        empty = [TAPE_COST + stream.facts_cost for stream in streams]
        held = sum(cost for cost, stream in zip(empty, streams, strict=True) if stream.holds)
        # The stream opened or stored last is never evicted whole.
        assert self.tapes.cost <= max(self.tapes.budget_bytes, held + max(empty, default=0))

    @invariant()
    def every_stream_is_evictable_or_pinned(self) -> None:
        order = self.order
        held = [stream for stream in self.tapes if stream.key in order]
        assert all(stream.holds or stream.key in order for stream in self.tapes)
        assert len(order) == len(held)

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        for stream in self.pinned:
            self.tapes.release(stream)
        for stream in list(self.tapes):
            self.tapes.drop_stream(stream, End.PURGED)
        assert self.tapes.cost == 0
        assert len(self.tapes) == 0
        assert not self.tapes.paths.groups()
