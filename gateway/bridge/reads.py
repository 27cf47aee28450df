"""Metadata, catch-up and long-poll reads, each by unary S2 reads.

A catch-up read takes pages until the origin has no more records, or until the answer is large enough.  Only in the
first case is the answer up to date.  A read from before the trim point is answered with 410, unless it starts at the
beginning of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.bridge.content import is_close, page_of, trimmed_by
from gateway.bridge.replies import NO_STORE, BridgedRequest, Made, position_headers, refusal, text
from gateway.bridge.streams import offset_at
from gateway.errors import UpstreamBroken
from gateway.protocol.names import START, STREAM_CURSOR, STREAM_UP_TO_DATE
from gateway.s2.read_query import FromSeqNum, ReadQuery
from gateway.s2.records import Record, is_command, total_metered_bytes
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused

MOST_ANSWER_BYTES: Final = 1024 * 1024
"""An answer that has this size, in metered bytes, ends even before the tail."""

MOST_ANSWER_PAGES: Final = 16
"""An answer that has this many pages ends even before the tail.  Pages may be small, or consist of commands, which are
not part of the answer."""

_LOOK_BACK: Final = 64
"""How many records to search for the close marker, if commands were appended after it."""

TRIMMED: Final = text(410, "The records after this offset have been trimmed")


_MOST_BEGINNINGS: Final = 3
"""How many times an answer is started before it fails because the stream is re-created each time."""


class _CreatedAgain(UpstreamBroken):
    """The stream was re-created while it was read."""

    def __init__(self) -> None:
        super().__init__("Stream was created again while it was read")


@dataclass(frozen=True, slots=True)
class Tail:
    """The present tail of a stream."""

    seq_num: int
    is_closed: bool


@dataclass(slots=True)
class _Answer:
    """An answer to a read that is being assembled."""

    start: int
    end: int = field(init=False)
    records: list[Record] = field(default_factory=list)
    pages: int = 0
    size: int = 0
    """The metered bytes of the records of all pages."""
    up_to_date: bool = False
    is_closed: bool = False
    is_lost: bool = False
    """Whether records after the requested offset have been trimmed."""
    identity: str = ""
    """The incarnation (one life) of the stream to which the pages belong; empty before the first page."""

    def __post_init__(self) -> None:
        self.end = self.start

    @property
    def is_over(self) -> bool:
        """Whether no page is to be added, because the answer is complete or full."""
        is_full = self.size >= MOST_ANSWER_BYTES or self.pages >= MOST_ANSWER_PAGES
        return self.up_to_date or self.is_lost or is_full


async def tail_of(asked: BridgedRequest) -> Tail | S2Refused:
    """Return where the stream ends now.  Raises a GatewayError.

    The last record shows whether the stream is closed.  That record is read from the origin only if it is not known
    yet.  The read has a size limit, so that the body of a large record is not transferred.
    """
    call, sighting = asked.call, asked.call.sighting
    tail = await call.tail()
    if isinstance(tail, S2Refused):
        return tail
    if sighting.closed_at is not None and not sighting.has_read_to(tail):
        # There are records after the close marker, or the stream was re-created.
        refused = await call.recognise()
        if refused is not None:
            return refused
    if not sighting.has_read_to(tail):
        looks_back = sighting.closed_at is not None
        if not looks_back:
            last = await call.command_at(tail.seq_num - 1)
            if isinstance(last, S2Refused):
                return last
            # The last record is another command, such as a trim, which may follow the close marker.
            looks_back = last is not None and is_command(last) and not is_close(last)
        refused = await _look_back(asked, tail.seq_num) if looks_back else None
        if refused is not None:
            return refused
    closed_at = sighting.closed_at
    return Tail(tail.seq_num, False) if closed_at is None else Tail(closed_at, True)


async def _look_back(asked: BridgedRequest, tail: int) -> S2Refused | None:
    """Read the last records, to find the close marker and trims."""
    outcome = await asked.call.read(ReadQuery(FromSeqNum(max(0, tail - _LOOK_BACK)), count=_LOOK_BACK))
    if isinstance(outcome, S2Refused):
        return outcome
    if isinstance(outcome, FoundRecords) and (trimmed := trimmed_by(outcome.records)):
        asked.on_trim(trimmed)
    return None


async def head(asked: BridgedRequest) -> Made:
    """Answer a request for metadata.  Raises a GatewayError."""
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    return _made(asked, _Answer(tail.seq_num, is_closed=tail.is_closed), is_head=True)


async def now(asked: BridgedRequest) -> Made:
    """Answer a catch-up read with `offset=now`.  Raises a GatewayError."""
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    made = _made(asked, _Answer(tail.seq_num, up_to_date=True, is_closed=tail.is_closed))
    del made.headers["ETag"]
    made.headers["Cache-Control"] = NO_STORE
    return made


async def catch_up(asked: BridgedRequest) -> Made:
    """Answer a catch-up read.  Raises BadOffset or a GatewayError."""
    for _ in range(_MOST_BEGINNINGS):
        answer = _Answer(asked.place)
        try:
            refused = await _read_on(asked, answer)
        except _CreatedAgain:
            continue
        return _made(asked, answer) if refused is None else refusal(refused)
    raise _CreatedAgain


async def long_poll(asked: BridgedRequest) -> Made:
    """Answer a long-poll.  Raises BadOffset or a GatewayError."""
    return await _poll(asked, asked.place)


async def long_poll_now(asked: BridgedRequest) -> Made:
    """Answer a long-poll with `offset=now`.  Raises a GatewayError."""
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    # For a closed stream, the read at its end returns at once.
    return await _poll(asked, tail.seq_num)


async def _poll(asked: BridgedRequest, place: int) -> Made:
    answer = _Answer(place)
    outcome = await asked.call.read_from(place, asked.wait_s)
    if isinstance(outcome, S2Refused):
        return refusal(outcome)
    _take(asked, answer, outcome)
    refused = await _read_on(asked, answer)
    if refused is not None:
        return refusal(refused)
    made = _made(asked, answer)
    if made.status == 200:
        if answer.up_to_date and not answer.records:
            made = Made(204, made.headers)
            del made.headers["Content-Type"], made.headers["ETag"]
        if not answer.is_closed:
            made.headers[STREAM_CURSOR] = asked.next_cursor()
    return made


async def _read_on(asked: BridgedRequest, answer: _Answer) -> S2Refused | None:
    """Add pages until the tail, or until the answer is large enough."""
    while not answer.is_over:
        outcome = await asked.call.read_from(answer.end)
        if isinstance(outcome, S2Refused):
            return outcome
        _take(asked, answer, outcome)
    return None


def _take(asked: BridgedRequest, answer: _Answer, outcome: FoundRecords | AtTail) -> None:
    """Add one page, or use the known end of a closed stream.

    Raises _CreatedAgain if the page belongs to another stream than the earlier pages.
    """
    place, identity = answer.end, asked.call.sighting.identity
    if answer.identity not in ("", identity):
        raise _CreatedAgain
    answer.identity = identity
    closed_at = asked.call.sighting.closed_at
    if closed_at is not None and closed_at <= place:
        # The read is at the end or beyond it.  An S2 writer may have appended records there, which are ignored.
        answer.end, answer.up_to_date, answer.is_closed = closed_at, True, True
        return
    first = outcome.tail.seq_num if isinstance(outcome, AtTail) else outcome.records[0].seq_num
    if first > place:
        asked.on_trim(first)
        if asked.start_offset != START or answer.records:
            answer.is_lost = True
            return
    match outcome:
        case _ if closed_at is not None and closed_at < first:
            answer.end, answer.up_to_date, answer.is_closed = closed_at, True, True
        case AtTail(tail):
            # If the tail is before the requested position, the stream may have been re-created; the engine checks.
            answer.end, answer.up_to_date = tail.seq_num, True
        case FoundRecords(records, tail):
            page = page_of(records)
            asked.add_page(page)
            answer.records += page.records
            answer.pages += 1
            answer.size += total_metered_bytes(page.records)
            answer.end, answer.is_closed = page.end, page.is_closed
            answer.up_to_date = page.is_closed or (tail is not None and tail.seq_num == page.end)
            if page.trimmed > answer.start:
                # S2 removes trimmed records only after a while.  Leave them out, or the gateway would cache them.
                answer.records = [record for record in answer.records if record.seq_num >= page.trimmed]
                if asked.start_offset != START:
                    answer.records, answer.is_lost = [], True


def _made(asked: BridgedRequest, answer: _Answer, *, is_head: bool = False) -> Made:
    if answer.is_lost and not answer.records:
        return TRIMMED
    content = asked.content
    headers = {
        "Content-Type": content.content_type,
        "ETag": asked.etag(offset_at(answer.end), is_closed=answer.is_closed),
        **position_headers(answer.end, up_to_date=answer.up_to_date, is_closed=answer.is_closed),
    }
    if is_head:
        headers.pop(STREAM_UP_TO_DATE, None)
        headers["Cache-Control"] = NO_STORE
        return Made(200, headers)
    return Made(200, headers, content.body(answer.records))
