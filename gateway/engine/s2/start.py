"""Where a read starts."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.s2.origin import AtTail, Found, Refused
from gateway.engine.s2.stream import S2Stream
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import StreamPosition
from gateway.tape.records import Limits


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence number at which a read starts."""

    at: int
    tail: StreamPosition | None = None
    """The tail, if a question sent since the request arrived has found it here or before."""


def if_at(at: int, tail: StreamPosition | None) -> StreamPosition | None:
    """The tail, if it is here."""
    return tail if tail is not None and tail.seq_num == at else None


async def start_of(stream: S2Stream, query: ReadQuery, trust_s: float) -> Started | Refused:
    """Where a read starts; `trust_s` as in `S2Read`.  Raises a GatewayError."""
    match query.start:
        case FromSeqNum(seq_num):
            return Started(seq_num)
        case FromTailOffset(tail_offset):
            tail = stream.trusted_tail(trust_s) or await stream.tail()
            if isinstance(tail, Refused):
                return tail
            at = max(0, tail.seq_num - tail_offset)
            return Started(at, if_at(at, tail))
        case FromTimestamp(timestamp):
            return await _start_at(stream, query, timestamp)


async def _start_at(stream: S2Stream, query: ReadQuery, timestamp: int) -> Started | Refused:
    while True:
        at = stream.tape.at_timestamp(timestamp)
        if at is not None:
            return Started(at)
        fetched = await stream.fetch(FromTimestamp(timestamp), Limits(query.count))
        match fetched.outcome:
            case Refused() as refused:
                return refused
            case Found(records):
                return Started(records[0].seq_num)
            case AtTail(tail) if fetched.is_fresh:
                # A timestamp after the tail's is like a number after it; else no record that late is left.
                beyond = timestamp > tail.timestamp and not query.is_clamped
                return Started(tail.seq_num + 1 if beyond else tail.seq_num, tail)
            case _:
                pass


def limits_of(query: ReadQuery) -> Limits:
    """The limits of a read."""
    return Limits(query.count, query.bytes, query.until)
