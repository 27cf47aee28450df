"""Asks the origin of S2 streams for records from one start on, and about the stream as a whole.  Readers of a stream
that need the same share one request.

`S2Origin` sends the requests, counted and with the credentials of the readers that share them.

`gateway.upstream.collapse` has the rule by which readers share.  A reader with a question waits until the question in
progress is answered, and then for the next one, which all waiting readers share.  A reader of records takes the records
of a fetch in progress, and asks for those that it still needs.
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
from gateway.engine.classifier import PERSONAL
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.limits.queues import Askers
from gateway.protocol.mode import Mode
from gateway.s2.read_query import FromSeqNum, ReadQuery, Start
from gateway.tape.records import Limits
from gateway.telemetry.access_record import AccessLog, RecordedStream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.asking import Upstream
from gateway.upstream.call import Bounds, OriginCall
from gateway.upstream.collapse import Collapse, FetchEnd, Lead, SharedFetch
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import AtTail, S2Client, S2Outcome, S2Refused


@dataclass(frozen=True, slots=True)
class S2Source:
    """One S2 stream at its origin, as the readers that share it ask for it."""

    configured: Route
    stream: RecordedStream
    url: str
    """The URL of the stream."""
    headers: CIMultiDict[str]
    """Credentials and basin."""
    bounds: Bounds
    live_bounds: Bounds

    @property
    def route(self) -> str:
        """The route's name."""
        return self.configured.config.name

    def may_be_told(self, refused: S2Refused) -> bool:
        """Whether every reader of this source may see the error.  If not, it may be due to the credentials of one
        reader, which alone may see it."""
        asked_with = refused.asked_with
        return refused.status not in PERSONAL or asked_with is None or asked_with == self.headers


class S2Origin:
    """Sends reads and checks of the tail.  All methods raise GatewayErrors."""

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
        """The records from `start` on, without waiting; `limits.until` is left out."""
        return await self._client(source, Mode.CATCHUP, askers).read(ReadQuery(start, limits.count, limits.bytes))

    async def tail(self, source: S2Source, askers: Askers) -> AtTail | S2Refused:
        """The tail."""
        return await self._client(source, Mode.HEAD, askers).tail()

    async def checked_tail(self, source: S2Source, askers: Askers) -> AtTail | S2Refused:
        """The tail as S2's own check of the tail states it, which may need another permission."""
        return await self._client(source, Mode.HEAD, askers).checked_tail()

    async def session(self, source: S2Source, seq_num: int, client: str) -> Reply | AtTail | S2Refused:
        """A read session from `seq_num` on, which waits for ever, for a client of this net.  The caller must close the
        reply, and count its bytes and its failure."""
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
        asked_at = self._clock.now()
        try:
            reply = await self._upstream.send(call, partial(self._sent, source, mode))
        except GatewayError as error:
            if mode is not Mode.SSE and not isinstance(error, CircuitOpen | UpstreamCongested):
                self._metrics.upstream_failure(mode, type(error).__name__, source.route)
            raise
        self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, source.route)
        if reply.status == 404:
            # The 404 is counted but not remembered, because every read asks whether the stream exists.
            client = call.client.first if isinstance(call.client, Askers) else call.client
            self._negative_cache.count(source.configured, client)
        return reply

    def _sent(self, source: S2Source, mode: Mode) -> None:
        self._metrics.upstream_request(mode, source.route)
        self._access_log.unclaimed(source.stream, mode, requests=1)

    def received(self, source: S2Source, mode: Mode, size: int) -> None:
        """Count body bytes received from the origin."""
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
    """Whether the fetch was sent after the reader's request had arrived."""
    is_all: bool
    """Whether the origin had nothing more within the reader's limits."""


