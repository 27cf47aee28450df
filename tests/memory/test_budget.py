"""What the tape store says that streams cost, held against the allocator: hostile names, headers, tags and offsets."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import count

import pytest
from multidict import CIMultiDict

from gateway.protocol.freshness_headers import Lifetime, stated_reuse
from gateway.protocol.header_forwarding import storable_headers
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.eviction import S3Fifo
from gateway.tape.origin_statements import Caching
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import NoMetrics
from tests.effort import examples

MIB = 1 << 20

Fill = Callable[[TapeStore, Stream, int], None]


def new_store(budget_bytes: int) -> TapeStore:
    mint: Callable[[], str] = map(str, count()).__next__
    return TapeStore(budget_bytes, S3Fifo(), mint, NoMetrics())


def store_messages(store: TapeStore, stream: Stream, messages: int, gap: int = 0, digits: int = 20) -> None:
    """Store short messages one by one; a `gap` before each makes a block of each."""
    for number in range(messages):
        start = number * (8 + gap)
        store.store(stream, f"{start:0{digits}d}", f"{start + 8:0{digits}d}", [b"%08d" % number], 0.0)


def usual_headers(store: TapeStore, stream: Stream, number: int) -> None:
    headers = {"X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": "*", "X-Powered-By": "origin"}
    stream.record_headers(storable_headers(CIMultiDict(headers)))
    store_messages(store, stream, 1)


def long_headers(store: TapeStore, stream: Stream, number: int) -> None:
    headers = CIMultiDict([(f"X-{number}-{line}", f"{number}-{line}-" + "v" * 7_000) for line in range(8)])
    stream.record_headers(storable_headers(headers))
    stream.record_head(CIMultiDict({"Last-Modified": f"{number}-" + "m" * 7_000}), Lifetime(None, None))
    stream.caching = Caching.of_bytes(f"max-age={number}, x=" + "c" * 7_000, stated_reuse({}))
    store_messages(store, stream, 1)


def many_headers(store: TapeStore, stream: Stream, number: int) -> None:
    headers = CIMultiDict([(f"X-{number}-{line}", f"{number}/{line}") for line in range(120)])
    stream.record_headers(storable_headers(headers))
    store_messages(store, stream, 1)


def many_tags(store: TapeStore, stream: Stream, number: int) -> None:
    store_messages(store, stream, 1)
    store.tag(stream, frozenset(f"{number}-{tag}-" + "t" * 40 for tag in range(500)))


def many_messages(store: TapeStore, stream: Stream, number: int) -> None:
    store_messages(store, stream, 300)


def many_gaps(store: TapeStore, stream: Stream, number: int) -> None:
    store_messages(store, stream, 300, gap=8)


def long_offsets(store: TapeStore, stream: Stream, number: int) -> None:
    store_messages(store, stream, 100, digits=250)


def foreign_queries(store: TapeStore, stream: Stream, number: int) -> None:
    """Writes under other queries, each of which the stream remembers as another stream's."""
    for write in range(16):
        stream.acknowledged("9" * 20, is_closed=False, query=f"{number}-{write}-" + "q" * 7_000)
        stream.read_up_to_tail(stream.version, "0" * 20)
    store_messages(store, stream, 1)


def start_tracing() -> None:
    """Trace memory from now on.

    A collection first empties Python's free lists: tracemalloc does not count an object that is made from one of them.
    """
    gc.collect()
    tracemalloc.start()


@pytest.mark.parametrize(
    ("fill", "streams", "name_bytes"),
    [
        (usual_headers, 2_000, 30),
        (usual_headers, 500, 8_000),
        (long_headers, 60, 8_000),
        (many_headers, 100, 30),
        (many_tags, 60, 30),
        (many_messages, 60, 30),
        (many_gaps, 60, 30),
        (long_offsets, 60, 30),
        (foreign_queries, 60, 30),
    ],
)
def test_streams_cost_what_they_take(fill: Fill, streams: int, name_bytes: int) -> None:
    store = new_store(1 << 40)
    start_tracing()
    try:
        for number in range(streams):
            name = f"/{number}-" + "n" * name_bytes
            stream = store.open(StreamKey(Group("http://origin", name), "", Partition("all")), 0.0)
            fill(store, stream, number)
            store.weigh(stream)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.75 < store.cost / taken < 1.25, f"{store.cost} told, {taken} taken"


def test_a_flood_of_long_queries_stays_within_the_budget() -> None:
    budget, streams = examples(5, 16) * MIB, examples(8_000, 25_000)
    store = new_store(budget)
    start_tracing()
    try:
        for number in range(streams):
            query = f"{number}-" + "q" * 2_000
            stream = store.open(StreamKey(Group("http://origin", "/a"), query, Partition("all")), 0.0)
            store_messages(store, stream, 1)
        taken, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.cost <= budget
    assert 0.75 < store.cost / taken < 1.25, f"{store.cost} told, {taken} taken"
    assert peak < 1.35 * budget
