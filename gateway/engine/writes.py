"""Writes: the effects of appends, PUTs and DELETEs through the gateway on the streams in memory.

The effects of a write are recorded before any byte of its answer reaches the client.  A read that starts after the
acknowledgement therefore cannot be answered from an earlier state.  After a write the gateway does not know the tail,
so the next read that needs the tail asks the origin.

Several writes to one path may be under way.  The origin may answer them in a different order than it executes them.  A
write is *overtaken* if another write has, or may have, deleted or created the stream while the first write was under
way.  The answer to an overtaken write may concern the earlier stream or the present stream.

A write is *pending* while the origin may still execute it (`gateway.engine.pending_writes`).  Pending writes may
re-create the stream.  An acknowledgement may then concern a new stream that no reply has shown yet, so the bytes in
memory are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from multidict import CIMultiDict, istr

from gateway.aio.clock import Clock
from gateway.engine.fleet_writes import RecordedWrites
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.others_writes import WriteReply
from gateway.engine.path_events import Acknowledged, AppendedElsewhere, PathChange
from gateway.engine.pending_writes import PendingWrites, may_remake
from gateway.engine.relayed_request import CREATES, NO_CHANGE, WRITES, Change, RelayedRequest, SentRequest
from gateway.errors import GatewayError
from gateway.live.topics import LiveTopics
from gateway.protocol.freshness_headers import date_from_headers, lifetime_from_headers, lifetime_here, surrogate_keys
from gateway.protocol.header_forwarding import storable_headers
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, STREAM_FORKED_FROM, is_true, stated_position
from gateway.protocol.sharing import ALLOW_ORIGIN, Group, StreamKey
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import SEVERAL, End, Stream
from gateway.upstream.origin_call import Body
from gateway.upstream.reply import Reply

_ABSENT: Final = frozenset({404, 410})
_CLOSED: Final = istr(STREAM_CLOSED)
_GETS: Final = frozenset({Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE})

# Looking up a member of an enum is slow in Python 3.11, so every write uses these constants.
_APPEND, _CREATE, _DELETE = Mode.APPEND, Mode.CREATE, Mode.DELETE


class Writes:
    """Records the effects of writes."""

    def __init__(
        self,
        store: TapeStore,
        live: LiveTopics,
        pending: PendingWrites,
        negative_cache: NegativeCache,
        clock: Clock,
        s2_written: Callable[[RelayedRequest, int | None, Body], object],
    ) -> None:
        """`s2_written` is called for each write to an S2 origin, with the request, the status of the origin's answer,
        and the body.  The status is None if the origin has not answered but may have executed the write."""
        self._store = store
        self._live = live
        self._pending = pending
        self._negative_cache = negative_cache
        self._clock = clock
        self._s2_written = s2_written
        self.others: RecordedWrites | None = None
        """The writes of other workers, and the counts for other members of a fleet; None if this process is alone."""

    def write_started(self, write: SentRequest) -> None:
        """Record that a write is about to be sent; `write_answered` or `write_failed` must follow."""
        if (others := self.others) is not None:
            others.look(write.request.group)
            if (key := write.request.tape_key) is not None:
                # Set the time only after the other workers' writes have been applied, because this write is sent later
                # than those writes.
                write.stream = stream = self._store.find(key)
                write.version = stream.version if stream is not None else None
            others.begun(write)
        self.apply_started(write)

    def write_answered(self, write: SentRequest, reply: Reply) -> None:
        """Record the effects of a write from the head of its answer."""
        if (others := self.others) is not None:
            others.look(write.request.group)
        try:
            self.apply_answered(write, reply)
        finally:
            if others is not None:
                others.answered(write, reply)

    def write_failed(self, write: SentRequest, error: GatewayError) -> None:
        """Record that a write has failed without an answer."""
        if (others := self.others) is not None:
            others.look(write.request.group)
        # The origin changes nothing if it never got the request, or if the client did not finish the body.
        may_be_done = not error.is_unsent and not write.is_cut_short
        try:
            if may_be_done:
                self.apply_unanswered(write)
            else:
                self.apply_without_effect(write)
        finally:
            if others is not None:
                others.unanswered(write, may_be_done=may_be_done)

    # -- the effects of a write, which may have been sent by this worker or by another worker

    def apply_started(self, write: SentRequest) -> None:
        """Apply the beginning of a write."""
        self._pending.add_write(write)
        self._negative_cache.forget_path(write.request.group)

    def apply_answered(self, write: SentRequest, reply: WriteReply) -> None:
        """Apply the effects of a write from the head of its answer."""
        try:
            if write.stream is not None:
                self._look_up(write.stream)
            if reply.status < 500:
                self._record(write, reply)
            elif not write.is_cut_short:
                self._mark_stale(write)
        finally:
            self._pending.remove_write(write)

    def apply_unanswered(self, write: SentRequest) -> None:
        """Apply the possible effects of a write without an answer."""
        try:
            if write.stream is not None:
                self._look_up(write.stream)
            self._mark_stale(write)
        finally:
            self._pending.remove_write(write)

    def apply_without_effect(self, write: SentRequest) -> None:
        """Apply the end of a write that has changed nothing."""
        if write.stream is not None:
            self._look_up(write.stream)
        self._pending.remove_write(write)

    def apply_anything(self, group: Group) -> None:
        """Assume that every kind of write has happened to the path."""
        self._negative_cache.forget_path(group)
        self._pending.overtake(group)
        self._store.withdraw_kept(group)

        def anything(stream: Stream) -> None:
            if isinstance(stream, RecordStream):
                self._store.doubt_records(stream)
            else:
                self._doubt(stream)

        self._tell(group, anything, "doubt")

    def apply_appends(self, group: Group, acknowledged_by: float | None) -> None:
        """Assume that another gateway has appended to the path.  The tail is unknown until the origin states it again.

        If the origin has acknowledged an append, all later answers must include the append.  `acknowledged_by` is a
        time by which the origin had acknowledged all of them (monotonic seconds), or None if none is known to be
        acknowledged."""
        self._negative_cache.forget_path(group)
        if acknowledged_by is None:
            self._tell(group, _may_have_grown, "may have grown")
        else:
            now, wall = self._clock.now(), self._clock.wall()
            self._store.tell(group, AppendedElsewhere(self._live, acknowledged_by, now, wall))

    def apply_earlier(self, group: Group, before: float) -> None:
        """Assume that every kind of write has happened to the path before a time (monotonic seconds)."""
        self._negative_cache.forget_path(group, before)
        self._pending.overtake(group)

        def earlier(stream: Stream) -> None:
            if stream.begun_at > before:
                return
            if isinstance(stream, RecordStream):
                self._store.doubt_records(stream)
            else:
                self._doubt(stream)

        self._tell(group, earlier)

    def apply_control(self, origin: str) -> None:
        """Doubt all S2 streams of an origin, because another worker's request may have deleted or created any of
        them."""
        for stream in tuple(self._store):
            if isinstance(stream, RecordStream) and stream.key.group.origin == origin:
                self._store.doubt_records(stream)

    def apply_appended(self, group: Group, queries: Collection[str] | None, start: int) -> None:
        """Doubt the streams of an S2 path that hold records from `start` on, after another worker's append.

        `start` is the number of the first appended record.  The held records may also be the appended records, because
        this worker may have fetched them after the append was sent.
        """
        awake = tuple(self._store.awake(group))
        for stream in awake:
            if isinstance(stream, RecordStream) and stream.reaches(start, queries):
                self._store.doubt_records(stream)
        self._store.doubt_replaced(group, queries, start, frozenset(awake))

    def apply_ended(self, key: StreamKey, *, is_certain: bool) -> None:
        """Doubt a stream, because the origin has shown to another worker that the stream has ended.

        The bytes in this worker's memory may belong to a later stream, so the origin is asked again.  `is_certain` is
        false if the stream may only be hidden from one reader.
        """
        if is_certain:
            self._store.withdraw_kept(key.group)
        stream = self._store.find(key)
        if stream is None or stream.ended is not None:
            return
        if is_certain and stream.block_count:
            self._doubt(stream)
        else:
            # Do not begin a new incarnation here, because it would overtake the requests under way.  The other worker
            # may have learned of the end from the reply to one of these requests.
            stream.mark_stale(may_be_another=is_certain)
            self._live.revalidate(stream)

    def missing(self, sent: SentRequest, reply: WriteReply) -> None:
        """Record that the origin has answered 404 or 410 to this client.  Other clients may still see the stream."""
        status, route, is_read = reply.status, sent.request.route, sent.request.mode not in WRITES
        if status not in _ABSENT:
            return
        is_alone = sent.request.mode in _GETS or route.is_shared or route.sharing.varies(reply.headers)
        if sent.stream is None or sent.stream.ended is not None:
            if is_read and (key := sent.request.tape_key) is not None:
                # The stream may have been created since the request was sent.
                if (later := self._store.find(key)) is not None:
                    later.mark_stale()
                    self._live.revalidate(later)
                self._store.tell_ended(key, was_known=False, is_certain=later is None and not is_alone)
            return
        if is_alone or sent.is_outdated:
            # There are three possible cases.  The stream may be hidden from this client only.  Only the GET's offset
            # may be gone.  Or the stream exists, because a write was acknowledged after the request.  The next request
            # shows which case applies.
            sent.stream.mark_stale()
            self._live.revalidate(sent.stream)
            if is_read:
                self._store.tell_ended(sent.stream.key, was_known=sent.stream.is_known, is_certain=False)
        else:
            # If the request is a write, its record informs the other workers.
            why = End.GONE if status == 410 else End.DELETED
            self._live.drop_stream(sent.stream, why, is_by_origin=is_read)

    def tail_is_short(self, stream: Stream) -> None:
        """Handle a reply of the origin whose tail is before the tail in the acknowledgement of a write.

        If pending writes may have re-created the stream, the bytes in memory are dropped.  Otherwise the acknowledged
        write has changed another stream at the path.
        """
        if self._may_be_remade(stream, self._pending.change(stream.key.group), self._clock.now()):
            self._doubt(stream)

    def _look_up(self, stream: Stream) -> None:
        """Apply earlier writes to the writer's own stream, and drop the stream if it may have expired.

        If the stream has expired, this write may be the first write to a new stream of the same name.
        """
        self._store.wake(stream)
        if stream.ended is None and stream.has_expired(self._clock.now(), self._clock.wall()):
            self._live.drop_stream(stream, End.PURGED)

    def _tell(self, group: Group, change: Callable[[Stream], object], kind: str | None = None) -> None:
        """Apply a change to all streams of the path that have not expired.

        Of two successive changes with the same `kind`, only the later change is applied.
        """
        self._store.tell(group, PathChange(change, self._live, self._clock.now(), self._clock.wall(), kind))

    def _record(self, write: SentRequest, reply: WriteReply) -> None:
        request = write.request
        if request.route.is_s2:
            self._s2_written(request, reply.status, write.body)
        elif write.is_overtaken:
            self._record_overtaken(write, reply)
        elif request.mode is _DELETE:
            if reply.status < 300:
                self._end_group(write, End.DELETED)
            self.missing(write, reply)
            if reply.status in _ABSENT:
                self._revalidate_all(request.group)
        elif request.mode is _CREATE and reply.status == 201:
            self._end_group(write, End.RECREATED)
            self._record_created(write, reply)
        elif reply.status < 300 or is_true(reply.headers.get(_CLOSED)):
            self._acknowledge(write, reply)
        elif request.mode is _APPEND:
            self.missing(write, reply)

    def _end_group(self, write: SentRequest, why: End) -> None:
        """Drop every stream at a path, because a write has ended the earlier stream there.

        Only the writer's own stream, as it was when the write was sent, has certainly ended.  With other credentials,
        or another query, the path may lead to another stream.  A record that was created or written to after the write
        was sent may belong to the stream that this write created.  Live readers of streams that may still exist do not
        end: they resume at the origin.
        """
        self._pending.overtake(write.request.group)
        self._store.withdraw_kept(write.request.group)
        own = write.stream
        known = None if write.is_outdated else own
        self._tell(
            write.request.group, lambda stream: self._live.drop_stream(stream, why if stream is known else End.PURGED)
        )

    def _record_created(self, write: SentRequest, reply: WriteReply) -> None:
        """Record the stream that a PUT has created.  The answer to the PUT has the same headers as the answer to a
        HEAD."""
        request = write.request
        if request.tape_key is None or STREAM_FORKED_FROM in request.headers or "Content-Type" not in reply.headers:
            return
        if request.route.sharing.varies(reply.headers):
            # The path may lead to different streams, depending on a header of the writer that shared reads do not have.
            return
        wall, took_s = self._clock.wall(), self._clock.now() - write.asked_at
        stated = lifetime_from_headers(request.headers)
        lifetime = lifetime_here(stated, reply.headers, wall - took_s, wall)
        expires_at, origins_time = stated.expires_at, date_from_headers(reply.headers)
        if expires_at is not None and (lifetime.expires_at is None or expires_at <= (origins_time or 0.0)):
            # The expiry had passed before the PUT was answered, for example because the client has repeated the PUT.
            # The new stream has probably expired at once.
            return
        stream = self._store.open(request.tape_key, self._clock.now())
        stream.begun_at = min(stream.begun_at, write.asked_at)
        stream.expiry.know(lifetime)
        if request.route.is_shared:
            # It is not known yet which readers may see the stream.
            stream.found_by = SEVERAL
        stream.learn_type(reply.headers["Content-Type"])
        headers = CIMultiDict(reply.headers)
        if headers.get(ALLOW_ORIGIN, "*").strip() != "*":
            # The answer allows only the writer's web origin.  Other web origins may or may not be allowed.
            del headers[ALLOW_ORIGIN]
        if request.route.varies_by_origin(reply.headers):
            self._store.vary_by_origin(stream)
        stream.record_headers(storable_headers(headers))
        self._store.tag(stream, surrogate_keys(reply.headers))
        self._store.weigh(stream)
        self._reached(stream, stated_position(reply.headers), is_closed=is_true(reply.headers.get(_CLOSED)))

    def _acknowledge(self, write: SentRequest, reply: WriteReply) -> None:
        request, own = write.request, write.stream
        change, is_doubted = self._change(write), False
        is_remade = bool(change) and may_remake(change)
        if is_remade:
            self._pending.settle(request.group)
            self._store.withdraw_kept(request.group)
        if not (self._store.has(request.group) or write.is_to_another):
            return
        headers = reply.headers
        tail, is_closed = stated_position(headers), is_true(headers.get(_CLOSED))
        if tail is not None and write.shows_another_stream(tail, reply.status):
            # The stream has been re-created by a write that this process has not relayed.
            is_doubted = True
            self._store.withdraw_kept(request.group)
            self._tell(request.group, self._doubt)
        elif tail is not None and not (is_remade or change & CREATES):
            self._store.tell(request.group, self._acknowledged(write, tail, is_closed=is_closed))
        else:
            is_doubted = self._acknowledge_in_doubt(write, change, tail, is_closed=is_closed)
        # With other credentials the path may lead to another stream.  So record this only in the client's own stream.
        if own is not None and own.ended is None and not is_doubted and not request.route.sharing.varies(headers):
            self._reached(own, tail, is_closed=is_closed)

    def _acknowledged(self, write: SentRequest, tail: str, *, is_closed: bool) -> Acknowledged:
        now, wall = self._clock.now(), self._clock.wall()
        return Acknowledged(self._live, tail, write.request.query, now, wall, write.asked_at, is_closed=is_closed)

    def _acknowledge_in_doubt(self, write: SentRequest, change: Change, tail: str | None, *, is_closed: bool) -> bool:
        """Record an acknowledged write in two cases: other writes may have re-created the stream, or the new tail is
        unknown.

        Returns whether the writer's own stream may have been re-created.
        """
        is_doubted, now = False, self._clock.now()
        # `reached` may be stored for a long time.  It must not refer to `write`, because `write` has the body.
        own, asked_at, group = write.stream, write.asked_at, write.request.group
        acknowledged = None if tail is None else self._acknowledged(write, tail, is_closed=is_closed)

        def reached(stream: Stream) -> None:
            nonlocal is_doubted
            if self._may_be_remade(stream, change, now):
                self._doubt(stream)
                is_doubted |= stream is own
                stream.contacted(asked_at)
            elif acknowledged is not None:
                acknowledged(stream)
            else:
                stream.acknowledged_without_offset()
                self._live.restart(stream)
                stream.contacted(asked_at)

        self._tell(group, reached)
        return is_doubted

    def _record_overtaken(self, write: SentRequest, reply: WriteReply) -> None:
        """Record a write whose answer may concern the earlier stream or the present stream.

        The two streams may have equal offsets.
        """
        request, status = write.request, reply.status
        is_made = request.mode is _CREATE and status == 201
        is_ended = request.mode is _DELETE and status < 300
        if is_made or is_ended:
            self._pending.overtake(request.group)
            self._store.withdraw_kept(request.group)
        elif request.mode is _DELETE and status in _ABSENT:
            self._revalidate_all(request.group)
            return
        elif status >= 300 and not is_true(reply.headers.get(_CLOSED)):
            # The origin has refused the write, so nothing has changed.
            return
        change, now = self._change(write), self._clock.now()
        if may_remake(change):
            self._store.withdraw_kept(request.group)

        def overtaken(stream: Stream) -> None:
            if is_made or is_ended or self._may_be_remade(stream, change, now):
                self._doubt(stream)
            else:
                # The write may have changed the present stream.  The known tail may then be the tail before the write.
                stream.acknowledged_without_offset()
                self._live.restart(stream)

        self._tell(request.group, overtaken)

    def _change(self, write: SentRequest) -> Change:
        """Return the changes that writes may have made to the path's stream but that no reply shows yet.

        If `write` is an append, its own effect is included, because the append may have created the stream.  If `write`
        is a PUT without 201, its own effect is not included, because the PUT has found an existing stream.
        """
        request = write.request
        change = self._pending.change(request.group, beside=write)
        return change if request.mode is _CREATE else change | write.change

    @staticmethod
    def _may_be_remade(stream: Stream, change: Change, now: float) -> bool:
        """Return whether writes with this combined `change` may have re-created the stream by `now`.

        A re-creation is possible if a write may have deleted the earlier stream, or if that stream may have expired.
        """
        return may_remake(change) or (bool(change & CREATES) and stream.may_have_expired(now))

    def _revalidate_all(self, group: Group) -> None:
        """Handle a DELETE that found no stream.

        Either an earlier attempt has deleted the stream and its answer was lost, or the stream is hidden from this
        client only.
        """
        self._store.withdraw_kept(group)

        def revalidate(stream: Stream) -> None:
            stream.may_be_another()
            # The present live request may be stalled, and may then never show that the stream has ended.
            self._live.revalidate(stream)

        self._tell(group, revalidate, "revalidate")

    def _doubt(self, stream: Stream) -> None:
        """Drop the bytes in memory.  They may belong to an earlier stream, and the acknowledged write to the new
        stream."""
        self._store.forget_bytes(stream)
        stream.begun_at = self._clock.now()
        stream.forget_acknowledged()
        stream.may_be_another()
        stream.acknowledged_without_offset()
        self._live.restart(stream)

    def _remember(self, write: SentRequest) -> None:
        """Add an unanswered write, which may create or delete the stream, to the list of pending writes."""
        for group in self._pending.remember(write):
            # The list was full, so this path was removed from the list.  The gateway no longer knows that the path's
            # streams may have been re-created.
            self._store.withdraw_kept(group)
            self._tell(group, self._doubt, "doubt")

    def _reached(self, stream: Stream, tail: str | None, *, is_closed: bool) -> None:
        if tail is None:
            return
        try:
            stream.tape.check(tail, tail, has_bytes=False)
        except GatewayError:
            self._live.drop_stream(stream, End.RECREATED)
            return
        stream.tape.reached(tail, is_closed=is_closed)

    def _mark_stale(self, write: SentRequest) -> None:
        """Keep the bytes in memory, but require a revalidation before the next hit.  The write may have been
        executed."""
        request = write.request
        if request.route.is_s2:
            self._s2_written(request, None, write.body)
        else:
            change = write.change | self._pending.change(request.group, beside=write)
            if request.mode is _APPEND and not (write.change and may_remake(change)):
                if write.change != NO_CHANGE:
                    # If a later DELETE is executed before the append, the append may create a stream.
                    self._remember(write)
                self._tell(request.group, lambda stream: stream.mark_stale(may_have_ended=False), "stale")
                return
            self._remember(write)
            self._pending.overtake(request.group)
            self._store.withdraw_kept(request.group)
            now, is_creation = self._clock.now(), request.mode is _CREATE

            def may_be_done(stream: Stream) -> None:
                is_remade = self._may_be_remade(stream, change, now)
                if is_remade or (is_creation and stream.version.may_have_ended):
                    # The bytes in memory may belong to the earlier stream, and the present stream may have equal
                    # offsets.
                    self._store.forget_bytes(stream)
                self._live.revalidate(stream)
                stream.may_be_another()

            self._tell(request.group, may_be_done)


def _may_have_grown(stream: Stream) -> None:
    stream.acknowledged_without_offset(is_certain=False)
    stream.mark_stale(may_have_ended=False)
