"""The query of a read (S2's API reference, "Read records").

A read starts at a sequence number, at a timestamp, or at a number of records before the tail, by default 0.  It ends at
the first of its limits: `count` records, `bytes` metered bytes (`records.py`), or a record at or after `until`.  A
record that would exceed a limit is not delivered.  With `clamp`, a start beyond the tail is moved to the tail.

`wait` is how long, in seconds, a read that has reached the tail waits for more.  Without `wait`, a read with limits
does not wait, and a read without limits waits forever.  A unary read always has limits, and waits at most 60 s
(`unary`).

S2 refuses a parameter that is not a number with 400 `bad_query`, and contradictory parameters with 422 `invalid`.  It
ignores unknown parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, urlencode

from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, MAX_U64, parse_u64
from gateway.s2.sse import EventId

MAX_UNARY_WAIT_S: Final = 60
"""The longest wait of a unary read, whatever its query says."""

_MAX_WAIT_S: Final = 2**32 - 1

_STARTS: Final = ("seq_num", "timestamp", "tail_offset")
_LIMITS: Final = ("count", "bytes", "until", "wait")


class BadQuery(ValueError):
    """A parameter of a read has the wrong type or is repeated (400 `bad_query`)."""


class InvalidQuery(BadQuery):
    """Parameters of a read contradict each other (422 `invalid`)."""


@dataclass(frozen=True, slots=True)
class FromSeqNum:
    """Start at a sequence number, or at the first remaining record after it."""

    seq_num: int


@dataclass(frozen=True, slots=True)
class FromTimestamp:
    """Start at the first record at or after a timestamp."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class FromTailOffset:
    """Start this many records before the tail."""

    tail_offset: int


Start = FromSeqNum | FromTimestamp | FromTailOffset


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """The parameters of a read.  None means no limit; `bytes` are metered, and `until` is exclusive."""

    start: Start = FromTailOffset(0)
    count: int | None = None
    bytes: int | None = None
    until: int | None = None
    wait_s: int | None = None
    is_clamped: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether the read has a limit."""
        return not (self.count is None and self.bytes is None and self.until is None)

    @property
    def longest_wait_s(self) -> int | None:
        """How long the read waits at the tail, in seconds; None means forever."""
        return 0 if self.wait_s is None and self.is_bounded else self.wait_s

    @property
    def may_start_at_tail(self) -> bool:
        """Whether S2 accepts a start at the tail: the read may wait there, or has no limits.

        A read without limits and with a wait of 0 ends at the tail at once.
        """
        return not self.is_bounded or bool(self.wait_s)

    def unary(self) -> ReadQuery:
        """Return this read with the limits of a unary answer: 1,000 records, 1 MiB, and a wait of 60 s."""
        return replace(
            self,
            count=MAX_BATCH_RECORDS if self.count is None else min(self.count, MAX_BATCH_RECORDS),
            bytes=MAX_BATCH_METERED_BYTES if self.bytes is None else min(self.bytes, MAX_BATCH_METERED_BYTES),
            wait_s=None if self.wait_s is None else min(self.wait_s, MAX_UNARY_WAIT_S),
        )

    def resumed(self, last: EventId) -> ReadQuery:
        """Return the rest of the read after a response whose last event was `last`."""
        return replace(
            self,
            start=FromSeqNum(min(last.seq_num + 1, MAX_U64)),
            count=None if self.count is None else max(self.count - last.count, 0),
            bytes=None if self.bytes is None else max(self.bytes - last.bytes, 0),
        )


def parse_read_query(query: str) -> ReadQuery:
    """Parse a query string, without its question mark.  Raises `BadQuery`."""
    texts: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in texts and (name == "clamp" or name in _STARTS or name in _LIMITS):
            raise BadQuery(f"{name} comes twice")
        texts[name] = text
    starts = [name for name in _STARTS if name in texts]
    if len(starts) > 1:
        # Like S2, report wrong types before contradictions.
        for name in starts:
            _number(texts, name)
        raise InvalidQuery(f"a read starts at one of {', '.join(_STARTS)}")
    wait_s = _number(texts, "wait")
    if wait_s is not None and wait_s > _MAX_WAIT_S:
        raise BadQuery(f"wait is at most {_MAX_WAIT_S}")
    clamp = texts.get("clamp", "false")
    if clamp not in ("true", "false"):
        raise BadQuery("clamp is true or false")
    found = ReadQuery(
        _start(texts),
        _number(texts, "count"),
        _number(texts, "bytes"),
        _number(texts, "until"),
        wait_s,
        clamp == "true",
    )
    if isinstance(found.start, FromTimestamp) and found.until is not None and found.start.timestamp >= found.until:
        raise InvalidQuery("timestamp is not before until")
    return found


def encode_read_query(query: ReadQuery) -> str:
    """Return the query string of a read, without a question mark."""
    parameters: list[tuple[str, object]] = []
    match query.start:
        case FromSeqNum(seq_num):
            parameters.append(("seq_num", seq_num))
        case FromTimestamp(timestamp):
            parameters.append(("timestamp", timestamp))
        case FromTailOffset(tail_offset):
            parameters.append(("tail_offset", tail_offset))
    limits = zip(_LIMITS, (query.count, query.bytes, query.until, query.wait_s), strict=True)
    parameters += [(name, value) for name, value in limits if value is not None]
    if query.is_clamped:
        parameters.append(("clamp", "true"))
    return urlencode(parameters)


def _start(texts: dict[str, str]) -> Start:
    if (seq_num := _number(texts, "seq_num")) is not None:
        return FromSeqNum(seq_num)
    if (timestamp := _number(texts, "timestamp")) is not None:
        return FromTimestamp(timestamp)
    return FromTailOffset(_number(texts, "tail_offset") or 0)


def _number(texts: dict[str, str], name: str) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    number = parse_u64(text)
    if number is None:
        raise BadQuery(f"{name} is not an unsigned integer of 64 bits")
    return number
