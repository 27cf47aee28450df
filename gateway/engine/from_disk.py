"""Reads of bytes on disk: the gateway confirms a part of the bytes at the origin, then copies runs to the tape.

A *proof* is a comparison of the bytes on disk after a token with the bytes that the origin sends for this token.  It
succeeds if enough bytes are equal.  If fewer bytes follow the token on disk, all of them must be equal.  A proof may
need several requests.  Each request is an ordinary fetch, whose bytes are stored on the tape.  The proof compares the
reply's own bytes, because the tape may already have other bytes at this position.  If the proof fails, the read fetches
its bytes from the origin.  An equal identifier of the incarnation would prove nothing, because some origins derive the
identifier from the path (`gateway.protocol.etag.stream_identity`).

Runs on disk are used only for the stream in memory to which they are bound (`gateway.disk.runs`).  A stream that is new
in memory has no bound runs, for example after a restart.  The first read of bytes that are on disk therefore makes a
proof of the last bytes of the runs, which starts at their *check*.  If this proof succeeds, the runs are bound to the
stream.

A run is copied to the tape only if there is a proof for its position.  The proof must start there, or at most
`STRETCH_BYTES` earlier with no gap between them.  If there is no such proof, the read makes one, but only after a valid
proof of the last bytes.  A proof is valid for as long as a confirmation of bytes in memory (`Stream.reusable_s`).
After the copy, all rules for bytes in memory apply to the run.

The stream is dropped from disk if the origin sends other bytes, states an earlier tail, or does not have the bytes
(404, 410).  Other errors change nothing, because they may concern only one reader.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gateway.aio.clock import Clock
from gateway.aio.signal import Signal
from gateway.disk.runs import CHECK_BYTES, Proof, StoredStream
from gateway.disk.store import DiskStore
from gateway.engine.fetch_table import FetchTable
from gateway.engine.flight_bodies import MOST_COMPARED, Comparison
from gateway.engine.read import Read
from gateway.errors import GatewayError
from gateway.protocol.json_body import NotAnArray
from gateway.protocol.names import NOW, START, is_before
from gateway.protocol.sharing import StreamKey
from gateway.tape.block import Block
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import PROOF, Beyond, Head, OriginError, StreamHead, as_seen_by

LEAST_SPARED_BYTES: Final = 1 << 17
"""A read makes a proof only if at least this many bytes on disk follow the read's start.  Fewer bytes are fetched."""
STRETCH_BYTES: Final = 1 << 22
"""The maximum number of bytes from a proof to the run that needs it, counted in whole runs.  With the default settings,
this is the size of the largest answer."""
MOST_ASKED: Final = 16
"""The maximum number of requests for one proof.  If an origin's replies are too short for this, the proof fails, and
the read fetches its bytes."""


class _Compared(NamedTuple):
    """The result of one request of a proof."""

    head: Head
    size: int = 0
    """The number of bytes that were compared."""
    differs: bool = False
    is_past: bool = False
    """Whether the reply goes beyond the end of the run."""


