"""Relaying: requests that are no reads, or whose answers may not be shared.

Bodies stream both ways; nothing is stored and nothing is retried.  A write's answer is recorded before any byte of it
reaches the client, so a read that starts after the acknowledgement cannot be answered from an earlier state.  From then
on the tape may not state the tail without the origin, and a read that needs the tail sends a request of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.live.topics import LiveTopics
from gateway.protocol.mode import Mode
from gateway.protocol.names import (
    STREAM_CLOSED,
    STREAM_FORKED_FROM,
    is_true,
)
from gateway.protocol.offsets import is_before, is_sentinel, is_well_formed, stated_offset
from gateway.protocol.stream_key import Group, StreamKey
from gateway.protocol.surrogate import surrogate_keys
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.asking import PendingRequest, Requester
from gateway.upstream.reply import Bounds, Reply
from gateway.upstream.upstream import Upstream

WRITES = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})


class RelayedRequest(NamedTuple):
    """A request to be relayed: everything that the origin is sent, and the keys of what is remembered of its stream.

    `group` is what a write to the path affects, `query` the canonical rest of its target, and `client`
    the net of the client.  `tape_key` is the key of
    the tape that the client itself would read, None if its reads would bypass all tapes.
    """

    route: Route
    group: Group
    tape_key: StreamKey | None
    mode: Mode
    method: str
    path: str
    query: str
    raw_query: str
    headers: CIMultiDict[str]
    body: AsyncIterator[bytes] | bytes | None
    client: str
    is_cut_short: Callable[[], bool] = lambda: False
    """Whether the client failed to send the whole body."""
    is_session: bool = False
    """Whether request and answer go on side by side for as long as both parties like."""

    @property
    def is_live(self) -> bool:
        """Whether it may last for minutes."""
        return self.is_session or self.mode in (Mode.LONGPOLL, Mode.SSE)


class RelayExchange:
    """One relayed request under way; the `Requester` of its upstream request."""

    __slots__ = (
        "_asker",
        "_asking",
        "_has_left",
        "_relay",
        "_sent_at",
        "is_overtaken",
        "is_write",
        "request",
        "stream",
        "tail",
        "write_version",
    )

    def __init__(
        self, relay: Relay, request: RelayedRequest, asker: Requester, stream: Stream | None, asked_at: float
    ) -> None:
        self._relay = relay
        self._asker = asker
        self._sent_at = asked_at
        self.is_write = request.mode in WRITES
        self._asking: PendingRequest | None = None
        self._has_left = False
        self.request = request
        self.stream = stream
        """The stream of `request.tape_key` when the request was sent: the answer states facts about it alone."""
        self.write_version = stream.write_version if stream is not None else None
        """The stream's `write_version` at that time."""
        self.tail = stream.tape.tail if stream is not None else None
        """The stream's tail as it was known at that time."""
        self.is_overtaken = False
        """Whether the stream has been deleted or created since."""

    def begin(self, upstream: Upstream, url: str, bounds: Bounds, *, is_live: bool) -> None:
        request = self.request
        self._asking = upstream.ask(
            self,
            request.method,
            url,
            request.headers,
            bounds,
            request.body,
            is_live=is_live,
            client=request.client,
        )

    def leave(self) -> None:
        """The client no longer waits for the answer.  A write is not cancelled by that, so its effects are still
        recorded."""
        self._has_left = True
        if not self.is_write and self._asking is not None:
            asking, self._asking = self._asking, None
            asking.leave()

    # -- from the origin

    def sent(self) -> None:
        self._relay.metrics.upstream_request(self.request.mode, self.request.route.config.name)
        self._asker.sent()

    def answered(self, reply: Reply) -> None:
        self._asking = None
        self._relay.answered(self, reply, self._sent_at)
        if self._has_left:
            reply.close()
        else:
            self._asker.answered(reply)

    def failed(self, error: GatewayError) -> None:
        self._asking = None
        self._relay.failed(self, error)
        if not self._has_left:
            self._asker.failed(error)


