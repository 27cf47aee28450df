"""One S2 stream as one credential partition sees it: its records, and whether they are known to be the stream's.

S2 has no name for an incarnation of a stream.  So if records may come from a deleted stream, they are *doubted*: the
origin has to confirm one of them before any is read again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gateway.tape.records import RecordTape
from gateway.tape.stream import Stream


@dataclass(slots=True, eq=False)
class RecordStream(Stream):
    """One incarnation of an S2 stream, whose `tape` stays empty.  Owner: the `TapeStore`."""

    records: RecordTape = field(default_factory=RecordTape)
    verified_at: float = -math.inf
    """When the origin last confirmed that the stream is the one whose records are held (monotonic seconds)."""
    doubts: int = 0
    """The number of doubts that have been raised about that.  Only `TapeStore.doubt_records` raises one."""
    settled: int = 0
    """The number of the doubts that the origin has settled by a later confirmation."""
    full_to: int = 0
    """The end of the last answer if it was as long as its limits allowed; 0 if it was shorter."""

    @property
    def is_doubted(self) -> bool:
        """Whether the origin has to confirm the stream before any of the records is read again."""
        return self.doubts > self.settled and bool(self.records.block_count)

    def verified(self, at: float, doubts: int = 0) -> None:
        """Record that the origin has confirmed the stream to a request that was sent after so many doubts."""
        self.verified_at = at
        self.settled = max(self.settled, doubts)

    # -- what differs from a Durable Stream

    @property
    def cost(self) -> int:
        """Bytes of the budget that the stream takes."""
        return self.facts_cost + self.records.cost

    @property
    def block_count(self) -> int:
        """Blocks of records that are held."""
        return self.records.block_count

    @property
    def furthest(self) -> str | None:
        """The furthest sequence number that the origin has named; None if there is none."""
        return str(self.records.end_seq_num) if self.records.block_count else None

    def drop_oldest(self) -> int:
        """Drop the oldest block; return the cost freed."""
        return self.records.drop_oldest()

    def drop_all(self) -> int:
        """Drop all records, and keep the facts; return the cost freed."""
        return self.records.drop_all()

    def may_have_expired(self, now: float) -> bool:
        """False: an S2 stream has no lifetime, so its records stay valid until it ends."""
        return False

    def may_answer_alone(self, now: float, trust_s: float) -> bool:
        """Whether a hit may be given without the origin: the stream is trusted."""
        return self.is_trusted(now, trust_s)

    def bytes_until(self, start: str, trust_s: float) -> float:
        """Held records may be sent for as long as they are held."""
        return math.inf
