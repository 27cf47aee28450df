"""SSE from a read session: one session at the origin for each SSE answer.

The engine requests one such answer for a stream, however many live readers it has.  A batch of the session becomes a
data event and a control event.  A heartbeat becomes a comment.  The first heartbeat that shows that the position is the
tail becomes a control event.

The answer ends regularly in three cases: the session is lost, the origin ends or refuses the session, or the next
records have been trimmed.  The engine then sends another request from its position, and gets the reason in the answer
to that request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from gateway.aio.tasks import Tasks
from gateway.bridge.content import page_of
from gateway.bridge.origin import check_run
from gateway.bridge.reads import TRIMMED, tail_of
from gateway.bridge.replies import BridgedRequest, Made, MadeBody, refusal, text
from gateway.bridge.streams import KnownSighting, offset_at
from gateway.errors import GatewayError, UpstreamBroken
from gateway.protocol.names import NOW, SSE_DATA_ENCODING, SSE_TYPE, START
from gateway.protocol.sse import HEARTBEAT, Control, encode_control, encode_data
from gateway.s2 import protobuf
from gateway.s2.records import ReadBatch
from gateway.s2.session import BadFrame, FrameReader, Terminal
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import AtTail, S2Refused, ended_with

REPLACED: Final = text(410, "The stream has been created again")


class _Lost(Exception):
    """The next records have been trimmed."""


class _Replaced(Exception):
    """The session reads another stream than the known stream."""


class _Ended(Exception):
    """The origin has ended the session with an error."""

    def __init__(self, refused: S2Refused) -> None:
        super().__init__(refused.status)
        self.refused = refused


async def open_sse(asked: BridgedRequest, tasks: Tasks) -> Made:
    """Open an SSE answer; `tasks` run its session.  Raises BadOffset or a GatewayError."""
    if asked.start_offset == NOW:
        tail = await tail_of(asked)
        if isinstance(tail, S2Refused):
            return refusal(tail)
        place = tail.seq_num
    else:
        place = asked.place
    sighting = asked.call.sighting
    events = _Events(asked, place, sighting.known())
    is_beyond_end = sighting.closed_at is not None and sighting.closed_at < place
    if is_beyond_end:
        refused = await asked.call.recognise()
        if refused is not None:
            return refusal(refused)
        events = _Events(asked, place, sighting.known())
    if (closed_at := sighting.closed_at) is not None and closed_at < place:
        return _ended(asked, closed_at, is_closed=True)
    session = await asked.call.session(events.start_seq_num, asked.lifetime_s)
    if isinstance(session, S2Refused):
        return refusal(session)
    if isinstance(session, AtTail):
        return _ended(asked, session.tail.seq_num, is_closed=False)
    batches = _batches(session)
    try:
        # The first batch shows whether the records exist, while an error can still be sent as a status.
        first = await anext(batches, None)
        if first is not None and events.is_doubtful(first) and (refused := await asked.call.recognise(events.known)):
            await batches.aclose()
            return refusal(refused)
        data = b"" if first is None else events.events_of(first)
    except _Lost:
        await batches.aclose()
        return TRIMMED
    except _Replaced:
        await batches.aclose()
        return REPLACED
    except _Ended as ended:
        return refusal(ended.refused)
    except BaseException:
        await batches.aclose()
        raise
    if first is None:
        raise UpstreamBroken("Origin ended a session before its first batch")
    body = MadeBody(lambda: running.cancel())
    body.write(data)
    running = tasks.start(_run(batches, events, body), f"S2 session of {asked.call.name.stream}")
    return _sse(asked, body)


def _sse(asked: BridgedRequest, body: MadeBody | bytes) -> Made:
    headers = {"Content-Type": SSE_TYPE, "Cache-Control": "no-cache"}
    if asked.content.is_base64:
        headers[SSE_DATA_ENCODING] = "base64"
    return Made(200, headers, body)


def _ended(asked: BridgedRequest, tail: int, *, is_closed: bool) -> Made:
    """Return the answer to a read from an offset beyond the tail.  The answer states the tail and ends."""
    control = Control(offset_at(tail), asked.next_cursor(), True, is_closed)
    return _sse(asked, encode_control(control))


async def _batches(session: Reply) -> AsyncGenerator[ReadBatch]:
    """Yield the batches of a session.  Raises _Ended if the session ends with an error, or a GatewayError if the
    session is lost."""
    frames = FrameReader()
    async with session:
        async for chunk in session.chunks():
            try:
                for frame in frames.feed(chunk):
                    if isinstance(frame, Terminal):
                        ended = ended_with(frame.status, frame.body)
                        if ended.is_draining:
                            session.retire()
                        raise _Ended(ended)
                    yield protobuf.decode_read_batch(frame.body)
                    if frame.is_reconnect_advised:
                        session.retire()
                        return
            except (BadFrame, protobuf.BadProtobuf) as error:
                raise UpstreamBroken from error


class _Events:
    """Converts the batches of one session to events, and tracks the answer's position.

    If the record before the position is known, the session also reads that record.  The record's timestamp shows
    whether the stream was re-created.
    """

    def __init__(self, asked: BridgedRequest, place: int, known: KnownSighting) -> None:
        self._asked = asked
        self._at = place
        self.known = known
        """The state of the stream as known when the session was requested."""
        position = known.position
        self._overlap = position if position is not None and 0 < place == position.seq_num else None
        """The position after the record that is read again; None once records have arrived."""
        self._is_begun = False
        self._is_told = False
        """Whether the latest control event has stated that the client is at the tail."""
        self.is_closed = False

    @property
    def start_seq_num(self) -> int:
        """The sequence number at which the session must start."""
        return self._at if self._overlap is None else self._at - 1

    def is_doubtful(self, first: ReadBatch) -> bool:
        """Return whether, judging by its first batch, the session may be reading a re-created stream."""
        return bool(first.records) and not self.known.is_shown_by(first.records)

    def events_of(self, batch: ReadBatch) -> bytes:
        """Return the events for the next batch.  Raises _Lost or _Replaced."""
        asked, tail, records = self._asked, batch.tail, batch.records
        if not self._is_begun and asked.call.sighting.known().incarnation != self.known.incarnation:
            raise _Replaced
        if not records:
            if tail is None:
                return HEARTBEAT
            self._reach(tail.seq_num)
            return HEARTBEAT if self._is_told else self._control(up_to_date=True)
        check_run(records, 0)
        # A session reads one stream only, and its first batch has been checked.
        asked.call.sighting.saw_records(self.known, records, is_proof=True)
        if self._overlap is not None and records[0].seq_num == self._overlap.seq_num - 1:
            if asked.call.sighting.known().incarnation != self.known.incarnation:
                raise _Replaced
            records = records[1:]
        self._overlap = None
        if not records:
            return b""
        starts_anywhere = not self._is_begun and asked.start_offset == START
        self._reach(records[0].seq_num)
        page = page_of(records)
        asked.add_page(page)
        content = page.records
        if page.trimmed > self._at:
            # S2 removes trimmed records only after a while.  Leave them out, or the gateway would cache them.
            if not starts_anywhere:
                raise _Lost
            content = tuple(record for record in content if record.seq_num >= page.trimmed)
        data = b""
        if content:
            data = encode_data(asked.content.body(content), base64=asked.content.is_base64)
        self._at, self.is_closed = page.end, page.is_closed
        return data + self._control(up_to_date=tail is not None and tail.seq_num == page.end)

    def _reach(self, seq_num: int) -> None:
        """Move to the position at which the origin continues; all records in between have been trimmed."""
        if seq_num < self._at:
            raise _Replaced
        if seq_num > self._at:
            self._asked.on_trim(seq_num)
            if self._is_begun or self._asked.start_offset != START:
                raise _Lost
        self._is_begun = True
        self._at = seq_num

    def _control(self, *, up_to_date: bool) -> bytes:
        self._is_told = up_to_date
        cursor = self._asked.next_cursor()
        return encode_control(Control(offset_at(self._at), cursor, up_to_date, self.is_closed))


async def _run(batches: AsyncGenerator[ReadBatch], events: _Events, body: MadeBody) -> None:
    """Write the events of a session until it ends."""
    try:
        async with aclosing(batches):
            while not events.is_closed:
                await body.room()
                batch = await anext(batches, None)
                if batch is None:
                    break
                body.write(events.events_of(batch))
    except (GatewayError, _Ended, _Lost, _Replaced):
        pass
    finally:
        body.finish()