class Relay:
    """Relays requests and records the effects of writes."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        live: LiveTopics,
        negative_cache: NegativeCache,
        clock: Clock,
        metrics: MetricsRecorder,
        s2_written: Callable[[RelayedRequest, int | None], object],
    ) -> None:
        self._negative_cache = negative_cache
        self._upstream = upstream
        self._store = store
        self._live = live
        self._clock = clock
        self.metrics = metrics
        self._s2_written = s2_written
        """Called when an S2 origin has answered a write, with the status, or may have done it, without one."""
        self._writes: dict[Group, set[RelayExchange]] = {}
        """Writes that have been sent and not answered."""

    @property
    def open_writes(self) -> int:
        """Writes that have been sent and not answered."""
        return sum(map(len, self._writes.values()))

    def __repr__(self) -> str:
        return f"<Relay {sum(map(len, self._writes.values()))} writes under way>"

    def ask(self, request: RelayedRequest, asker: Requester) -> RelayExchange:
        """Relay a request.  Its effects are recorded before `asker` is called, possibly before this returns."""
        route = request.route
        url = route.upstream_base(request.path)
        if request.raw_query:
            url = f"{url}?{request.raw_query}"
        is_live = request.is_live
        bounds = route.live_bounds if is_live else route.bounds
        if request.mode is Mode.SSE or request.is_session:
            # An origin may be silent on such a connection while nothing is appended.
            bounds = replace(bounds, idle_s=route.config.total_timeout_s, total_s=None)
        stream = self._store.find(request.tape_key) if request.tape_key is not None else None
        relayed = RelayExchange(self, request, asker, stream, self._clock.now())
        if relayed.is_write:
            self._writes.setdefault(request.group, set()).add(relayed)
            self._negative_cache.write_begins(request.group)
        relayed.begin(self._upstream, url, bounds, is_live=is_live)
        return relayed

    def answered(self, relayed: RelayExchange, reply: Reply, asked_at: float) -> None:
        """The head of the answer has arrived: record its effects."""
        request = relayed.request
        self.metrics.upstream_head(request.mode, reply.status, self._clock.now() - asked_at, request.route.config.name)
        if relayed.is_write:
            if reply.status < 500:
                self._record(request, reply, relayed)
            elif not request.is_cut_short():
                self._mark_stale(request)
            self._forget(relayed)
        elif request.mode is Mode.HEAD:
            self._record_missing(relayed, reply.status)

    def failed(self, relayed: RelayExchange, error: GatewayError) -> None:
        """There is no answer."""
        request = relayed.request
        is_cut_short = request.is_cut_short()
        if not is_cut_short and not isinstance(error, CircuitOpen | UpstreamCongested):
            self.metrics.upstream_failure(request.mode, type(error).__name__, request.route.config.name)
        if relayed.is_write:
            # The origin changes nothing for a request that it never received, nor for one whose body the client did not
            # finish, which was never complete.
            if not error.is_unsent and not is_cut_short:
                self._mark_stale(request)
            self._forget(relayed)

    def _forget(self, relayed: RelayExchange) -> None:
        group = relayed.request.group
        writes = self._writes[group]
        writes.discard(relayed)
        if not writes:
            del self._writes[group]
        self._negative_cache.write_ends(group)

    def _record(self, request: RelayedRequest, reply: Reply, write: RelayExchange) -> None:
        if request.route.is_s2:
            self._s2_written(request, reply.status)
        elif write.is_overtaken:
            # The answer may concern the stream before or the one now, and their offsets may coincide.
            self._invalidate(request)
        elif request.mode is Mode.DELETE:
            if reply.status < 300:
                self._end_group(write, End.DELETED)
            self._record_missing(write, reply.status)
            if reply.status in (404, 410):
                # An earlier attempt of this client may have deleted it and its answer was lost, or the stream is hidden
                # from this client alone.
                for stream in self._store.group(request.group):
                    stream.may_be_another()
                    # A stalled live request may hide that the origin has ended it.
                    self._live.revalidate(stream)
        elif request.mode is Mode.CREATE and reply.status == 201:
            self._end_group(write, End.RECREATED)
            self._record_created(request, reply)
        elif reply.status < 300 or is_true(reply.headers.get(STREAM_CLOSED)):
            self._acknowledge(request, reply, write)
        elif request.mode is Mode.APPEND:
            self._record_missing(write, reply.status)

    def _end_group(self, write: RelayExchange, why: End) -> None:
        """Drop every stream at the path of a write that has ended the one before it.

        Only of the writer's own stream, as it was when the write was sent, is it known what happened.  Under other
        credentials or another query the path may name another stream, and a record begun since then may be of the
        stream that the write itself began: their live readers notice nothing and resume at the origin.
        """
        group = write.request.group
        for other in self._writes[group]:
            other.is_overtaken = True
        for stream in self._store.group(group):
            self._live.drop(stream, why if stream is write.stream else End.PURGED)

    def _record_missing(self, sent: RelayExchange, status: int) -> None:
        """Record that the origin reported the stream missing to this client; others may still see it."""
        if sent.stream is None or status not in (404, 410):
            return
        if sent.stream.write_version != sent.write_version:
            # A write acknowledged since then found the stream: the next request shows what is true now.
            sent.stream.mark_stale()
            self._live.revalidate(sent.stream)
        else:
            self._live.drop(sent.stream, End.GONE if status == 410 else End.DELETED)

    def _record_created(self, request: RelayedRequest, reply: Reply) -> None:
        """Record a stream created here: the answer to a PUT says what a HEAD would."""
        if request.tape_key is None or STREAM_FORKED_FROM in request.headers or "Content-Type" not in reply.headers:
            return
        stream = self._store.open(request.tape_key, self._clock.now())
        stream.record_lifetime(request.headers)
        stream.learn_type(reply.headers["Content-Type"])
        stream.record_headers(reply.headers)
        self._store.tag(stream, surrogate_keys(reply.headers))
        self._store.weigh(stream)
        self._reached(stream, reply)

    def _acknowledge(self, request: RelayedRequest, reply: Reply, write: RelayExchange) -> None:
        tail, is_closed = _offset(reply), is_true(reply.headers.get(STREAM_CLOSED))
        may_be_remade = request.mode is Mode.APPEND and self._may_be_remade(request.group)
        for stream in self._store.group(request.group):
            stream.contacted(self._clock.now())
            if may_be_remade and stream is write.stream and _is_reached(write.tail, tail):
                self._doubt(stream)
                continue
            if tail is None:
                stream.acknowledged_without_offset()
                self._live.restart(stream)
            else:
                stream.acknowledged(tail, is_closed=is_closed, query=request.query)
                self._live.expect(stream)
            if may_be_remade and _is_reached(stream.tape.tail, tail):
                # A follower may have brought the append already, so nothing is forgotten: a PUT may take minutes, and
                # each append would cost the readers of other partitions all that is held.
                stream.mark_stale()
        # Other partitions may name another stream by this path, so only the client's own takes the facts.
        if write.stream is not None and write.stream.ended is None and not may_be_remade:
            self._reached(write.stream, reply)

    def _may_be_remade(self, group: Group) -> bool:
        """Whether a PUT or DELETE is under way: the origin may have done it before what it has answered already."""
        return any(write.request.mode is not Mode.APPEND for write in self._writes[group])

    def _doubt(self, stream: Stream) -> None:
        """An append was acknowledged that may be the first of another stream, whose offsets may coincide."""
        self._store.forget_bytes(stream)
        stream.may_be_another()
        stream.acknowledged_without_offset()
        self._live.restart(stream)

    def _reached(self, stream: Stream, reply: Reply) -> None:
        tail = _offset(reply)
        if tail is None:
            return
        try:
            stream.tape.check(tail, tail, has_bytes=False)
        except GatewayError:
            self._live.drop(stream, End.RECREATED)
            return
        stream.tape.reached(tail, is_closed=is_true(reply.headers.get(STREAM_CLOSED)))

    def _mark_stale(self, request: RelayedRequest) -> None:
        """The write may have been done: keep what is held, and ask the origin before the next hit."""
        if request.route.is_s2:
            self._s2_written(request, None)
            return
        for stream in self._store.group(request.group):
            if request.mode is not Mode.APPEND:
                if stream.needs_revalidation:
                    # One of two such writes may have deleted the stream and the other re-created it with equal offsets.
                    self._store.forget_bytes(stream)
                self._live.revalidate(stream)
                stream.may_be_another()
            else:
                stream.mark_stale(may_have_ended=False)

    def _invalidate(self, request: RelayedRequest) -> None:
        """Record a write whose answer may concern the stream before or the one now.  A PUT or DELETE, done or still
        under way, ends all that is held; an append beside none ends only what was said of the tail."""
        if request.mode is not Mode.APPEND:
            # It may have been done after them, as one that is not overtaken.
            for other in self._writes[request.group]:
                other.is_overtaken = True
        may_be_remade = self._may_be_remade(request.group)
        for stream in self._store.group(request.group):
            if may_be_remade:
                self._doubt(stream)
            else:
                # It may have gone to the stream of now, whose tail may have been read before.
                stream.acknowledged_without_offset()
                self._live.restart(stream)


def _is_reached(known: str | None, tail: str | None) -> bool:
    """Whether a known tail is not before the one that an append has named, as it would be of one stream."""
    return known is not None and (tail is None or not is_before(known, tail))


def _offset(reply: Reply) -> str | None:
    value = stated_offset(reply.headers)
    return value if value is not None and is_well_formed(value) and not is_sentinel(value) else None
