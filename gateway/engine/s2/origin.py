"""The requests of S2 readers to their origin: counted, and with the credentials of the readers that share them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.classifier import PERSONAL
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.limits.queues import Askers
from gateway.protocol.mode import Mode
from gateway.s2.read_query import ReadQuery, Start
from gateway.tape.records import Limits
from gateway.telemetry.access_record import AccessLog, RecordedStream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.asking import Upstream
from gateway.upstream.call import Bounds, OriginCall
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
        """Whether a reader of this source is to see the error, and not only the reader whose credentials it may be due
        to."""
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
        """The tail as S2's own check of it says it, which may need another permission."""
        return await self._client(source, Mode.HEAD, askers).checked_tail()

    async def session(self, source: S2Source, seq_num: int, client: str) -> Reply | AtTail | S2Refused:
        """A read session from `seq_num` on, which waits for ever, for a client of this net; the caller must close the
        reply, and counts its bytes and its failure."""
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
            # Counted and not remembered: whether a stream is there is asked at every read.
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
