"""The requests that the gateway itself sends to an S2 origin.

They are protobuf, whatever the readers asked for, and carry the credentials and the basin of the readers that share
them.  A read here never waits at the tail.  What an answer means to the records
held is decided by the callers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.classifier import PERSONAL
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.errors import GatewayError, UpstreamBroken
from gateway.limits.askers import Askers
from gateway.protocol.mode import Mode
from gateway.s2 import protobuf, session
from gateway.s2.draining import says_draining
from gateway.s2.errors import Unwritten, parse_error
from gateway.s2.json_format import BadJson, decode_tail
from gateway.s2.read_query import FromSeqNum, FromTailOffset, ReadQuery, Start, encode_read_query
from gateway.s2.records import Record, StreamPosition
from gateway.tape.records import Limits
from gateway.telemetry.access_record import AccessLog, RecordedStream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.call import Bounds, OriginCall
from gateway.upstream.reply import Reply
from gateway.upstream.upstream import Upstream

T = TypeVar("T")

MOST_BODY_BYTES: Final = 4 * 1024 * 1024
"""The largest answer to a read; its metered bytes are at most 1 MiB."""

_MOST_ERROR_BYTES: Final = 64 * 1024

SILENCE_S: Final = 20.0
"""A session without a frame for this long is lost: S2 sends one at least every 15 s, and its SDKs wait 20 s."""

_MOST_DRAINS: Final = 3
"""How many servers in a row may be about to leave before a question is answered so."""

_PROBE: Final = ReadQuery(FromTailOffset(0), count=0)
"""A read that is always answered with the tail.  It needs no other permission than the reads that depend on it."""


@dataclass(frozen=True, slots=True)
class Source:
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


@dataclass(frozen=True, slots=True)
class Found:
    """The records that the origin has from the start on, within the limits asked for.

    There are none if the first is larger than these, or if nothing is left between the start and the tail.
    """

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class AtTail:
    """The origin has no record at the start or after it."""

    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class Refused:
    """The origin answered with an error.  `body` is S2's JSON if the origin is S2."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    asked_by: Source | None = None
    """The credentials that the origin was asked with; None if the error is the gateway's own."""

    @property
    def is_draining(self) -> bool:
        """Whether it says that the server is about to leave."""
        return says_draining(self.status, self.body)

    def is_for(self, source: Source) -> bool:
        """Whether a reader of this source is to see the error, and not only the reader whose credentials it may be due
        to."""
        asked_by = self.asked_by
        return self.status not in PERSONAL or asked_by is None or asked_by.headers == source.headers


Outcome = Found | AtTail | Refused


