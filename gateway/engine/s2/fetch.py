"""A fetch of records that readers of one stream share, and its outcome for one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.engine.s2.origin import Outcome
from gateway.engine.s2.questions import Question
from gateway.s2.read_query import FromSeqNum, Start
from gateway.tape.records import Limits


class Fetched(NamedTuple):
    """The result of a fetch for one reader."""

    outcome: Outcome
    is_fresh: bool
    """Whether it was sent after the reader's request had arrived."""
    is_all: bool
    """Whether the origin had nothing more within the reader's limits."""


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch.  Owner: the `S2Stream`."""

    start: Start
    limits: Limits
    question: Question[Outcome]
    is_overlapping: bool = False
    """Whether it began with a record that was held, which has taken a part of its limits."""

    def spans(self, seq_num: int) -> bool:
        """Whether it may bring the record at `seq_num`, after others."""
        first = self.start.seq_num if isinstance(self.start, FromSeqNum) else seq_num
        return first < seq_num < first + (self.limits.count or 0)