class S2Fetch(SharedFetch):
    """One fetch of records, or one question."""

    __slots__ = ("is_overlapping", "later", "limits", "outcome", "start", "waiting")

    def __init__(self, client: str, limits: Limits = _NO_LIMITS, start: Start | None = None) -> None:
        super().__init__(client)
        self.start = start
        """The position from which records are fetched; None for a question."""
        self.limits = limits
        self.outcome: S2Outcome | None = None
        """The origin's answer; None if a confirmation has confirmed the records held."""
        self.is_overlapping = False
        """Whether the fetch began with a record that was held, which has used a part of its limits."""
        self.waiting = 0
        """Readers that wait for the fetch."""
        self.later = 0
        """Readers that wait until the fetch is over, and then ask again."""

    def spans(self, seq_num: int) -> bool:
        """Whether the fetch may bring the record at `seq_num`, after others."""
        if self.start is None or self.is_over:
            return False
        first = self.start.seq_num if isinstance(self.start, FromSeqNum) else seq_num
        return first < seq_num < first + (self.limits.count or 0)

    def widen(self, wanted: Limits) -> None:
        """Widen the limits of the fetch to those of another reader."""
        if not self.limits.covers(wanted):
            self.limits = Limits(
                max(self.limits.count or 0, wanted.count or 0), max(self.limits.bytes or 0, wanted.bytes or 0)
            )

    async def result(self) -> S2Outcome | None:
        """Wait for the outcome, and return it.  Raises the GatewayError that the fetch failed with."""
        self.waiting += 1
        try:
            await self.until_over()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error.anew()
        return self.outcome


Send = Callable[[S2Fetch], Awaitable[S2Outcome | None]]
"""Asks the origin; raises GatewayErrors and is bounded in time."""


class S2Fetches:
    """The fetches and questions of one stream.  Owner: the `S2Stream`."""

    def __init__(self, tasks: Tasks, path: str) -> None:
        self._fetches: Collapse[Start | S2Question, S2Fetch] = Collapse()
        self._tasks = tasks
        self._path = path

    def __repr__(self) -> str:
        later = sum(fetch.later for _, fetch in self._fetches)
        waiting = sum(fetch.waiting for _, fetch in self._fetches)
        return f"<S2Fetches {waiting} wait for {len(self._fetches)}, {later} for the next>"

    def is_asking(self, question: S2Question) -> bool:
        """Whether this question is in progress, or about to be sent."""
        return self._fetches.pending(question) is not None

    async def ask_question(
        self, question: S2Question, send: Callable[[Askers], Awaitable[S2Outcome | None]], client: str
    ) -> S2Outcome | None:
        """The answer to a question that is sent after this call, for a client of this net.

        Raises the GatewayError that the question failed with.
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
                # The gateway is about to stop, or the question failed with an unexpected error.
                return await earlier.result()
        joined = self._fetches.join_fetch(question, client, lambda: S2Fetch(client))
        if isinstance(joined, Lead):
            self._run(question, joined.fetch, lambda fetch: send(fetch.askers), question.value)
        return await joined.fetch.result()

    def bringing(self, start: Start) -> S2Fetch | None:
        """The fetch from `start` on, or one that may bring the record there after others."""
        fetch = self._fetches.pending(start)
        if fetch is None and isinstance(start, FromSeqNum):
            fetch = next((one for _, one in self._fetches if one.spans(start.seq_num)), None)
        return fetch

    def join_fetch(self, start: Start, wanted: Limits, send: Send, client: str) -> S2Fetch:
        """The fetch from `start` on that has not been sent yet, for a client of this net."""
        joined = self._fetches.join_fetch(start, client, lambda: S2Fetch(client, wanted, start))
        if isinstance(joined, Lead):
            self._run(start, joined.fetch, send, "fetch")
        else:
            joined.fetch.widen(wanted)
        return joined.fetch

    def _run(self, key: Start | S2Question, fetch: S2Fetch, send: Send, name: str) -> None:
        # The task begins in the next turn of the loop, so all readers that come in this turn share the fetch.
        task = self._tasks.start(_sent(fetch, send), f"{name} {self._path}")
        # A callback, because a task that is cancelled before its first step never reaches its `finally`.
        task.add_done_callback(lambda _: self._fetches.work_ended(key, fetch))


async def _sent(fetch: S2Fetch, send: Send) -> None:
    fetch.is_sent = True
    try:
        outcome = fetch.outcome = await send(fetch)
    except GatewayError as error:
        fetch.fail(error)
    else:
        fetch.land(FetchEnd.REFUSED if isinstance(outcome, S2Refused) else FetchEnd.LANDED)