class OriginReads:
    """Sends reads and checks of the tail."""

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

    async def read(self, source: Source, start: Start, limits: Limits, askers: Askers) -> Outcome:
        """The records from `start` on, without waiting; `limits.until` is left out.  Raises a GatewayError."""
        return await self._read(source, ReadQuery(start, limits.count, limits.bytes), Mode.CATCHUP, askers)

    async def tail(self, source: Source, askers: Askers) -> AtTail | Refused:
        """The tail.  Raises a GatewayError."""
        outcome = await self._read(source, _PROBE, Mode.HEAD, askers)
        if isinstance(outcome, Found):
            raise UpstreamBroken("Origin answered a probe of the tail with records")
        return outcome

    async def checked_tail(self, source: Source, askers: Askers) -> AtTail | Refused:
        """The tail as S2's own check of it says it, which may need another permission.  Raises a GatewayError."""
        return await _past_drains(lambda: self._checked_tail(source, askers))

    async def _checked_tail(self, source: Source, askers: Askers) -> AtTail | Refused:
        reply, asked_at = await self._send(source, "/records/tail", "application/json", Mode.HEAD, askers)
        async with reply:
            if (refused := await self._refusal(source, reply, asked_at, Mode.HEAD, askers.first)) is not None:
                return refused
            try:
                return AtTail(decode_tail(await reply.read(_MOST_ERROR_BYTES)))
            except BadJson as error:
                raise UpstreamBroken from error

    async def session(self, source: Source, seq_num: int, client: str) -> Reply | AtTail | Refused:
        """A read session from `seq_num` on, which waits for ever, for a client of this net; the caller must close the
        reply.

        Raises a GatewayError.
        """
        query = encode_read_query(ReadQuery(FromSeqNum(seq_num)))
        headers = _with(source.headers, {"Content-Type": session.CONTENT_TYPE})
        bounds = replace(source.live_bounds, idle_s=SILENCE_S, total_s=None)
        asked_at = self._clock.now()
        call = OriginCall("GET", f"{source.url}/records?{query}", headers, bounds, is_live=True, client=client)
        reply = await self._upstream.send(call, lambda: self._sent(source, Mode.SSE))
        try:
            refused = await self._refusal(source, reply, asked_at, Mode.SSE, client)
        except BaseException:
            reply.close()
            raise
        if refused is None:
            return reply
        reply.close()
        return _at_tail(refused) or refused

    async def _read(self, source: Source, query: ReadQuery, mode: Mode, askers: Askers) -> Outcome:
        return await _past_drains(lambda: self._read_once(source, query, mode, askers))

    async def _read_once(self, source: Source, query: ReadQuery, mode: Mode, askers: Askers) -> Outcome:
        target = f"/records?{encode_read_query(query)}"
        reply, asked_at = await self._send(source, target, protobuf.CONTENT_TYPE, mode, askers)
        async with reply:
            if (refused := await self._refusal(source, reply, asked_at, mode, askers.first)) is not None:
                return _at_tail(refused) or refused
            body = await reply.read(MOST_BODY_BYTES)
            self.received(source, len(body), mode)
            try:
                return Found(protobuf.decode_read_batch(body).records)
            except protobuf.BadProtobuf as error:
                raise UpstreamBroken from error

    async def _send(self, source: Source, target: str, accept: str, mode: Mode, askers: Askers) -> tuple[Reply, float]:
        asked_at = self._clock.now()
        headers = _with(source.headers, {"Accept": accept})
        call = OriginCall("GET", source.url + target, headers, source.bounds, client=askers)
        try:
            reply = await self._upstream.send(call, lambda: self._sent(source, mode))
        except GatewayError as error:
            self._metrics.upstream_failure(mode, type(error).__name__, source.route)
            raise
        return reply, asked_at

    def _sent(self, source: Source, mode: Mode) -> None:
        self._metrics.upstream_request(mode, source.route)
        self._access_log.unclaimed(source.stream, mode, requests=1)

    def received(self, source: Source, size: int, mode: Mode) -> None:
        """Count body bytes received from the origin."""
        self._metrics.upstream_bytes(size, mode, source.route)
        self._access_log.unclaimed(source.stream, mode, fetched_bytes=size)

    async def _refusal(self, source: Source, reply: Reply, asked_at: float, mode: Mode, client: str) -> Refused | None:
        """The error that the reply is, to a request made for `client`'s net; None if it is a 200."""
        self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, source.route)
        if reply.status == 200:
            return None
        if reply.status == 404:
            # Counted and not remembered: whether a stream is there is asked at every read.
            self._negative_cache.count(source.configured, client)
        if reply.status < 400:
            raise UpstreamBroken("Origin answered a read with neither records nor an error")
        headers: CIMultiDict[str] = CIMultiDict()
        for name in ("Content-Type", "Retry-After"):
            if (value := reply.headers.get(name)) is not None:
                headers[name] = value
        refused = Refused(reply.status, headers, await reply.read(_MOST_ERROR_BYTES), source)
        if refused.is_draining:
            reply.retire()
        return refused


async def _past_drains(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again, on another connection, as long as the server of the one is about to leave."""
    outcome = await ask()
    for _ in range(_MOST_DRAINS):
        if not isinstance(outcome, Refused) or not outcome.is_draining:
            break
        outcome = await ask()
    return outcome


def _with(headers: CIMultiDict[str], more: dict[str, str]) -> CIMultiDict[str]:
    found = CIMultiDict(headers)
    found.update(more)
    return found


def _at_tail(refused: Refused) -> AtTail | None:
    if refused.status == 416:
        error = parse_error(416, refused.body)
        if isinstance(error, Unwritten):
            return AtTail(error.tail)
    return None
