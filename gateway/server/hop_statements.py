"""The statements about an owner's streams, which the owner adds to its answers to other workers
(`gateway.protocol.worker_headers`)."""

from __future__ import annotations

import math
from typing import Final

from multidict import CIMultiDict

from gateway.engine.answer import Answer
from gateway.engine.core import Engine
from gateway.engine.hit_for_miss import HEAD
from gateway.engine.read import Read
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import SURROGATE_KEY, Lifetime
from gateway.protocol.names import STREAM_UP_TO_DATE
from gateway.protocol.sharing import StreamKey
from gateway.protocol.worker_headers import HOP_OUTCOME, HOP_RECORD, HOP_SAVED, Alone, HopSaid, Remembered
from gateway.tape.stream import Stream

OWN: Final = ("Age", "Cache-Control", "Cache-Status", "Via")
"""Headers that the asking worker sets itself in its answers."""
_FROM_MEMORY: Final = frozenset({Outcome.HIT, Outcome.COLLAPSED})
"""Outcomes of answers that may state a tail from memory."""


class HopStatements:
    """Makes the statements (`HopSaid`) of this worker for the header field `HOP_RECORD`."""

    def __init__(self, engine: Engine, owner: str, *, is_relative: bool = False) -> None:
        """`is_relative` means that the asking process has another clock.  Times are then stated relative to the arrival
        of the request.  If the arrival time is not given, they are relative to the time of the statement, which is
        later."""
        self._engine = engine
        self._owner = owner
        self._now = engine.clock.now
        self._is_relative = is_relative

    def _stated(self, at: float, asked_at: float | None = None) -> float:
        """Return a time of this process's clock in the form for the asking process.  That process's request arrived at
        `asked_at`.  If the form is relative, that process adds the time at which it sent the request."""
        if not self._is_relative:
            return at
        return at - (self._now() if asked_at is None else asked_at)

    def _lifetime(self, stream: Stream) -> Lifetime | None:
        """Return the stream's lifetime in the form for the asking process.  The expiry is relative if that process has
        another clock."""
        lifetime = stream.expiry.stated
        if lifetime is None or lifetime.expires_at is None or not self._is_relative:
            return lifetime
        return Lifetime(lifetime.ttl_s, lifetime.expires_at - self._engine.clock.wall())

    def said(self, stream: Stream | None, as_of: float | None = None, asked_at: float | None = None) -> HopSaid:
        """Return the statement about this worker's record of the stream, for the asking worker.  `asked_at` is as in
        `_stated`."""
        at = self._stated(self._now() if as_of is None else as_of, asked_at)
        if stream is None:
            return HopSaid(self._owner, at)
        life, name = stream.own_record().life, stream.version.incarnation
        return HopSaid(self._owner, at, life, name, stream.identity, lifetime=self._lifetime(stream))

    def live(self, topic: Topic, start: str, asked_at: float | None = None, *, is_unconfirmed: bool = False) -> HopSaid:
        """Return the statement for a live answer, which begins with the bytes in memory after `start`, if there are
        any.

        `asked_at` is as in `_stated`.  `is_unconfirmed` means that the origin has failed to confirm these bytes.

        The bytes are as old as their confirmation.  The tail is as old as the latest data from the origin.  All data
        after the first tail in the answer comes directly from the origin.
        """
        stream, as_of = topic.stream, self._now()
        if stream.tape.knows_after(start) and (at := stream.confirmed_at(start)) > -math.inf:
            as_of = min(as_of, at)
        if topic.is_confirmed and stream.sighting is not None:
            as_of = min(as_of, stream.sighting.seen_at)
        return self.said(stream, as_of, asked_at)._replace(is_stale=is_unconfirmed)

    def failed(self, key: StreamKey) -> HopSaid:
        """Return the statement for an answer without bytes that is sent because the origin has failed to answer."""
        stream = self._engine.store.find(key)
        remembered = self._remembered(stream)
        return self.said(stream if remembered is not None else None)._replace(remembered=remembered)

    def facts(self, read: Read) -> HopSaid | None:
        """Return the statement for a HEAD that is answered from memory, without the present tail.  Return None if the
        origin must be asked.

        This worker applies the same conditions to its own readers.
        """
        stream = self._engine.store.find(read.key)
        if stream is None or stream.tape.tail is None or read.route.unshared.reason(read.key, HEAD) is not None:
            return None
        if not stream.may_answer_alone(self._now(), read.route.trust_s):
            return None
        if (remembered := self._remembered(stream)) is None:
            return None
        return self.said(stream)._replace(as_of=remembered.contacted_at, is_stale=True, remembered=remembered)

    def _remembered(self, stream: Stream | None) -> Remembered | None:
        """Return the metadata in memory; None if there is none, or if the stream may have ended."""
        clock = self._engine.clock
        if stream is None or stream.content_type is None or not stream.outlasts_failure(clock.now(), clock.wall()):
            return None
        tail = stream.tape.tail
        return Remembered(
            stream.content_type,
            tail,
            tail is not None and stream.tape.is_closed_at(tail),
            self._stated(clock.now() if stream.is_followed else stream.contacted_at),
            stream.needs_revalidation,
            stream.varies_by_origin,
            tuple(sorted(stream.surrogate_keys)),
            tuple(stream.headers.items()),
        )

    def alone(self, alone: Alone, key: StreamKey | None = None) -> HopSaid:
        """Return the statement for an answer that says: the origin's reply is for one reader alone.

        `key` is the key of the stream; None for an S2 stream.  The stream's lifetime is included, because it does not
        depend on the reader."""
        stream = self._engine.store.find(key) if key is not None else None
        lifetime = self._lifetime(stream) if stream is not None else None
        return HopSaid(self._owner, self._stated(self._now()), alone=alone, lifetime=lifetime)

    @staticmethod
    def add_to_passed(answer: Answer) -> None:
        """Add the fields that the other worker needs to pass this answer on to its client."""
        answer.headers[HOP_OUTCOME] = answer.outcome
        if answer.saved_bytes:
            answer.headers[HOP_SAVED] = str(answer.saved_bytes)

    def restate(self, read: Read, answer: Answer, asked_at: float | None = None) -> None:
        """Turn the headers of an answer for a client into headers of an answer for another worker.  That worker's
        request arrived at `asked_at`."""
        headers = answer.headers
        stated = headers.get("Cache-Control") if answer.status >= 400 else None
        for name in OWN:
            headers.popall(name, None)
        if stated is not None and stated != "no-store":
            # Keep the origin's own Cache-Control.  An error without Cache-Control gets `no-store` from each worker.
            headers["Cache-Control"] = stated
        stream = answer.run.stream if answer.run is not None else self._engine.store.find(read.key)
        if stream is not None and answer.status == 200:
            self._describe(stream, headers)
        if answer.status >= 500 or answer.status == 429:
            headers[HOP_RECORD] = self.failed(read.key).rendered()
            return
        as_of: float | None = None
        if answer.status in (404, 410):
            # State when the origin was asked, because every worker repeats an error only for `absent_s` after this
            # time.
            as_of = self._engine.negative_cache.asked_at(read.key, read.start, read.source.headers)
        elif stream is not None:
            as_of = self._as_of(read, answer, stream)
        said = self.said(stream, as_of, asked_at)
        if answer.outcome is Outcome.STALE_IF_ERROR:
            said = said._replace(is_stale=True, remembered=self._remembered(stream))
        if answer.run is not None and STREAM_UP_TO_DATE not in headers:
            tape, end = answer.run.stream.tape, answer.run.end
            said = said._replace(is_tail_unknown=not (tape.knows_after(end) or tape.is_short(end)))
        headers[HOP_RECORD] = said.rendered()

    @staticmethod
    def _describe(stream: Stream, headers: CIMultiDict[str]) -> None:
        if STREAM_UP_TO_DATE in headers:
            # The origin's Cache-Control for its other replies does not apply to the tail.
            headers["Cache-Control"] = "no-cache"
        elif stream.caching.cache_control is not None:
            headers["Cache-Control"] = stream.caching.cache_control
        if stream.surrogate_keys:
            headers[SURROGATE_KEY] = " ".join(sorted(stream.surrogate_keys))

    def _as_of(self, read: Read, answer: Answer, stream: Stream) -> float:
        """Return the latest time at which the origin had confirmed the whole answer."""
        if answer.parts is None and answer.outcome is Outcome.MISS:
            # This answer was fetched from the origin, or from another owner, which may have had it in memory.
            return min(self._now(), stream.contacted_at or math.inf)
        as_of = self._now() if stream.is_followed else stream.contacted_at
        if answer.parts is not None and not answer.parts.is_empty:
            fetched_at = answer.parts.as_of
            at = stream.confirmed_at(read.start) if fetched_at is None else fetched_at
            if at > -math.inf:
                as_of = min(as_of, at)
        states_tail = STREAM_UP_TO_DATE in answer.headers or answer.run is None
        if states_tail and answer.outcome in _FROM_MEMORY and stream.sighting is not None:
            as_of = min(as_of, stream.sighting.seen_at)
        return as_of
