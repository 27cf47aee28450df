"""Writes: the changes that an append, PUT or DELETE through the gateway makes to the streams in memory.

A write's effects are recorded before any byte of its answer reaches the client, so a read that starts after the
acknowledgement cannot be answered from an earlier state.  From then on the tape may not state the tail without the
origin, and a read that needs the tail sends a request of its own.

Several writes to one path may be under way, and the origin may do them in another order than it answers them.  A write
is *overtaken* if another one has, or may have, ended or created the stream before it is answered.  Its answer may
concern the earlier stream or the present one.  While other pending writes may have re-created the stream
(`gateway.engine.relayed_request`), an acknowledgement may concern a stream that no answer has shown yet.  The held
bytes are then forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from multidict import CIMultiDict, istr

from gateway.aio.clock import Clock
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.path_events import Acknowledged, PathChange
from gateway.engine.relayed_request import (
    CREATES,
    NO_CHANGE,
    Change,
    PendingWrites,
    RelayedRequest,
    SentRequest,
    may_remake,
)
from gateway.errors import GatewayError
from gateway.live.topics import LiveTopics
from gateway.protocol.forwarded_headers import Headers, storable_headers
from gateway.protocol.freshness import lifetime_from_headers, lifetime_here, surrogate_keys
from gateway.protocol.mode import Mode
from gateway.protocol.names import (
    SENTINELS,
    STREAM_CLOSED,
    STREAM_FORKED_FROM,
    STREAM_NEXT_OFFSET,
    is_true,
    is_well_formed,
)
from gateway.protocol.sharing import ALLOW_ORIGIN, Group
from gateway.tape.store import TapeStore
from gateway.tape.stream import SEVERAL, End, Stream
from gateway.upstream.call import Body
from gateway.upstream.reply import Reply

_ABSENT: Final = frozenset({404, 410})
_CLOSED: Final = istr(STREAM_CLOSED)
_NEXT_OFFSET: Final = istr(STREAM_NEXT_OFFSET)
_GETS: Final = frozenset({Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE})

# Enum members are slow to reach in Python 3.11, and every request passes here.
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
        """`s2_written` is called with a write to an S2 origin and its body: with the status once the origin has
        answered, and without one if the origin may have done the write."""
        self._store = store
        self._live = live
        self._pending = pending
        self._negative_cache = negative_cache
        self._clock = clock
        self._s2_written = s2_written

    def write_started(self, write: SentRequest) -> None:
        """A write is about to be sent; `write_answered` or `write_failed` must follow."""
        group = write.request.group
        self._pending.add_write(write)
        self._negative_cache.forget_path(group)
        for stream in self._store.awake(group):
            # The origin may move its tail past them at any moment.
            stream.forget_beyond()

    def write_answered(self, write: SentRequest, reply: Reply) -> None:
        """The head of the answer has arrived."""
        try:
            if write.stream is not None:
                self._look_up(write.stream)
            if reply.status < 500:
                self._record(write, reply)
            elif not write.is_cut_short:
                self._mark_stale(write)
        finally:
            self._pending.remove_write(write)

    def write_failed(self, write: SentRequest, error: GatewayError) -> None:
        """Record that a write has failed without an answer."""
        try:
            if write.stream is not None:
                self._look_up(write.stream)
            # The origin changes nothing for a request that it never received, or whose body the client did not finish.
            if not error.is_unsent and not write.is_cut_short:
                self._mark_stale(write)
        finally:
            self._pending.remove_write(write)

    def missing(self, sent: SentRequest, reply: Reply) -> None:
        """Record that the origin reported the stream missing to this client; others may still see it."""
        status, route = reply.status, sent.request.route
        if sent.stream is None or status not in _ABSENT:
            return
        is_alone = sent.request.mode in _GETS or route.is_shared
        if is_alone or route.sharing.varies(reply.headers) or sent.is_outdated:
            # The stream may be hidden from this client alone, a GET's answer may concern its offset alone, or a write
            # acknowledged since then found the stream.  The next request shows which is true.
            sent.stream.mark_stale()
            self._live.revalidate(sent.stream)
        else:
            self._live.drop_stream(sent.stream, End.GONE if status == 410 else End.DELETED)

    def is_under_way(self, group: Group) -> bool:
        """Whether a write to the path is under way, so that its tail may move at any moment."""
        return self._pending.is_under_way(group)

    def tail_is_short(self, stream: Stream) -> None:
        """The origin has named a tail before the acknowledged one.  Pending writes may have re-created the stream; if
        not, the write went to another stream at the path."""
        if self._may_be_remade(stream, self._pending.change(stream.key.group), self._clock.now()):
            self._doubt(stream)

    def _look_up(self, stream: Stream) -> None:
        """Apply to the writer's own stream the events that it has missed, and drop it if it may have expired: the write
        may be the first to reach its successor."""
        self._store.wake(stream)
        if stream.ended is None and stream.has_expired(self._clock.now(), self._clock.wall()):
            self._live.drop_stream(stream, End.PURGED)

    def _tell(self, group: Group, change: Callable[[Stream], object], kind: str | None = None) -> None:
        """Change all streams of the path that have not expired.  Of two changes of one kind in a row, the later one is
        enough."""
        self._store.tell(group, PathChange(change, self._live, self._clock.now(), self._clock.wall(), kind))

    def _record(self, write: SentRequest, reply: Reply) -> None:
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
        """Drop every stream at the path of a write that has ended the earlier stream there.

        The write certainly concerns only the writer's own stream, as it was when the write was sent.  Under other
        credentials or another query the path may name another stream.  A record that was begun or written to since then
        may belong to the stream that the write itself created.  The live readers of such streams notice nothing and
        resume at the origin.
        """
        self._pending.overtake(write.request.group)
        own = write.stream
        known = None if write.is_outdated else own
        self._tell(
            write.request.group, lambda stream: self._live.drop_stream(stream, why if stream is known else End.PURGED)
        )

    def _record_created(self, write: SentRequest, reply: Reply) -> None:
        """Record a stream created by this write, because the answer to a PUT has the facts of a HEAD's."""
        request = write.request
        if request.tape_key is None or STREAM_FORKED_FROM in request.headers or "Content-Type" not in reply.headers:
            return
        if request.route.sharing.varies(reply.headers):
            # A header of the writer makes the path name another stream than for shared reads.
            return
        stream = self._store.open(request.tape_key, self._clock.now())
        wall, took_s = self._clock.wall(), self._clock.now() - write.asked_at
        stream.expiry.know(lifetime_here(lifetime_from_headers(request.headers), reply.headers, wall - took_s, wall))
        if request.route.is_shared:
            # Which readers may see the stream is found out when they ask.
            stream.found_by = SEVERAL
        stream.learn_type(reply.headers["Content-Type"])
        headers = CIMultiDict(reply.headers)
        if headers.get(ALLOW_ORIGIN, "*").strip() != "*":
            # The answer allows the writer's web origin, and says nothing about those of readers.
            del headers[ALLOW_ORIGIN]
        if request.route.varies_by_origin(reply.headers):
            self._store.vary_by_origin(stream)
        stream.record_headers(storable_headers(headers))
        self._store.tag(stream, surrogate_keys(reply.headers))
        self._store.weigh(stream)
        self._reached(stream, _offset(reply.headers), is_closed=is_true(reply.headers.get(_CLOSED)))

    def _acknowledge(self, write: SentRequest, reply: Reply) -> None:
        request, own = write.request, write.stream
        change, is_doubted = self._change(write), False
        is_remade = bool(change) and may_remake(change)
        if is_remade:
            self._pending.settle(request.group)
        if not self._store.has(request.group):
            return
        headers = reply.headers
        tail, is_closed = _offset(headers), is_true(headers.get(_CLOSED))
        if tail is not None and not (is_remade or change & CREATES):
            self._store.tell(request.group, self._acknowledged(write, tail, is_closed=is_closed))
        else:
            is_doubted = self._acknowledge_in_doubt(write, change, tail, is_closed=is_closed)
        # Other partitions may name another stream by this path, so only the client's own takes the facts.
        if own is not None and own.ended is None and not is_doubted and not request.route.sharing.varies(headers):
            self._reached(own, tail, is_closed=is_closed)

    def _acknowledged(self, write: SentRequest, tail: str, *, is_closed: bool) -> Acknowledged:
        now, wall = self._clock.now(), self._clock.wall()
        return Acknowledged(self._live, tail, write.request.query, now, wall, write.asked_at, is_closed=is_closed)

    def _acknowledge_in_doubt(self, write: SentRequest, change: Change, tail: str | None, *, is_closed: bool) -> bool:
        """Record a write to a stream that other writes may have re-created, or whose new tail is not known.  Returns
        whether the writer's own stream is in such doubt."""
        is_doubted, now = False, self._clock.now()
        # The change may be kept for long, and must not keep the write with its body.
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

    def _record_overtaken(self, write: SentRequest, reply: Reply) -> None:
        """Record a write whose answer may concern the earlier stream or the present one, which may have equal
        offsets."""
        request, status = write.request, reply.status
        is_made = request.mode is _CREATE and status == 201
        is_ended = request.mode is _DELETE and status < 300
        if is_made or is_ended:
            self._pending.overtake(request.group)
        elif request.mode is _DELETE and status in _ABSENT:
            self._revalidate_all(request.group)
            return
        elif status >= 300 and not is_true(reply.headers.get(_CLOSED)):
            # The write was refused and has changed nothing.
            return
        change, now = self._change(write), self._clock.now()

        def overtaken(stream: Stream) -> None:
            if is_made or is_ended or self._may_be_remade(stream, change, now):
                self._doubt(stream)
            else:
                # The write may have gone to the present stream, whose tail may have been read before.
                stream.acknowledged_without_offset()
                self._live.restart(stream)

        self._tell(request.group, overtaken)

    def _change(self, write: SentRequest) -> Change:
        """The possible changes, not shown by any answer yet, to the stream that acknowledged this write.  A
        PUT that was acknowledged has found the stream there; an append may itself have created it."""
        request = write.request
        change = self._pending.change(request.group, beside=write)
        return change if request.mode is _CREATE else change | write.change

    @staticmethod
    def _may_be_remade(stream: Stream, change: Change, now: float) -> bool:
        """Whether writes that may have made this change by `now` may have re-created the stream, after a deletion or an
        expiry."""
        return may_remake(change) or (bool(change & CREATES) and stream.may_have_expired(now))

    def _revalidate_all(self, group: Group) -> None:
        """A DELETE found no stream.  An earlier attempt of its client may have deleted it and the answer was lost, or
        the stream is hidden from this client alone."""

        def revalidate(stream: Stream) -> None:
            stream.may_be_another()
            # A stalled live request may hide that the origin has ended the stream.
            self._live.revalidate(stream)

        self._tell(group, revalidate, "revalidate")

    def _doubt(self, stream: Stream) -> None:
        """Forget the held bytes: they may belong to another stream than the one of the acknowledged write."""
        self._store.forget_bytes(stream)
        stream.forget_acknowledged()
        stream.may_be_another()
        stream.acknowledged_without_offset()
        self._live.restart(stream)

    def _remember(self, write: SentRequest) -> None:
        """Remember a write without an answer that may create or delete the stream."""
        for group in self._pending.remember(write):
            # There was no room to remember that the streams of this path may be others.
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
        """The write may have been done: keep the held bytes, and ask the origin before the next hit."""
        request = write.request
        if request.route.is_s2:
            self._s2_written(request, None, write.body)
        else:
            change = write.change | self._pending.change(request.group, beside=write)
            if request.mode is _APPEND and not (write.change and may_remake(change)):
                if write.change != NO_CHANGE:
                    # A DELETE may be done before this write.
                    self._remember(write)
                self._tell(request.group, lambda stream: stream.mark_stale(may_have_ended=False), "stale")
                return
            self._remember(write)
            self._pending.overtake(request.group)
            now, is_creation = self._clock.now(), request.mode is _CREATE

            def may_be_done(stream: Stream) -> None:
                is_remade = self._may_be_remade(stream, change, now)
                if is_remade or (is_creation and stream.version.may_have_ended):
                    # The present stream may have equal offsets.
                    self._store.forget_bytes(stream)
                self._live.revalidate(stream)
                stream.may_be_another()

            self._tell(request.group, may_be_done)


def _offset(headers: Headers) -> str | None:
    # Several lines count as one list, which is no valid offset.
    lines = headers.getall(_NEXT_OFFSET, ())
    return lines[0] if len(lines) == 1 and is_well_formed(lines[0]) and lines[0] not in SENTINELS else None
