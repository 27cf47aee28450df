"""Shared requests to S2 origins: readers of a stream that need the same records, or the tail, share one request.

`S2Origin` sends and counts the requests.  A request has the credentials of the readers that share it.  `S2Fetches`
tracks the requests of one stream.  `gateway.upstream.collapse` defines which readers may share a request.

Questions about the stream as a whole (`S2Question`) are shared differently from reads of records.  If the question of a
reader is under way already, the reader waits until the origin has answered it.  Then this reader and all others that
wait share the next request with this question.  A reader of records uses the records of a fetch under way, and asks the
origin only for later records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.reply_classifier import PERSONAL
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.limits.queues import Askers
from gateway.protocol.mode import Mode
from gateway.s2.read_query import FromSeqNum, ReadQuery, Start
from gateway.tape.record_tape import Limits
from gateway.telemetry.access_record import AccessLog, RecordedStream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.collapse import Collapse, FetchEnd, Lead, SharedFetch
from gateway.upstream.origin_call import Bounds, OriginCall, Shared
from gateway.upstream.reply import Reply, Upstream
from gateway.upstream.s2_client import AtTail, S2Client, S2Outcome, S2Refused


@dataclass(frozen=True, slots=True)
class S2Source:
    """The upstream source of a stream for the readers that share it."""

    configured: Route
    stream: RecordedStream
    url: str
    """The stream's URL."""
    headers: CIMultiDict[str]
    """The request headers for credentials and basin (S2's namespace of streams)."""
    bounds: Bounds
    live_bounds: Bounds
    shared: Shared | None = None
    """The stream whose owner, perhaps another worker, is asked; None if the origin itself is asked."""

    @property
    def route(self) -> str:
        """The route's name."""
        return self.configured.config.name

    def may_be_told(self, refused: S2Refused) -> bool:
        """Return whether every reader of this source may see the error.  Otherwise the error may concern one reader's
        credentials, and only this reader may see it.
        """
        asked_with = refused.asked_with
        return refused.status not in PERSONAL or asked_with is None or asked_with == self.headers


class S2Origin:
    """Sends reads and tail checks.  All methods raise GatewayErrors."""

    def __init__(
        self,
        upstream: Upstream,
        clock: Clock,
        metrics: MetricsRecorder,
        access_log: AccessLog,
        negative_cache: NegativeCache,
    ) -> None:
        self._upstream = upstream
        self._clock = clock
        self._metrics = metrics
        self._access_log = access_log
        self._negative_cache = negative_cache

    async def read(self, source: S2Source, start: Start, limits: Limits, askers: Askers) -> S2Outcome:
        """Read the records from `start` on, without waiting; `limits.until` is ignored."""
        return await self._client(source, Mode.CATCHUP, askers).read(ReadQuery(start, limits.count, limits.bytes))

    async def tail(self, source: S2Source, askers: Askers) -> AtTail | S2Refused:
        """Return the tail, found by a read."""
        return await self._client(source, Mode.HEAD, askers).tail()

    async def checked_tail(self, source: S2Source, askers: Askers) -> AtTail | S2Refused:
        """Return the tail from S2's tail check, which may need another permission than a read."""
        return await self._client(source, Mode.HEAD, askers).checked_tail()

    async def session(self, source: S2Source, seq_num: int, client: str) -> Reply | AtTail | S2Refused:
        """Open a read session from `seq_num` on, without a time limit, for a client in the network `client`.

        The caller must close the reply, and count the reply's bytes and failure.
        """
        return await self._client(source, Mode.SSE, client).session(seq_num, None)

    def _client(self, source: S2Source, mode: Mode, client: str | Askers) -> S2Client:
        is_live = mode is Mode.SSE
        return S2Client(
            partial(self._send, source, mode),
            source.url,
            source.headers,
            source.live_bounds if is_live else source.bounds,
            client,
            is_live,
            partial(self.received, source, mode),
        )

    async def _send(self, source: S2Source, mode: Mode, call: OriginCall) -> Reply:
        asked_at, sent = self._clock.now(), partial(self._sent, source, mode)
        try:
            reply = await self._upstream.send(call._replace(shared=source.shared), sent)
            if reply.said is not None and reply.said.alone is not None:
                # The stream's owner, another worker, may have asked with other credentials.
                reply.close()
                reply = await self._upstream.send(call, sent)
        except GatewayError as error:
            if mode is not Mode.SSE and not isinstance(error, CircuitOpen | UpstreamCongested):
                self._metrics.upstream_failure(mode, type(error).__name__, source.route)
            raise
        if reply.said is not None:
            # The owner counts its own requests.
            return reply
        self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, source.route)
        if reply.status == 404:
            # Count the 404 without remembering it: S2 reads are linearizable, so each read must ask.
            client = call.client.first if isinstance(call.client, Askers) else call.client
            self._negative_cache.count(source.configured, client)
        return reply

    def _sent(self, source: S2Source, mode: Mode) -> None:
        self._metrics.upstream_request(mode, source.route)
        self._access_log.unclaimed(source.stream, mode, requests=1)

    def received(self, source: S2Source, mode: Mode, reply: Reply, size: int) -> None:
        """Count body bytes received from the origin."""
        if reply.said is not None:
            return
        self._metrics.upstream_bytes(size, mode, source.route)
        self._access_log.unclaimed(source.stream, mode, fetched_bytes=size)


_NO_LIMITS: Final = Limits()


