"""What is no read, or may not be shared, goes through: bodies stream both ways, nothing is kept, nothing is repeated.

A write's answer is recorded before any byte of it reaches the client, so a read that starts after the acknowledgement
cannot be answered from before it: what the tape may claim without the origin ends here, and whoever looks at the tail
afterwards does so with a request of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.absences import Absences
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError
from gateway.live.topics import LiveTopics
from gateway.protocol.mode import Mode
from gateway.protocol.names import (
    STREAM_CLOSED,
    STREAM_FORKED_FROM,
    STREAM_NEXT_OFFSET,
    is_true,
)
from gateway.protocol.offsets import is_sentinel, is_well_formed
from gateway.protocol.stream_key import Group, StreamKey
from gateway.protocol.surrogate import surrogate_keys
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.asking import Asker, Asking
from gateway.upstream.reply import Bounds, Reply
from gateway.upstream.upstream import Upstream

WRITES = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A request to be relayed: everything the origin is to see, and what is remembered of its stream.

    `group` is what a write to the path concerns, `query` the canonical rest of its target; `own` is the tape that the
    writer itself would read from, None where it would read past all tapes.
    """

    route: Route
    group: Group
    own: StreamKey | None
    mode: Mode
    method: str
    path: str
    query: str
    raw_query: str
    headers: CIMultiDict[str]
    body: AsyncIterator[bytes] | bytes | None
    is_cut_short: Callable[[], bool] = lambda: False
    """Whether the client failed to send the whole body."""