class FromDisk:
    """Copies bytes from disk to tapes.  Keeps no state of its own."""

    def __init__(self, disk: DiskStore, store: TapeStore, fetches: FetchTable, clock: Clock) -> None:
        self._disk = disk
        self._store = store
        self._fetches = fetches
        self._clock = clock

    def may_help(self, key: StreamKey, start: str) -> bool:
        """Return whether bytes on disk may save a fetch of the bytes after `start`."""
        stored = self._disk.usable(key)
        return stored is not None and self._is_worth_asking(stored, start)

    @staticmethod
    def _is_worth_asking(stored: StoredStream, start: str) -> bool:
        check = stored.check
        if start == NOW or check is None:
            return False
        start, run = _first(stored, start), stored.at(check)
        # If the check is the start of its run, the origin sends the whole run again, so this run saves nothing.
        again = run.body if run is not None and check == run.start else 0
        return is_before(start, check) and stored.has_from(start, again + LEAST_SPARED_BYTES)

    async def confirm(self, read: Read, stream: Stream) -> StreamHead | None:
        """Bind the stream's runs on disk to the stream, if the read can use them and a proof of their last bytes
        succeeds.

        Returns the origin's latest reply in this proof; None if this call has made no proof that succeeded.
        """
        stored = self._disk.usable(stream.key)
        if stored is None or stored.is_bound_to(stream) or stream.tape.knows_after(read.start):
            return None
        if self._disk.is_not_stored(stream):
            self._disk.drop(stored)
            return None
        if not self._is_worth_asking(stored, read.start):
            return None
        return await self._prove_end(read, stream, stored)

    async def _prove_end(self, read: Read, stream: Stream, stored: StoredStream) -> StreamHead | None:
        """Make a proof of the last bytes of the runs.  If it succeeds, bind the runs to the stream.  Returns the same
        as `_prove`."""
        check, asked_at = stored.check, self._clock.now()
        if check is None:
            return None
        stored.asking += 1
        try:
            head = await self._prove(read, stream, stored, check, CHECK_BYTES)
        finally:
            stored.asking -= 1
        if head is not None:
            stored.bind(stream, asked_at)
            if stored.facts.varies_by_origin:
                self._store.vary_by_origin(stream)
            if stored.facts.surrogate_keys:
                self._store.tag(stream, stored.facts.surrogate_keys)
        return head

    async def _prove(
        self, read: Read, stream: Stream, stored: StoredStream, start: str, least: int
    ) -> StreamHead | None:
        """Compare at least `least` bytes on disk after `start` with the origin's bytes.  If fewer contiguous bytes are
        on disk, compare all of them.

        If another read is making the same proof, only wait for the end of that proof.  If the origin's reply shows that
        the bytes on disk are not valid, drop the stream from disk.  Returns the origin's latest reply; None if this
        call has made no proof that succeeded.
        """
        if (another := stored.proving.get(start)) is not None:
            await another.wait()
            return None
        stored.proving[start] = Signal()
        try:
            return await self._prove_alone(read, stream, stored, start, least)
        finally:
            stored.proving.pop(start).fire()

    async def _prove_alone(
        self, read: Read, stream: Stream, stored: StoredStream, start: str, least: int
    ) -> StreamHead | None:
        incarnation, latest, at, asked_at = stream.version.incarnation, stored.latest, start, self._clock.now()
        compared, is_exact = 0, True
        head: StreamHead | None = None
        block: Block | None = None
        for _ in range(MOST_ASKED):
            run = stored.at(at)
            if run is None:
                break
            if block is None or at not in (token for _, token in block.marks):
                block = await self._disk.read(stored, run)
            position = None if block is None else next((place for place, token in block.marks if token == at), None)
            if block is None or position is None or not _is_current(stored, stream, incarnation):
                return None
            held, is_known = Tape(block.is_json), stream.tape.knows_after(at)
            held.restore(block.part(position, at, block.size, block.end))
            found = await self._compare(read, stream, at, held)
            if not _is_current(stored, stream, incarnation):
                return None
            if not isinstance(found.head, StreamHead):
                if _is_refusal(found.head):
                    self._refute(stored)
                return None
            head = found.head
            is_shorter = latest is not None and is_before(head.next_offset, latest.end)
            if found.differs or (is_shorter and (head.up_to_date or head.is_closed)) or not _is_like(stored, stream):
                self._refute(stored)
                if is_known:
                    # The tape had bytes after `at`, which were not compared with the reply and may be invalid too.
                    self._store.forget_bytes(stream)
                    stream.may_be_another()
                return None
            if not found.size:
                return None
            compared += found.size
            is_exact &= not found.is_past
            at = run.end if found.is_past else head.next_offset
            if compared >= least:
                break
            if at != run.end and not held.is_indexed(at):
                # The reply does not end at a known token.  The end of the reply is therefore at no known position on
                # disk, and the comparison cannot continue.
                return None
        else:
            return None
        if head is not None:
            stored.proven(start, Proof(asked_at, is_exact))
        return head

    async def _compare(self, read: Read, stream: Stream, at: str, held: Tape) -> _Compared:
        """Compare the bytes on `held` after `at` with the bytes that the origin sends."""
        flight = self._fetches.join_fetch(stream, at, read.route, read.source, PROOF + at).fetch
        reader = flight.attach()
        try:
            while flight.head is None:
                await flight.changed.wait()
            head = as_seen_by(flight.head, read.source.headers)
            if not isinstance(head, StreamHead):
                return _Compared(head)
            comparison = Comparison(held, at, head.next_offset, flight.expected)
            is_short = flight.expected is not None and flight.expected <= 2 * MOST_COMPARED
            if held.is_json:
                comparison.feed(b"[")
            async for chunk in reader.chunks():
                comparison.feed(chunk)
                if comparison.is_over and not is_short:
                    break
            else:
                if held.is_json:
                    comparison.feed(b"]")
                comparison.finish()
            return _Compared(head, comparison.compared, not comparison.agrees, comparison.is_past)
        except GatewayError as error:
            return _Compared(error)
        except NotAnArray:
            return _Compared(head, differs=True)
        finally:
            reader.detach()

    def _refute(self, stored: StoredStream) -> None:
        if self._disk.drop(stored):
            self._disk.counts.refuted += 1

    async def restore(self, read: Read, stream: Stream, at: str) -> bool:
        """Copy the bytes after `at` from disk to the tape, if they are on disk.  Make a proof first if it is needed.

        Returns whether the tape now has bytes after `at`.
        """
        stored = self._disk.usable(stream.key)
        if stored is None or not stored.is_bound_to(stream) or self._disk.is_not_stored(stream):
            return False
        tape, start = stream.tape, _first(stored, at)
        if (run := stored.at(start)) is None:
            return False
        if start != at and not tape.knows_after(at):
            # `at` is the start sentinel.  No bytes lie between it and the first token, so make them synonyms.
            self._store.store(stream, at, start, (), 0.0)
        due = stream.confirmed_before(self._clock.now(), read.route.trust_s, None)
        proof = stored.proof_for(start, due, STRETCH_BYTES)
        if proof is None:
            if not stored.bound_at > due:
                await self._prove_end(read, stream, stored)
            if stored.is_bound_to(stream) and stored.bound_at >= due:
                await self._prove(read, stream, stored, start, MOST_COMPARED)
            if tape.knows_after(at):
                return stream.ended is None
            proof = stored.proof_for(start, -math.inf, STRETCH_BYTES)
            if proof is None or not stored.is_bound_to(stream):
                return False
        block = await self._disk.read(stored, run)
        if block is None or not stored.is_bound_to(stream) or tape.is_indexed(start):
            return stream.ended is None and tape.knows_after(at)
        marks = block.marks
        first = next((number for number, (_, token) in enumerate(marks) if token == start), None)
        if first is None:
            return False
        # Leave out the bytes that are already on the tape.
        known = ((place, token) for place, token in marks[first + 1 :] if tape.is_indexed(token))
        stop, end = next(known, (block.size, block.end))
        self._store.restore(stream, block.part(marks[first][0], start, stop, end))
        if proof.is_exact or start != START:
            stream.confirm(start, proof.at)
        return tape.knows_after(at)


def _first(stored: StoredStream, start: str) -> str:
    """Return the first token if `start` is the start sentinel and the first token is known; otherwise `start`."""
    first = stored.facts.first
    return first if start == START and first is not None else start


def _is_current(stored: StoredStream, stream: Stream, incarnation: str) -> bool:
    """Return whether the streams on disk and in memory are still the same as at the beginning of a proof."""
    return not stored.is_withdrawn and stream.ended is None and stream.version.incarnation == incarnation


def _is_like(stored: StoredStream, stream: Stream) -> bool:
    """Return whether the metadata on disk is compatible with the stream in memory."""
    facts = stored.facts
    is_same = None in (facts.identity, stream.identity) or facts.identity == stream.identity
    return is_same and facts.content_type == stream.content_type


def _is_refusal(head: Head) -> bool:
    """Return whether the origin's reply says that it does not have these bytes."""
    return isinstance(head, Beyond) or (isinstance(head, OriginError) and head.status in (404, 410))
