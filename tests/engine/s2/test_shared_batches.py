"""Batches that the readers of one stream share."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.engine.s2.fetch import S2Origin, S2Source
from gateway.engine.s2.stream import S2Shared, S2Stream
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2.records import Record
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import UNARY, Limits
from gateway.tape.store import TapeStore
from gateway.telemetry.metrics import NoMetrics

KEY = StreamKey(Group("http://o", "/v1/streams/s"), "", Partition("r"))


def records(first: int, end: int) -> tuple[Record, ...]:
    return tuple(Record(number, number, (), b"x") for number in range(first, end))


def a_stream(turn: list[Callable[[], object]]) -> S2Stream:
    store = TapeStore(1_000_000, POLICIES["lru"](), lambda: "i", NoMetrics())
    record = store.open_as(RecordStream, KEY, 0.0)
    return S2Stream(
        S2Shared(cast(S2Origin, None), store, ManualClock(), Tasks(), turn.append), record, cast(S2Source, None)
    )


def test_readers_at_one_place_share_a_batch_in_one_turn() -> None:
    turn: list[Callable[[], object]] = []
    stream = a_stream(turn)
    batch, is_closed = stream.batch(0, UNARY, None)
    assert (batch.count, is_closed) == (0, False)
    stream.store(0, records(0, 5))
    batch, is_closed = stream.batch(0, UNARY, None)
    assert (batch.count, is_closed) == (5, False), "an empty batch is not kept"
    assert stream.batch(0, UNARY, None)[0] is batch
    assert stream.batch(1, UNARY, None)[0].count == 4
    limited, is_closed = stream.batch(0, Limits(2), None)
    assert (limited.count, is_closed) == (2, True)
    stream.store(5, records(5, 6))
    for call in turn:
        call()
    assert stream.batch(0, UNARY, None)[0].count == 6


def test_batches_of_one_turn_are_bounded() -> None:
    turn: list[Callable[[], object]] = []
    stream = a_stream(turn)
    stream.store(0, records(0, 20))
    first = [stream.batch(at, UNARY, None)[0] for at in range(17)]
    again = [stream.batch(at, UNARY, None)[0] for at in range(17)]
    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * 16 + [False]
    assert [one.start for one in again] == list(range(17))
    assert len(turn) == 1
