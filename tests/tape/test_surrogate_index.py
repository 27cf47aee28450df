"""The tape store's index by surrogate key, under all events."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.costs import TAPE_COST
from gateway.tape.eviction import LeastRecentlyUsed
from gateway.tape.paths import MAX_TAG_BYTES, MAX_TAGS
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import NoMetrics

KEYS = ["red", "green", "blue"]
PATHS = [f"/{number}" for number in range(6)]

keys = st.frozensets(st.sampled_from(KEYS))


class Index(RuleBasedStateMachine):
    """Streams are opened, tagged, fetched, evicted, dropped and purged, beside a model of the index."""

    def __init__(self) -> None:
        super().__init__()
        numbers = iter(range(10_000))
        budget = 4 * TAPE_COST
        self.tapes = TapeStore(budget, LeastRecentlyUsed(), lambda: str(next(numbers)), NoMetrics())
        self.expected: dict[Stream, frozenset[str]] = {}
        self.forgotten: set[Stream] = set()
        """The streams whose next tags start a new set."""

    def _open(self, path: str) -> Stream:
        return self.tapes.open(StreamKey(Group("http://origin", path), "", Partition("default")), 0.0)

    @rule(path=st.sampled_from(PATHS), named=keys)
    def tag(self, path: str, named: frozenset[str]) -> None:
        stream = self._open(path)
        self.tapes.tag(stream, named)
        if named:
            self.expected[stream] = (
                named if stream in self.forgotten else named | self.expected.get(stream, frozenset())
            )
            self.forgotten.discard(stream)

    @rule(path=st.sampled_from(PATHS), size=st.integers(1, 3_000))
    def store(self, path: str, size: int) -> None:
        stream = self._open(path)
        end = f"{int(stream.tape.tail or 0) + 1:04}"
        self.tapes.store(stream, stream.tape.tail or "-1", end, [b"x" * size], 0.0)
        stream.tape.reached(end)

    @rule(path=st.sampled_from(PATHS))
    def drop(self, path: str) -> None:
        self.tapes.drop_stream(self._open(path), End.DELETED)

    @rule(path=st.sampled_from(PATHS))
    def forget_bytes(self, path: str) -> None:
        stream = self._open(path)
        self.tapes.forget_bytes(stream)
        self.forgotten.add(stream)

    @rule(budget=st.integers(1, 6))
    def resize(self, budget: int) -> None:
        self.tapes.resize(budget * TAPE_COST)
        assert self.tapes.cost <= budget * TAPE_COST

    @precondition(lambda self: any(stream.ended for stream in self.expected))
    @rule(named=keys)
    def tag_ended(self, named: frozenset[str]) -> None:
        """Tags of an ended stream are not recorded."""
        self.tapes.tag(next(stream for stream in self.expected if stream.ended), named)

    @invariant()
    def every_key_leads_to_exactly_its_live_streams(self) -> None:
        for key in KEYS:
            wanted = {stream for stream, named in self.expected.items() if stream.ended is None and key in named}
            assert set(self.tapes.tagged(key)) == wanted
        assert len(self.tapes) == sum(1 for _ in self.tapes)

    def teardown(self) -> None:
        for path in PATHS:
            self.tapes.drop_stream(self._open(path), End.DELETED)
        assert repr(self.tapes) == "0 streams in 0 groups, 0 surrogate keys"


@pytest.fixture
def store() -> TapeStore:
    numbers = iter(range(10))
    return TapeStore(1 << 20, LeastRecentlyUsed(), lambda: str(next(numbers)), NoMetrics())


def test_a_stream_with_too_many_tags_loses_its_bytes_and_earlier_tags(store: TapeStore) -> None:
    stream = store.open(StreamKey(Group("http://origin", "/s"), "", Partition("default")), 0.0)
    for number in range(MAX_TAGS):
        store.tag(stream, frozenset({f"key-{number}"}))
    store.store(stream, "-1", "0001", [b"bytes"], 0.0)
    store.tag(stream, frozenset({"key-7"}))
    assert stream.tape.size == 5
    store.tag(stream, frozenset({"one-more"}))
    assert stream.tape.size == 0
    assert store.tagged("key-7") == []
    assert store.tagged("one-more") == [stream]


def test_keys_of_many_bytes_make_the_bytes_forgotten_and_those_of_one_reply_do_not(store: TapeStore) -> None:
    stream = store.open(StreamKey(Group("http://origin", "/s"), "", Partition("default")), 0.0)
    one_reply = frozenset(f"{number:01000}" for number in range(MAX_TAG_BYTES // 1_000 + 1))
    store.tag(stream, one_reply)
    store.store(stream, "-1", "0001", [b"bytes"], 0.0)
    store.tag(stream, one_reply)
    assert (stream.tape.size, stream.surrogate_keys) == (5, one_reply)
    store.tag(stream, frozenset({"one-more"}))
    assert (stream.tape.size, stream.surrogate_keys) == (0, frozenset({"one-more"}))


TestIndex = Index.TestCase
