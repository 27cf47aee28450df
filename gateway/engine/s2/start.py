"""Where a read starts."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.s2.answer import S2Read
from gateway.engine.s2.stream import S2Stream
from gateway.errors import UpstreamBroken
from gateway.protocol.cache_status import Outcome
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import StreamPosition
from gateway.tape.records import Limits
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused


@dataclass(frozen=True, slots=True)
class S2Start:
    """The sequence number at which a read starts."""

    at: int
    tail: StreamPosition | None = None
    """The tail, if it was asked for since the request arrived."""
    outcome: Outcome = Outcome.HIT
    """How it was found."""

    @property
    def is_at_tail(self) -> bool:
        """Whether this is known to be the tail, or beyond it."""
        return self.tail is not None and self.at >= self.tail.seq_num


def if_at(at: int, tail: StreamPosition | None) -> StreamPosition | None:
    """The tail, if it is here."""
    return tail if tail is not None and tail.seq_num == at else None


async def start_of(stream: S2Stream, query: ReadQuery, read: S2Read) -> S2Start | S2Refused:
    """Where a read starts.  Raises a GatewayError."""
    match query.start:
        case FromSeqNum(seq_num):
            return S2Start(seq_num)
        case FromTailOffset(tail_offset):
            trusted = stream.trusted_tail(read.trust_s)
            tail = trusted or await stream.tail(read.client)
            if isinstance(tail, S2Refused):
                return tail
            outcome = Outcome.REVALIDATED if trusted is None else Outcome.HIT
            return S2Start(max(0, tail.seq_num - tail_offset), tail, outcome)
        case FromTimestamp(timestamp):
            return await _start_at(stream, query, timestamp, read.client)


async def _start_at(stream: S2Stream, query: ReadQuery, timestamp: int, client: str) -> S2Start | S2Refused:
    outcome = Outcome.HIT
    while True:
        at = stream.tape.at_timestamp(timestamp)
        if at is not None:
            return S2Start(at, outcome=outcome)
        fetched = await stream.fetch_or_tail(FromTimestamp(timestamp), Limits(query.count), client)
        outcome = Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
        match fetched.outcome:
            case S2Refused() as refused:
                return refused
            case FoundRecords(records) if records:
                return S2Start(records[0].seq_num, outcome=outcome)
            case AtTail(tail) if fetched.is_fresh:
                # A timestamp after the tail's is like a number after it; else no record that late is left.
                beyond = timestamp > tail.timestamp and not query.is_clamped
                return S2Start(tail.seq_num + 1 if beyond else tail.seq_num, tail, Outcome.REVALIDATED)
            case FoundRecords() if fetched.is_fresh:
                raise UpstreamBroken("Origin answered a read with neither records nor the tail")
            case _:
                pass


def limits_of(query: ReadQuery) -> Limits:
    """The limits of a read."""
    return Limits(query.count, query.bytes, query.until)