class RelayExchange:
    """One request on its way, and an `Asker` of the origin's."""

    __slots__ = (
        "_asked_at",
        "_asker",
        "_asking",
        "_has_left",
        "_is_write",
        "_relay",
        "is_overtaken",
        "own",
        "passed",
        "turn",
    )

    def __init__(self, relay: Relay, passed: RelayedRequest, asker: Asker, own: Stream | None, asked_at: float) -> None:
        self._relay = relay
        self._asker = asker
        self._asked_at = asked_at
        self._is_write = passed.mode in WRITES
        self._asking: Asking | None = None
        self._has_left = False
        self.passed = passed
        self.own = own
        """The writer's own tape as it was when the request was sent, the only one of which the answer states facts."""
        self.turn = own.write_turn if own is not None else None
        """The turn of its writes then."""
        self.is_overtaken = False
        """Whether the stream has been deleted or created since."""

    def begin(self, upstream: Upstream, url: str, bounds: Bounds) -> None:
        passed = self.passed
        is_live = passed.mode in (Mode.LONGPOLL, Mode.SSE)
        self._asking = upstream.ask(self, passed.method, url, passed.headers, bounds, passed.body, is_live=is_live)

    def leave(self) -> None:
        """Nobody waits for the answer any more.  That takes no write back, so what it changed is recorded all the
        same."""
        self._has_left = True
        if not self._is_write and self._asking is not None:
            asking, self._asking = self._asking, None
            asking.leave()

    # -- from the origin

    def sent(self) -> None:
        self._relay.metrics.upstream_request(self.passed.mode, self.passed.route.config.name)
        self._asker.sent()

    def answered(self, reply: Reply) -> None:
        self._asking = None
        self._relay.answered(self, reply, self._asked_at)
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
    """Relays requests and records what writes change."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        live: LiveTopics,
        absences: Absences,
        clock: Clock,
        metrics: MetricsRecorder,
    ) -> None:
        self._absences = absences
        self._upstream = upstream
        self._store = store
        self._live = live
        self._clock = clock
        self.metrics = metrics
        self._writes: dict[Group, set[RelayExchange]] = {}
        """Writes that have been sent and not answered."""

    def ask(self, passed: RelayedRequest, asker: Asker) -> RelayExchange:
        """Relay.  `asker` is told what becomes of it, maybe before this returns; what it changed is recorded before."""
        route = passed.route
        url = route.upstream_base(passed.path)
        if passed.raw_query:
            url = f"{url}?{passed.raw_query}"
        bounds = route.live_bounds if passed.mode in (Mode.LONGPOLL, Mode.SSE) else route.bounds
        if passed.mode is Mode.SSE:
            # An origin may be silent on an SSE connection for as long as nothing is appended.
            bounds = replace(bounds, idle_s=route.config.total_timeout_s, total_s=None)
        own = self._store.find(passed.own) if passed.own is not None else None
        relayed = RelayExchange(self, passed, asker, own, self._clock.now())
        if passed.mode in WRITES:
            self._writes.setdefault(passed.group, set()).add(relayed)
            self._absences.write_begins(passed.group)
        relayed.begin(self._upstream, url, bounds)
        return relayed

    def answered(self, relayed: RelayExchange, reply: Reply, asked_at: float) -> None:
        """The head of the answer is here: record what it says."""
        passed = relayed.passed
        self.metrics.upstream_head(passed.mode, reply.status, self._clock.now() - asked_at, passed.route.config.name)
        if passed.mode in WRITES:
            if reply.status < 500:
                self._record(passed, reply, relayed)
            elif not passed.is_cut_short():
                self._mark_stale(passed)
            self._forget(relayed)
        elif passed.mode is Mode.HEAD:
            self._lost(relayed, reply.status)

    def failed(self, relayed: RelayExchange, error: GatewayError) -> None:
        """There is no answer."""
        passed = relayed.passed
        is_cut_short = passed.is_cut_short()
        if not is_cut_short and not isinstance(error, CircuitOpen):
            self.metrics.upstream_failure(passed.mode, type(error).__name__, passed.route.config.name)
        if passed.mode in WRITES:
            # What the origin never had cannot have changed anything there, nor can a body that the client itself did
            # not finish: the origin never had a complete request.
            if not error.is_unsent and not is_cut_short:
                self._mark_stale(passed)
            self._forget(relayed)

    def _forget(self, relayed: RelayExchange) -> None:
        group = relayed.passed.group
        writes = self._writes[group]
        writes.discard(relayed)
        if not writes:
            del self._writes[group]
        self._absences.write_ends(group)

    def _record(self, passed: RelayedRequest, reply: Reply, write: RelayExchange) -> None:
        if write.is_overtaken:
            # It speaks of the stream that was, or of the one that is now; their offsets may well be the same.
            self._distrust(passed)
        elif passed.mode is Mode.DELETE:
            if reply.status < 300:
                self._end_group(passed, End.DELETED)
            self._lost(write, reply.status)
            if reply.status in (404, 410):
                # An earlier attempt of this client's may have done it, and its answer got lost; or it is the one client
                # to whom the stream is not shown.
                for stream in self._store.group(passed.group):
                    stream.may_be_another()
                    # The origin need not have ended a live request that has stalled.
                    self._live.revalidate(stream)
        elif passed.mode is Mode.CREATE and reply.status == 201:
            self._end_group(passed, End.RECREATED)
            self._begin(passed, reply)
        elif reply.status < 300 or is_true(reply.headers.get(STREAM_CLOSED)):
            self._acknowledge(passed, reply, write)
        elif passed.mode is Mode.APPEND:
            self._lost(write, reply.status)

    def _end_group(self, passed: RelayedRequest, why: End) -> None:
        for write in self._writes[passed.group]:
            write.is_overtaken = True
        for stream in self._store.purge(passed.group, why):
            self._live.end(stream, why)

    def _lost(self, sent: RelayExchange, status: int) -> None:
        """The origin told this client that there is no such stream; others may still see it."""
        if sent.own is None or status not in (404, 410):
            return
        if sent.own.write_turn != sent.turn:
            # A write that was acknowledged since found it there: the next request tells what is true now.
            sent.own.mark_stale()
            self._live.revalidate(sent.own)
        else:
            self._live.drop(sent.own, End.GONE if status == 410 else End.DELETED)

    def _begin(self, passed: RelayedRequest, reply: Reply) -> None:
        """A stream was created here: what a HEAD would tell is known already."""
        if passed.own is None or STREAM_FORKED_FROM in passed.headers or "Content-Type" not in reply.headers:
            return
        stream = self._store.open(passed.own, self._clock.now())
        stream.record_lifetime(passed.headers)
        stream.learn_type(reply.headers["Content-Type"])
        stream.record_headers(reply.headers)
        self._store.tag(stream, surrogate_keys(reply.headers))
        self._reached(stream, reply)

    def _acknowledge(self, passed: RelayedRequest, reply: Reply, write: RelayExchange) -> None:
        tail, is_closed = _offset(reply), is_true(reply.headers.get(STREAM_CLOSED))
        for stream in self._store.group(passed.group):
            stream.contacted(self._clock.now())
            if tail is None:
                stream.acknowledged_somewhere()
                self._live.restart(stream)
            else:
                stream.acknowledged(tail, is_closed=is_closed, query=passed.query)
                self._live.expect(stream)
        # Other partitions may name another stream by this path: only the writer's own takes the facts.
        if write.own is not None and write.own.ended is None:
            self._reached(write.own, reply)

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

    def _mark_stale(self, passed: RelayedRequest) -> None:
        """The write may have been done: what is held is kept, and the origin is looked at before the next hit."""
        for stream in self._store.group(passed.group):
            if passed.mode is not Mode.APPEND:
                if stream.needs_revalidation:
                    # Of two such writes one may have deleted it and the other begun it anew, with the same offsets.
                    self._store.forget_bytes(stream)
                self._live.revalidate(stream)
                stream.may_be_another()
            else:
                stream.mark_stale(may_have_ended=False)

    def _distrust(self, passed: RelayedRequest) -> None:
        """Believe nothing of what is held."""
        for stream in self._store.group(passed.group):
            if passed.mode is not Mode.APPEND:
                self._store.forget_bytes(stream)
            self._live.restart(stream)


def _offset(reply: Reply) -> str | None:
    value = reply.headers.get(STREAM_NEXT_OFFSET)
    return value if value is not None and is_well_formed(value) and not is_sentinel(value) else None
