"""Planning in the driver: how far streams have grown before a batch.

For each stream that may have news, a walk starts at the stream's position, counts what there is, and stops at the tail,
at the batch's bound, or at a target set before.  The bytes go to the spool.  The results are stretches with checksums,
which the tasks verify.

If a gateway's admin API is configured and has already counted a long stretch (`admin`), its counts are used instead of
reading.  Only the last of its runs is read, to check that it matches.  The tasks then verify all of it against the
checksums, as always.

A token cannot be located inside a reply, so the units up to a target within one are counted by `distance`.

Before news of a stream are used, its identity is checked (see `identity`), and once if there are none.  A stream that
was never read before must, after a walk of several replies, still begin as it did at first; else it is walked again.
Lost data is an error, unless the user wants to continue with the available data: then the stream restarts at its
current beginning.  So does a stream that was closed, read to its end and re-created: nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Final

from pyspark_durable_streams.admin import AdminApi, CountedRun
from pyspark_durable_streams.batch_slice import Allowance, BatchSlice, ExtentKey, evidence_at
from pyspark_durable_streams.client import Client, origin_error
from pyspark_durable_streams.continuity import continues, head
from pyspark_durable_streams.distance import units_between
from pyspark_durable_streams.errors import BadOption, BadReply, DataLost, DurableStreamsError
from pyspark_durable_streams.framing import BLOCK_BYTES, Checksum, Unit
from pyspark_durable_streams.identity import Identities
from pyspark_durable_streams.news import Lag, News, Target
from pyspark_durable_streams.options import LATEST
from pyspark_durable_streams.paused import PausedWalks
from pyspark_durable_streams.places import START, Evidence, Place, Position
from pyspark_durable_streams.spool import Extent, Spool
from pyspark_durable_streams.times import Moment, place_at
from pyspark_durable_streams.walk import CLOSED, NEXT_OFFSET, Gone, Walk

_THREADS: Final = 8
_CHASED_BYTES: Final = 256 << 20
"""After this many bytes of one stream its tail is requested and made the target, so that a batch ends at all."""
_WORTH_BYTES: Final = 8 << 20
"""Smaller counted ranges are read all the same."""
_RUN_BYTES: Final = 16 << 20
"""The longest run to request."""
_RUNS_OF_TASK: Final = 4
_STEPS: Final = 1_000
_ATTEMPTS: Final = 3


class _Changed(Exception):
    """The stream no longer begins as it did when the walk began."""


class Surveyor:
    """Walks streams for a driver."""

    def __init__(
        self,
        client: Client,
        admin: AdminApi | None = None,
        *,
        partitions: int = 1,
        as_chunks: bool,
        fails_on_loss: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._client = client
        self._identities = Identities(client, as_chunks=as_chunks)
        self._admin = admin
        self._partitions = partitions
        self._as_chunks = as_chunks
        self._fails_on_loss = fails_on_loss
        self._warn = warn
        self._spool: Spool | None = None
        self._paused = PausedWalks()
        self._counts: dict[str, dict[str, int]] = {}
        """For each stream, the counts at targets within replies; one thread at a time uses a stream."""
        self.extents: dict[ExtentKey, Extent] = {}
        """The spool extents of stretches, by stream and count at the beginning."""

    def begin(self, spool: Spool) -> None:
        """Begin a batch whose bytes go to this spool."""
        self._spool = spool
        self.extents = {}
        if self._admin is not None:
            self._admin.begin_batch()

    def close(self) -> None:
        """Close the paused walks."""
        self._paused.close()

    def each(self, streams: Iterable[str], work: Callable[[str], object]) -> None:
        """Run `work` for every stream, several at a time; raises the first failure when all are done."""
        names = list(streams)
        if len(names) < 2:
            for name in names:
                work(name)
            return
        with ThreadPoolExecutor(min(_THREADS, len(names))) as pool:
            for _ in pool.map(work, names):
                pass

    def tail(self, stream: str) -> tuple[str, bool]:
        """A stream's tail, and whether it is closed there; Gone if there is no such stream."""
        reply = self._client.request("HEAD", f"/{stream}")
        if reply.status != 200:
            error = origin_error(reply, f"stream {stream}")
            raise Gone(str(error), reply.status) if reply.status in (404, 410) else error
        token = reply.headers.get(NEXT_OFFSET)
        if not token:
            raise BadReply(f"stream {stream}: a reply without {NEXT_OFFSET}; is url that of an origin or gateway?")
        return token, reply.headers.get(CLOSED, "").lower() == "true"

    def enter(self, stream: str, token: str) -> Position | None:
        """The position of a stream entered at a token or at LATEST; None for one entered at its beginning.

        BadOption if the stream does not have the token.
        """
        if token == START:
            return None
        if token == LATEST:
            token = self.tail(stream)[0]
        else:
            self._check_token(stream, token)
        # Identified by its beginning, because the data just before the token is not known.
        unit, evidence = self._identities.of_beginning(stream)
        return None if unit is None else Position(Place(token), unit, evidence=evidence)

    def enter_at(self, stream: str, moment: Moment) -> Position | None:
        """The position of a stream entered at a time; None for one entered at its beginning.

        BadOption if it tells no time.
        """
        walk = Walk(self._client, stream, Place(), self._as_chunks)
        place = place_at(walk, moment)
        if place == Place() or walk.unit is None:
            return None
        _, evidence = self._identities.of_beginning(stream)
        return Position(place, walk.unit, evidence=evidence)

    def _check_token(self, stream: str, token: str) -> None:
        """Raise BadOption if the stream does not have the token that the user gave."""
        said = f"option startingOffsets: stream {stream} has no offset {token}"
        try:
            walk = self._identities.reach(stream, Place(token))
        except Gone as gone:
            if gone.status in (404, 410):
                raise
            raise BadOption(f"{said} ({gone})") from None
        # An origin may take any token beyond the tail for the tail.
        if walk.is_at_tail and walk.place.token == token and self.tail(stream)[0] < token:
            raise BadOption(f"{said}: it ends before")

    def news(
        self, stream: str, position: Position | None, allowance: Allowance, target: Target | None = None
    ) -> News | None:
        """The news of a stream after its position (its beginning, if None).

        Gone if nothing of the stream was read and it does not exist; DataLost if it is not the stream that was read
        before, or its next data is missing.  If a loss is no error: None if there is nothing to continue with.
        """
        if position is None:
            return self._first_news(stream, allowance, target)
        try:
            return self._news(stream, position, allowance, target)
        except Gone as gone:
            if self._fails_on_loss:
                raise DataLost(f"{gone}; failOnDataLoss=false continues with the available data") from gone
            self._warn(f"{gone}; continuing with the available data, because failOnDataLoss=false")
            try:
                news = self._first_news(stream, allowance, None, position.place.count)
            except Gone:
                return None
            return news if news is not None and news.stretches else None

    def news_after_close(
        self, stream: str, position: Position, allowance: Allowance, target: Target | None = None
    ) -> News | None:
        """The news of a stream that was closed and read to its end; None unless it was re-created."""
        try:
            if self._is_unchanged(stream, position):
                return None
            self._warn(f"stream {stream} was closed, and has been re-created: it is read from its beginning")
            return self._first_news(stream, allowance, target, position.place.count)
        except Gone:
            return None  # it was deleted, and all of it had been read

    def _is_unchanged(self, stream: str, position: Position) -> bool:
        token, is_closed = self.tail(stream)
        if position.evidence is None:
            return is_closed and token == position.place.token
        try:
            self._identities.compare(stream, position.unit, position.evidence)
        except Gone as gone:
            if gone.status in (404, 410):
                raise
            return False
        return True

    def _first_news(self, stream: str, allowance: Allowance, target: Target | None, count: int = 0) -> News | None:
        """The news of a stream that was not read before, all from one life of the stream."""
        for _ in range(_ATTEMPTS):
            self._counts.pop(stream, None)  # counted in another life of the stream
            try:
                return self._news(stream, None, allowance, target, count)
            except _Changed:
                continue
        said = f"stream {stream}: it was re-created, or cut by retention, each time that its beginning was planned"
        if self._fails_on_loss:
            raise DataLost(f"{said}; maxBytesPerTrigger makes the first batch shorter")
        self._warn(f"{said}; continuing with the available data, because failOnDataLoss=false")
        self._counts.pop(stream, None)
        try:
            return self._news(stream, None, allowance, target, count, is_whole=False)
        except _Changed:
            return None

    def _news(
        self,
        stream: str,
        position: Position | None,
        allowance: Allowance,
        target: Target | None,
        count: int = 0,
        *,
        is_whole: bool = True,
    ) -> News:
        place = position.place if position is not None else Place(START, 0, count)
        unit = position.unit if position is not None else None
        if target is not None and place.skip == 0 and place.token != START and not place.token < target.token:
            assert position is not None
            if place.token > target.token:
                # The tail was asked for somewhat earlier, or the stream is another one.
                self._identities.reach(stream, place, unit)
            self._identities.confirm(stream, position)
            is_closed = position.is_closed or (target.is_closed and place.token == target.token)
            return News(replace(position, is_closed=is_closed), tail=target.token)
        paused = self._paused.take(stream, place)
        walk = paused.walk if paused is not None else Walk(self._client, stream, place, self._as_chunks, unit)
        fresh = paused.parts if paused is not None else walk.parts()
        taken = BatchSlice(stream, allowance, self._spool, self.extents)

        def leap(place: Place, unit: Unit, etag: str) -> Place | None:
            nonlocal target
            try:
                if target is None and taken.size >= _CHASED_BYTES:
                    target = self._tail_now(stream)
                return self._leap(taken, place, unit, etag, target)
            except DurableStreamsError:
                return None  # the stream can still be read

        moment = target.moment if target is not None else None
        if self._admin is not None and moment is None:
            walk.leap = leap
        cut: int | None = None
        try:
            for part in fresh if paused is None else chain([paused.rest], fresh):
                if target is not None and target.is_exact and cut is None and _passes(walk.reply_end, target.token):
                    cut = self._count_at(stream, part.place, walk.unit, target.token)
                if moment is not None and cut is None and (index := moment.index(walk, part.piece)) is not None:
                    cut = part.place.count + index
                if target is None and taken.size >= _CHASED_BYTES:
                    target = self._tail_now(stream)
                if target is not None and not target.is_exact and walk.token is not None and walk.token >= target.token:
                    taken.stop(part.place)
                    break
                if not taken.add(part, walk.unit, cut):
                    break
        except Gone as gone:
            if position is None and walk.replies:
                raise _Changed from gone  # it existed a moment ago
            raise
        assert walk.unit is not None
        end = taken.end if taken.was_cut else walk.place
        if target is not None and target.is_exact and end.count == cut and walk.unit is not Unit.LINE:
            end = Place(target.token, 0, cut)
        is_done = not taken.was_cut and walk.is_at_tail
        if taken.rest is not None and taken.is_limited:
            self._paused.keep(walk, fresh, taken.rest)
        stretches = taken.stretches()
        evidence = position.evidence if position is not None else None
        if stretches and evidence is not None:
            self._identities.compare(stream, walk.unit, evidence)
        elif position is not None and is_done:
            self._identities.confirm(stream, position)
        begin = taken.begin if position is None and is_whole and walk.replies > 1 else None
        if begin is not None and not self._identities.still_begins(stream, walk.unit, begin):
            raise _Changed
        if stretches:
            self._identities.trust(stream)
        found = Position(end, walk.unit, is_done and walk.is_closed, taken.evidence or evidence)
        reached = is_done or (cut is not None and end.count >= cut) or (target is not None and not taken.is_limited)
        return News(found, stretches, walk.reply_end, has_more=not reached, lag=_lag(walk, taken))

    def _tail_now(self, stream: str) -> Target:
        """The current tail as a target, so that the walk does not chase a growing stream."""
        return Target(self.tail(stream)[0], is_exact=False)

    def _leap(self, taken: BatchSlice, place: Place, unit: Unit, etag: str, target: Target | None) -> Place | None:
        """Take the runs that the gateway has counted from this place on; returns their end, None if too short."""
        if unit is Unit.LINE or not etag:
            return None  # a line may have begun before the place
        runs: list[CountedRun] = []
        units = size = 0
        for run in self._counted(taken, place.token, etag, is_json=unit is Unit.ELEMENT):
            if not taken.has_room(units + run.units, size + run.size):
                break
            if (target is not None and run.next > target.token) or (
                target is None and taken.size + size >= _CHASED_BYTES
            ):
                break
            units, size = units + run.units, size + run.size
            runs.append(run)
        if size < _WORTH_BYTES:
            return None
        evidence = self._confirmed(taken.stream, runs[-1], unit)
        return taken.leap(place, runs, evidence) if evidence is not None else None

    def _counted(self, taken: BatchSlice, token: str, etag: str, *, is_json: bool) -> Iterator[CountedRun]:
        """All runs that the gateway has counted from a token on; they grow with what was taken."""
        assert self._admin is not None
        before = taken.size
        for _ in range(_STEPS):
            # Each task should get several runs, but few: bytes in memory are cut at each end of a run.
            size = min(max(BLOCK_BYTES, before // (_RUNS_OF_TASK * self._partitions)), _RUN_BYTES)
            last: CountedRun | None = None
            for last in self._admin.runs(taken.stream, token, size, etag, is_json=is_json):
                before += last.size
                yield last
            if last is None:
                return
            token = last.next

    def _confirmed(self, stream: str, run: CountedRun, unit: Unit) -> Evidence | None:
        """Evidence from a run, if it reads as counted and the stream after it continues at its next token."""
        evidence: Evidence | None = None
        checksum = Checksum()
        walk = Walk(self._client, stream, Place(run.token), self._as_chunks, unit)
        with closing(walk.parts()) as parts:
            for part in parts:
                evidence = evidence or evidence_at(part, unit)
                piece, rest = part.piece.cut(run.units - checksum.units, unit)
                checksum.add(piece)
                if checksum.units == run.units or checksum.size > run.size:
                    break
            if checksum != run.checksum:
                return None
            following = head(chain([rest], (part.piece for part in parts)))
        there = Walk(self._client, stream, Place(run.next), self._as_chunks, unit)
        return evidence if continues(there, following, walk.place.token) else None

    def _count_at(self, stream: str, place: Place, unit: Unit | None, token: str) -> int:
        """The count at a token within the reply that contains this place."""
        if place.skip == 0 and place.token == token:
            return place.count
        counts = self._counts.setdefault(stream, {})
        if token not in counts:
            counts[token] = place.count + units_between(
                self._client, stream, place, token, unit, as_chunks=self._as_chunks
            )
        return counts[token]


def _lag(walk: Walk, taken: BatchSlice) -> Lag:
    """The bytes that the batch's bound leaves behind, as far as the reply that it was reading tells."""
    if not taken.is_limited:
        return Lag()
    rest = len(taken.rest.piece.data) if taken.rest is not None else 0
    return Lag(rest + (walk.reply_left or 0), walk.ends_at_tail and walk.reply_left is not None)


def _passes(reply_end: str | None, token: str) -> bool:
    return reply_end is not None and reply_end > token
