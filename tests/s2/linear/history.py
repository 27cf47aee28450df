"""The recorded history of one stream, and the verdict on it.

Clients note each call before it is sent, and its outcome when it has come.  All are in one process, so one counter
orders calls and returns.  At the end, when no fault is left, the whole stream is read at the origin.  That read is an
operation like any other.  It also tells what the records of each number are, and so

- what the hash over all records before a position is, for reads that began in the middle;
- which appends of unknown outcome have taken effect, and where, because no two records are equal.  Each that has not
  is left out: had it taken effect, the last read would have seen its records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.s2.linear.model import (
    EMPTY,
    Acknowledged,
    Action,
    Append,
    AppendOutcome,
    StreamState,
    TailIs,
    TailIsBehind,
    chained,
)
from tests.s2.linear.search import Linearization, Operation, linearize


def content_hash(body: bytes) -> bytes:
    """What stands for a record's content."""
    return hashlib.blake2b(body, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Seen:
    """Records that a read has brought: those from `start` on.  `is_all` if it saw the tail behind them."""

    start: int
    records: tuple[bytes, ...]
    is_all: bool

    @property
    def end(self) -> int:
        return self.start + len(self.records)


@dataclass(slots=True)
class Call:
    """A call that was made."""

    called: int
    client: str
    what: str
    append: Append | None = None
    returned: int | None = None
    outcome: AppendOutcome | Seen | TailIs = None
    is_void: bool = False
    """Whether it is known to have had no effect."""


@dataclass
class Verdict:
    """What is wrong with a history, in words; nothing if it is linearizable."""

    wrong: list[str] = field(default_factory=list)
    linearization: Linearization[StreamState] | None = None


class History:
    """The calls of one stream's clients.  Owner of the order of events."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        """What clients have found wrong with one answer alone."""
        self._calls: list[Call] = []
        self._now = 0

    def __len__(self) -> int:
        return sum(not call.is_void for call in self._calls)

    @property
    def definite(self) -> int:
        """Calls whose outcome was seen."""
        return sum(call.returned is not None for call in self._calls)

    def _next(self) -> int:
        self._now += 1
        return self._now

    def call(self, client: str, what: str, append: Append | None = None) -> Call:
        """A call is about to be made; `append` without an outcome if it is one."""
        call = Call(self._next(), client, what, append)
        self._calls.append(call)
        return call

    def returned(self, call: Call, outcome: AppendOutcome | Seen | TailIs) -> None:
        """The outcome of a call was seen.  Without this call it is unknown."""
        call.returned, call.outcome = self._next(), outcome

    def had_no_effect(self, call: Call) -> None:
        """An append was refused in a way that promises that it had no effect."""
        call.is_void = True

    def is_wrong(self, call: Call, why: str) -> None:
        """An answer is wrong whatever else was seen."""
        self.wrong.append(f"{call.client}: {call.what}: {why}")

    def judge(self, final: Sequence[bytes]) -> Verdict:
        """The verdict, if the stream has these records in the end."""
        verdict = Verdict(list(self.wrong))
        digests = [EMPTY]
        for record in final:
            digests.append(chained(digests[-1], (record,)))
        places = {record: number for number, record in enumerate(final)}
        if len(places) < len(final):
            verdict.wrong.append("a record was appended twice")
        operations = []
        for call in self._calls:
            action = _action(call, digests, places)
            if action is not None:
                operations.append(Operation(call.called, call.returned, action, f"{call.client}, {call.what}"))
        end = TailIs(len(final), digests[-1])
        operations.append(Operation(self._next(), self._next(), end, "the last read"))
        found = verdict.linearization = linearize(operations, StreamState())
        if not found.is_complete:
            verdict.wrong.append(str(found))
        return verdict


def _action(call: Call, digests: list[bytes], places: dict[bytes, int]) -> Action | None:
    """What the call has done; None if it has not been done, or has told nothing."""
    if call.is_void:
        return None
    match call.outcome:
        case TailIs():
            return call.outcome
        case Seen(start, records, is_all):
            before = digests[start] if start < len(digests) else b"no such record"
            digest = chained(before, records)
            is_true = call.outcome.end < len(digests) and digests[call.outcome.end] == digest
            # Records that the stream never had are a state that it never had.
            return TailIs(call.outcome.end, digest) if is_all or not is_true else TailIsBehind(call.outcome.end)
        case None if call.append is not None:
            start_at = places.get(call.append.records[0])
            if start_at is None:
                return None
            return call.append.seen(Acknowledged(start_at, start_at + len(call.append.records)))
        case None:
            return None
        case outcome:
            assert call.append is not None
            return call.append.seen(outcome)
