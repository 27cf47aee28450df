"""What a topic gives its readers: all that comes in one turn of the event loop, as one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from gateway.engine.s2.topic import LOST, S2Batch, S2Topic
from gateway.s2.json_format import Format
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, Header, Record, StreamPosition
from gateway.s2.session import Compression
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import S2Refused


class Reader:
    def __init__(self) -> None:
        self.batches: list[S2Batch] = []
        self.errors: list[S2Refused] = []
        self.beats = 0
        self.is_broken = False
        self.is_gone = False

    def deliver(self, batch: S2Batch) -> None:
        self._break()
        self.batches.append(batch)

    def beat(self, *, is_due: bool) -> None:
        self._break()
        self.beats += 1

    def lost(self, error: S2Refused) -> None:
        self._break()
        self.errors.append(error)

    def gone(self) -> None:
        self.is_gone = True
        self._break()

    def _break(self) -> None:
        if self.is_broken:
            raise RuntimeError("a test")


class Turns:
    """A topic at 0 with some readers, and the event loop's turns."""

    def __init__(self, readers: int = 2) -> None:
        self.calls: list[Callable[[], object]] = []
        self.topic = S2Topic(cast("Stream", None), StreamPosition(0, 0), self.calls.append)
        self.readers = [Reader() for _ in range(readers)]
        for reader in self.readers:
            self.topic.join(reader)

    def publish(self, *bodies: bytes, is_tail: bool = True, headers: tuple[Header, ...] = ()) -> None:
        at = self.topic.position
        records = [Record(at + index, at + index, headers, body) for index, body in enumerate(bodies)]
        end = at + len(bodies)
        self.topic.publish(records, StreamPosition(end if is_tail else end + 1, end - 1), 0.0)

    def end(self) -> None:
        calls, self.calls[:] = self.calls[:], []
        for call in calls:
            call()

    def given(self, reader: int = 0) -> list[tuple[int, int]]:
        return [(batch.start, batch.end) for batch in self.readers[reader].batches]


def test_what_comes_in_one_turn_is_one_batch_that_all_readers_share() -> None:
    turns = Turns()
    turns.publish(b"a")
    turns.publish(b"b", b"c")
    assert turns.given() == []
    assert turns.topic.position == 3
    turns.end()
    turns.publish(b"d")
    turns.end()
    assert turns.given(0) == turns.given(1) == [(0, 3), (3, 4)]
    first, other = turns.readers[0].batches[0], turns.readers[1].batches[0]
    assert first is other
    assert [record.body for record in first.batch.records] == [b"a", b"b", b"c"]
    assert first.chunk(Compression.NONE) is other.chunk(Compression.NONE)
    assert first.chunk(Compression.ZSTD) is other.chunk(Compression.ZSTD)
    assert first.json(Format.RAW) is other.json(Format.RAW)
    assert (first.count, first.size) == (3, 27)


def test_a_batch_says_the_tail_if_it_ends_there() -> None:
    turns = Turns()
    turns.publish(b"a")
    turns.publish(b"b", is_tail=False)
    turns.end()
    turns.publish(b"c", is_tail=False)
    turns.publish(b"d")
    turns.end()
    turns.publish(b"e")
    turns.topic.disconnected()
    turns.end()
    tails = [batch.batch.tail for batch in turns.readers[0].batches]
    assert tails == [None, StreamPosition(4, 3), None]


@pytest.mark.parametrize(
    ("bodies", "headers"),
    [
        ([b"x"] * MAX_BATCH_RECORDS, ()),
        ([b"x" * (MAX_BATCH_METERED_BYTES // 2)], ()),
        # Twice as large in protobuf as metered.
        ([b""], (Header(b"n", b"v"),) * 60_000),
    ],
    ids=["records", "bytes", "headers"],
)
def test_what_is_large_is_not_put_together(bodies: list[bytes], headers: tuple[Header, ...]) -> None:
    """A batch has S2's limits, and a frame of a session has its own."""
    turns = Turns()
    turns.publish(b"a")
    turns.publish(*bodies, headers=headers)
    turns.publish(*bodies, headers=headers)
    turns.publish(b"z")
    turns.end()
    size = len(bodies)
    assert turns.given() in (
        [(0, 1), (1, 1 + size), (1 + size, 1 + 2 * size), (1 + 2 * size, 2 + 2 * size)],
        [(0, 1 + size), (1 + size, 2 + 2 * size)],
    )
    for batch in turns.readers[0].batches:
        assert batch.chunk(Compression.NONE) or batch.frame(Compression.NONE).data


@pytest.mark.parametrize(("more", "given"), [(0, [(0, 2)]), (1, [(0, 1), (1, 2)])])
def test_256_kib_of_metered_bytes_are_put_together_and_not_one_more(more: int, given: list[tuple[int, int]]) -> None:
    turns = Turns()
    half = (1 << 17) - 8
    turns.publish(b"x" * half)
    turns.publish(b"x" * (half + more))
    turns.end()
    assert turns.given() == given


def test_readers_have_what_came_before_the_end() -> None:
    turns = Turns()
    turns.publish(b"a")
    turns.topic.lost(LOST)
    assert turns.given() == [(0, 1)]
    assert turns.readers[0].errors == [LOST]
    turns.end()
    assert turns.given() == [(0, 1)]


def test_a_reader_that_fails_is_dropped_and_the_others_are_served() -> None:
    turns = Turns(3)
    turns.readers[1].is_broken = True
    turns.publish(b"a")
    turns.end()
    assert [reader.is_gone for reader in turns.readers] == [False, True, False]
    assert turns.given(0) == turns.given(2) == [(0, 1)]


def test_readers_after_one_that_fails_have_their_heartbeats_and_the_end() -> None:
    turns = Turns(3)
    turns.readers[1].is_broken = True
    turns.topic.beat()
    turns.topic.heard(StreamPosition(0, 0), 1.0)
    turns.topic.lost(LOST)
    assert [reader.beats for reader in turns.readers] == [2, 0, 2]
    assert [reader.errors for reader in turns.readers] == [[LOST], [], [LOST]]
    assert turns.readers[1].is_gone


def test_a_reader_that_joins_within_the_turn_gets_the_batch_to_judge() -> None:
    turns = Turns(0)
    turns.publish(b"a")
    late = Reader()
    turns.topic.join(late)
    turns.end()
    assert [(batch.start, batch.end) for batch in late.batches] == [(0, 1)]


def test_an_event_is_shared_by_readers_that_were_sent_as_much() -> None:
    turns = Turns()
    turns.publish(b"a")
    turns.end()
    [batch] = turns.readers[0].batches
    event = batch.event(1, 9, Format.RAW)
    assert event is batch.event(1, 9, Format.RAW)
    other, coded = batch.event(5, 45, Format.RAW), batch.event(5, 45, Format.BASE64)
    assert other is not None
    assert coded is not None
    framed, size = other
    assert coded[0] != framed
    assert b"id: 0,5,45\n" in framed
    assert int(framed.partition(b"\r\n")[0], 16) == size