class S2Question(Enum):
    """A question about the stream as a whole."""

    TAIL = "tail"
    CHECKED_TAIL = "check tail"
    CONFIRMATION = "confirm"


class S2Fetched(NamedTuple):
    """The result of a fetch for one reader."""

    outcome: S2Outcome
    is_fresh: bool
    """Whether the fetch was sent after the reader's request arrived, so that its tail is valid for this reader."""
    is_all: bool
    """Whether the origin had no more records within the reader's limits."""


class S2Fetch(SharedFetch):
    """A fetch of records, or a question."""

    __slots__ = ("is_overlapping", "later", "limits", "outcome", "start", "waiting")

    def __init__(self, client: str, limits: Limits = _NO_LIMITS, start: Start | None = None) -> None:
        super().__init__(client)
        self.start = start
        """The position from which records are fetched; None for a question."""
        self.limits = limits
        self.outcome: S2Outcome | None = None
        """The origin's answer; None if a confirmation has succeeded."""
        self.is_overlapping = False
        """Whether the fetch began with a record that was in memory already.  This record uses up a part of the fetch's
        limits."""
        self.waiting = 0
        """The number of readers that wait for the fetch."""
        self.later = 0
        """The number of readers that wait for the fetch to end before they ask their own question."""

    def spans(self, seq_num: int) -> bool:
        """Return whether the fetch may bring the record `seq_num`, but not as its first record."""
        if self.start is None or self.is_over:
            return False
        first = self.start.seq_num if isinstance(self.start, FromSeqNum) else seq_num
        return first < seq_num < first + (self.limits.count or 0)

    def widen(self, wanted: Limits) -> None:
        """Extend the fetch's limits to include the limits of another reader."""
        if not self.limits.covers(wanted):
            self.limits = Limits(
                max(self.limits.count or 0, wanted.count or 0), max(self.limits.bytes or 0, wanted.bytes or 0)
            )

    async def result(self) -> S2Outcome | None:
        """Wait for the outcome and return it; None if a confirmation has succeeded.  Raises a GatewayError if the fetch
        failed."""
        self.waiting += 1
        try:
            await self.until_over()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error.anew()
        return self.outcome


Send = Callable[[S2Fetch], Awaitable[S2Outcome | None]]
"""Asks the origin, within a time limit; raises GatewayErrors."""


class S2Fetches:
    """The fetches and questions of one stream, owned by its `S2Stream`."""

    def __init__(self, tasks: Tasks, path: str) -> None:
        self._fetches: Collapse[Start | S2Question, S2Fetch] = Collapse()
        self._tasks = tasks
        self._path = path

    def __repr__(self) -> str:
        later = sum(fetch.later for _, fetch in self._fetches)
        waiting = sum(fetch.waiting for _, fetch in self._fetches)
        return f"<S2Fetches {waiting} wait for {len(self._fetches)}, {later} for the next>"

    def is_asking(self, question: S2Question) -> bool:
        """Return whether this question is under way or about to be sent."""
        return self._fetches.pending(question) is not None

    async def ask_question(
        self, question: S2Question, send: Callable[[Askers], Awaitable[S2Outcome | None]], client: str
    ) -> S2Outcome | None:
        """Return the answer to a question that is sent after this call, for a client in the network `client`.

        Raises a GatewayError if the question fails.
        """
        earlier = self._fetches.pending(question)
        if earlier is not None and earlier.is_sent:
            earlier.askers.add_client(client)
            earlier.later += 1
            try:
                await earlier.until_over()
            finally:
                earlier.later -= 1
            if earlier.end is FetchEnd.GIVEN_UP:
                # The gateway is shutting down, or the question failed unexpectedly.
                return await earlier.result()
        joined = self._fetches.join_fetch(question, client, lambda: S2Fetch(client))
        if isinstance(joined, Lead):
            self._run(question, joined.fetch, lambda fetch: send(fetch.askers), question.value)
        return await joined.fetch.result()

    def bringing(self, start: Start) -> S2Fetch | None:
        """Return a fetch that may bring the record at `start`, as its first record or after earlier records; None if
        there is none."""
        fetch = self._fetches.pending(start)
        if fetch is None and isinstance(start, FromSeqNum):
            fetch = next((one for _, one in self._fetches if one.spans(start.seq_num)), None)
        return fetch

    def join_fetch(self, start: Start, wanted: Limits, send: Send, client: str) -> S2Fetch:
        """Join the unsent fetch from `start`, or start one; `client` is the client's network."""
        joined = self._fetches.join_fetch(start, client, lambda: S2Fetch(client, wanted, start))
        if isinstance(joined, Lead):
            self._run(start, joined.fetch, send, "fetch")
        else:
            joined.fetch.widen(wanted)
        return joined.fetch

    def _run(self, key: Start | S2Question, fetch: S2Fetch, send: Send, name: str) -> None:
        # The task starts in the next turn of the loop, so all readers of this turn share the fetch.
        task = self._tasks.start(_sent(fetch, send), f"{name} {self._path}")
        # A callback, because a task that is cancelled before its first step never reaches a `finally`.
        task.add_done_callback(lambda _: self._fetches.work_ended(key, fetch))


async def _sent(fetch: S2Fetch, send: Send) -> None:
    fetch.is_sent = True
    try:
        outcome = fetch.outcome = await send(fetch)
    except GatewayError as error:
        fetch.fail(error)
    else:
        fetch.land(FetchEnd.REFUSED if isinstance(outcome, S2Refused) else FetchEnd.LANDED)
