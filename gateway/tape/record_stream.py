"""An S2 stream in memory: its records, and whether they may belong to a deleted stream of the same name.

S2 does not identify the incarnation of a stream (its life from creation to deletion).  If the stream may have been
deleted and created again, its records become *doubted*.  The origin must then confirm one record before the gateway
serves any doubted record.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.tape.record_tape import RecordTape
from gateway.tape.stream import Stream


@dataclass(slots=True, eq=False)
class RecordStream(Stream):
    """One incarnation of an S2 stream.  Its inherited `tape` stays empty.  Owner: the `TapeStore`."""

    records: RecordTape = field(default_factory=RecordTape)
    verified_at: float = -math.inf
    """The time at which the origin last confirmed that the held records belong to the stream (monotonic seconds)."""
    doubts: int = 0
    """The number of times that the records became doubted.  Only `TapeStore.doubt_records` changes it."""
    settled: int = 0
    """The value of `doubts` at the time of the latest request that confirmed the records."""
    full_to: int = 0
    """If a limit ended the latest reply, the sequence number at which that reply ended: more records are then likely to
    follow.  Otherwise 0."""

    @property
    def is_doubted(self) -> bool:
        """Whether the origin must confirm the records before they are served again."""
        return self.doubts > self.settled and bool(self.records.block_count)

    def reaches(self, seq_num: int, queries: Collection[str] | None) -> bool:
        """Return whether the stream has one of `queries`, and the records in memory reach this sequence number.  If
        `queries` is None, the stream may have any query."""
        return seq_num < self.records.end_seq_num and (queries is None or self.key.query in queries)

    def verified(self, at: float, doubts: int = 0) -> None:
        """Record that the origin has confirmed the records.

        `at` is the time of the reply (monotonic seconds).  The argument `doubts` is the value of the attribute `doubts`
        at the time of the request.
        """
        self.verified_at = at
        self.settled = max(self.settled, doubts)

    # -- overrides of `Stream`

    @property
    def cost(self) -> int:
        """The bytes that the budget is charged for the stream."""
        return self.facts_cost + self.records.cost

    @property
    def block_count(self) -> int:
        """The number of blocks of records."""
        return self.records.block_count

    @property
    def furthest(self) -> str | None:
        """The sequence number after the last covered number, as text; None if no records are held."""
        return str(self.records.end_seq_num) if self.records.block_count else None

    def drop_oldest(self) -> int:
        """Drop the oldest block; return the cost freed."""
        return self.records.drop_oldest()

    def drop_all(self) -> int:
        """Drop all records; return the cost freed."""
        return self.records.drop_all()

    def may_have_expired(self, now: float) -> bool:
        """Return False: an S2 stream has no lifetime."""
        return False

    def may_answer_alone(self, now: float, trust_s: float) -> bool:
        """Return whether the gateway may answer a read without asking the origin."""
        return self.is_trusted(now, trust_s)

    def bytes_until(self, start: str, trust_s: float) -> float:
        """Return infinity: records never become stale."""
        return math.inf
