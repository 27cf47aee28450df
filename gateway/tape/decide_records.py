"""Decides the next step of a read of an S2 stream: answer from memory, ask the origin, or wait.

`decide_records` is pure.  Unary reads and sessions are loops: take the records in memory, call the function, carry out
the step, record the result in the read's progress.  `gateway.tape.decide` is the same for Durable Streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from gateway.s2.records import StreamPosition
from gateway.tape.decide import Awaited, Question
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits


class RecordAnswer(StrEnum):
    """The outcome of a read of an S2 stream."""

    RECORDS = "records"
    """The records taken so far: a batch, or the regular end of a session."""
    UNWRITTEN = "unwritten"
    """The tail, because the stream has no record at the start or after it."""
    GONE = "gone"
    """No result: the stream has ended, so records taken so far and later records may belong to different streams."""


class RecordTopic(Protocol):
    """The view of an S2 stream's topic that `decide_records` needs."""

    position: int
    """The sequence number before which all records have been stored."""


@dataclass(slots=True, eq=False)
class RecordProgress:
    """The state of one read of an S2 stream.  Owner: the loop of the read."""

    at: int
    """The sequence number that the read has reached."""
    left: Limits
    """The limits for the rest of the read."""
    may_wait: bool = False
    """Whether the read waits at the tail."""
    may_be_empty: bool = False
    """Whether the read may end at the tail without a record."""
    tail: StreamPosition | None = None
    """A tail that was valid after the request arrived, or a recent statement of the tail by a follower (the gateway's
    live session).  None if no such tail is known, or if the read is beyond this tail."""
    is_tail_trusted: bool = False
    """Whether a follower has stated `tail`, perhaps before the request arrived."""
    topic: RecordTopic | None = None
    """The stream's topic; None until the read has joined the topic."""
    has_records: bool = False
    """Whether the read has taken records that are not sent yet."""
    is_confirmed: bool = True
    """False if the held records were doubted when the read began, and the origin has not confirmed them since.  Records
    are doubted if the stream may have been deleted and created again."""
    is_complete: bool = False
    """Whether a limit has ended the read, or the origin has no more records for the read within its limits."""

    def came_to(self, at: int) -> None:
        """Record that the read has taken all records before `at`."""
        if at > self.at:
            self.at = at
            if self.tail is not None and self.tail.seq_num < at:
                self.tail = None

    def trust(self, tail: StreamPosition | None) -> None:
        """Record a follower's statement that the stream ends at `tail`.  If the read is already beyond `tail`, the
        statement may be older than the client's request, and the tail becomes unknown."""
        self.tail = tail if tail is not None and tail.seq_num >= self.at else None
        self.is_tail_trusted = True

    def found_tail(self, tail: StreamPosition, *, is_clamped: bool = False) -> None:
        """Record that the stream has no records between the read's position and `tail`.  With `is_clamped`, a read that
        starts beyond the tail continues at the tail."""
        self.tail, self.is_tail_trusted = tail, False
        self.is_complete = self.has_records
        if not self.has_records:
            self.at = tail.seq_num if is_clamped else max(self.at, tail.seq_num)


def decide_records(stream: RecordStream, read: RecordProgress) -> Question | Literal[Awaited.CHANGE] | RecordAnswer:
    """Return the next step of a read of an S2 stream.  Changes nothing and never raises.

    The first row that applies decides.  CONFIRMATION, TAIL and BYTES are questions to the origin.  TAIL asks for the
    missing records, and for the tail if there are none.  BYTES asks for the missing records only.

    | state                                                                  | step         |
    |------------------------------------------------------------------------|--------------|
    | The stream has ended.                                                  | GONE         |
    | Its records are doubted (`RecordStream`), and not confirmed yet.       | CONFIRMATION |
    | The read is complete.                                                  | RECORDS      |
    | The read has joined the topic, and has records.                        | RECORDS      |
    | The read has joined the topic, and has reached the topic's position.   | CHANGE       |
    | The read is at the tail or beyond it, and has records.                 | RECORDS      |
    | The read is beyond the tail.                                           | UNWRITTEN    |
    | The read is at the tail, and waits there.                              | CHANGE       |
    | The read is at the tail, and may end without records.                  | RECORDS      |
    | The read is at the tail.                                               | UNWRITTEN    |
    | Records are missing.  The read may wait, and has no records.           | TAIL         |
    | Records are missing.                                                   | BYTES        |
    """
    if stream.ended is not None:
        return RecordAnswer.GONE
    if not read.is_confirmed and (stream.is_doubted or stream.needs_revalidation):
        return Question.CONFIRMATION
    if read.is_complete:
        return RecordAnswer.RECORDS
    if (topic := read.topic) is not None:
        if read.has_records:
            return RecordAnswer.RECORDS
        return Awaited.CHANGE if read.at >= topic.position else Question.BYTES
    if (tail := read.tail) is not None and read.at >= tail.seq_num:
        if read.has_records:
            return RecordAnswer.RECORDS
        if read.at > tail.seq_num:
            return RecordAnswer.UNWRITTEN
        if read.may_wait:
            return Awaited.CHANGE
        return RecordAnswer.RECORDS if read.may_be_empty else RecordAnswer.UNWRITTEN
    return Question.TAIL if read.may_wait and not read.has_records else Question.BYTES
