"""Reads whose bytes are on disk: the origin confirms the stream, and then runs go from disk to the tape.

Runs on disk are used only for a stream in memory that they are bound to (`gateway.disk.runs`).  A stream that has just
come to memory has no runs bound to it, for example after a restart.  The first read whose bytes are on disk then sends
one request for the bytes after the *check* of the latest run.  This request is an ordinary fetch: its reply states the
facts about the stream, and its bytes are stored on the tape.  If they begin with the bytes on disk, the runs are bound
to the stream.  If the origin sends other bytes, or refuses the request, the runs are dropped from disk.

From then on, runs are put on the tape where a read misses bytes.  All rules for bytes in memory apply to them, so the
origin also has to confirm the offset at which a read starts (`gateway.engine.confirming`), which shows trimmed bytes.
"""

from __future__ import annotations

from typing import Final

from gateway.disk.runs import Run, StoredStream
from gateway.disk.store import DiskStore
from gateway.engine.fetch_table import FetchTable
from gateway.engine.flight_bodies import Comparison
from gateway.engine.read import Read
from gateway.protocol.json_body import NotAnArray
from gateway.protocol.names import NOW, START, is_before
from gateway.protocol.sharing import StreamKey
from gateway.tape.block import Block
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import Beyond, Head, NotShareable, OriginError, StreamHead

LEAST_SPARED_BYTES: Final = 1 << 17
"""A read has runs confirmed only if at least this many bytes on disk follow its start.  Fewer bytes are fetched."""


class FromDisk:
    """Brings bytes from disk to tapes.  Keeps no state of its own."""

    def __init__(self, disk: DiskStore, store: TapeStore, fetches: FetchTable) -> None:
        self._disk = disk
        self._store = store
        self._fetches = fetches

    def may_help(self, key: StreamKey, start: str) -> bool:
        """Return whether bytes on disk may spare the origin the bytes after `start`."""
        stored = self._disk.find(key)
        return stored is not None and self._is_worth_asking(stored, start)

    @staticmethod
    def _is_worth_asking(stored: StoredStream, start: str) -> bool:
        latest = stored.latest
        if start == NOW or latest is None:
            return False
        start = _first(stored, start)
        # If the check is the start of the run, the origin sends the whole run again.
        again = latest.body if latest.check == latest.start else 0
        return is_before(start, latest.check) and stored.body_from(start) - again >= LEAST_SPARED_BYTES

    async def confirm(self, read: Read, stream: Stream) -> StreamHead | None:
        """Have the origin confirm the stream's bytes on disk if the read has use for them.

        Returns the origin's answer if it was asked for this read and has confirmed the bytes, else None.
        """
        stored = self._disk.find(stream.key)
        if stored is None or stored.is_bound_to(stream) or stream.tape.knows_after(read.start):
            return None
        latest = stored.latest
        if latest is None or not self._is_worth_asking(stored, read.start):
            return None
        stored.asking += 1
        try:
            check, head, is_own = latest.check, None, False
            earlier = await self._fetches.join_earlier(stream, check, read.route, read.source.client)
            if earlier is not None:
                head = earlier.error or earlier.head
            if not isinstance(head, StreamHead):
                head, is_own = await self._fetches.fresh_head(stream, check, read.route, read.source), True
            if stored.is_withdrawn or stream.ended is not None:
                return None
            if stored.is_bound_to(stream):
                # Another read has compared the bytes meanwhile.
                return head if is_own and isinstance(head, StreamHead) else None
            if not isinstance(head, StreamHead):
                if _is_refusal(head):
                    self._refute(stored)
                return None
            if not await self._agrees(stored, stream, head):
                return None
            return head if is_own else None
        finally:
            stored.asking -= 1

    async def _agrees(self, stored: StoredStream, stream: Stream, head: StreamHead) -> bool:
        """Compare the bytes on the tape with the end of the latest run; bind the runs to the stream if they agree."""
        incarnation, run = stream.version.incarnation, stored.latest
        block = await self._disk.read(stored, run) if run is not None else None
        if stored.is_withdrawn or stream.ended is not None or stream.version.incarnation != incarnation:
            return False
        if block is None or run is None:
            # The run is damaged.  A later read has an earlier run confirmed.
            return False
        facts = stored.facts
        if (
            facts.content_type != stream.content_type
            or (None not in (facts.identity, stream.identity) and facts.identity != stream.identity)
            or not is_same(stream.tape, block, run, head)
        ):
            self._refute(stored)
            return False
        stored.incarnation = incarnation
        if facts.varies_by_origin:
            self._store.vary_by_origin(stream)
        if facts.surrogate_keys:
            self._store.tag(stream, facts.surrogate_keys)
        return stored.is_bound_to(stream)

    def _refute(self, stored: StoredStream) -> None:
        if self._disk.drop(stored):
            self._disk.counts.refuted += 1

    async def restore(self, stream: Stream, at: str) -> bool:
        """Put the run with the bytes after `at` on the tape; return whether the tape has bytes after `at` now."""
        stored = self._disk.find(stream.key)
        if stored is None or not stored.is_bound_to(stream):
            return False
        tape, start = stream.tape, _first(stored, at)
        if start != at and not tape.knows_after(at):
            # The start sentinel leads to the first token without bytes in between.
            self._store.store(stream, at, start, (), 0.0)
        if (run := stored.at(start)) is None:
            return False
        block = await self._disk.read(stored, run)
        if block is None or not stored.is_bound_to(stream) or tape.is_indexed(start):
            return stream.ended is None and tape.knows_after(at)
        marks = block.marks
        first = next((number for number, (_, token) in enumerate(marks) if token == start), None)
        if first is None:
            return False
        # Leave out the bytes that the tape has already.
        known = ((place, token) for place, token in marks[first + 1 :] if tape.is_indexed(token))
        stop, end = next(known, (block.size, block.end))
        self._store.restore(stream, block.part(marks[first][0], start, stop, end))
        return tape.knows_after(at)


def _first(stored: StoredStream, start: str) -> str:
    """Return the token to which `start` leads."""
    first = stored.facts.first
    return first if start == START and first is not None else start


def is_same(tape: Tape, block: Block, run: Run, head: StreamHead) -> bool:
    """Return whether the bytes on the tape after the check of the run, which the origin has just sent, are those in
    `block`, as far as both go."""
    places = {token: position for position, token in block.marks}
    position, stop, end = places.get(run.check), block.size, run.end
    if position is None or not tape.is_indexed(run.check):
        return False
    if is_before(head.next_offset, run.end):
        # The origin has divided the bytes in another way, or the stream is shorter now.
        end = head.next_offset
        found = places.get(end)
        if found is None or head.up_to_date or head.is_closed:
            return False
        stop = found
    pieces = block.cut(position, stop).pieces
    comparison = Comparison(tape, run.check, end, None)
    try:
        for piece in (b"[", *pieces, b"]") if tape.is_json else pieces:
            comparison.feed(piece)
        comparison.finish()
    except NotAnArray:
        return False
    return comparison.agrees


def _is_refusal(head: Head) -> bool:
    """Return whether the origin has answered that it does not have these bytes, or may not share them."""
    return isinstance(head, Beyond | NotShareable) or (
        isinstance(head, OriginError) and head.status < 500 and head.status != 429
    )
