"""The gateway's own requests to an S2 origin for one stream, and the outcomes of these requests.

Reads are in protobuf, even if the client asked for JSON.  Both the engine's reads of S2 streams and the bridge
(`gateway.bridge`) use this client.  The engine and the bridge decide how an outcome affects the records in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from multidict import CIMultiDict

from gateway.errors import UpstreamBroken
from gateway.limits.queues import Askers
from gateway.s2 import protobuf, session
from gateway.s2.errors import Other, S2ErrorCode, Unwritten, parse_error, says_draining
from gateway.s2.json_format import CONTENT_TYPE, BadJson, decode_tail
from gateway.s2.read_query import FromSeqNum, FromTailOffset, ReadQuery, encode_read_query
from gateway.s2.records import Record, StreamPosition
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.reply import Reply

T = TypeVar("T")

MOST_BODY_BYTES: Final = 4 * 1024 * 1024
"""The largest accepted reply to a read, in bytes.  S2 limits the metered bytes (S2's measure of the records' size) to 1
MiB.
"""

MOST_ERROR_BYTES: Final = 64 * 1024

SILENCE_S: Final = 20.0
"""A session without a frame for this long is lost.  S2 sends a frame at least every 15 s, and its SDKs wait 20 s."""

MOST_OVERLAP_BYTES: Final = 1 << 16
"""A read repeats the last known record, to check that the following records continue the stream.  A record with more
metered bytes than this is not repeated.
"""

_MOST_DRAINS: Final = 3
"""The most times that a request is sent again because the server is about to shut down."""

PROBE: Final = ReadQuery(FromTailOffset(0), count=0)
"""A read whose reply is always the tail.  It needs only the permission to read."""

_DELETIONS: Final = frozenset({S2ErrorCode.STREAM_DELETION_PENDING.code, S2ErrorCode.BASIN_DELETION_PENDING.code})

_READ: Final = frozenset({200})
_WRITTEN: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The origin's records from the start of the read, within the limits of the read.

    The list is empty if the first record exceeds the limits, or if no record is left between the start and the tail.
    """

    records: tuple[Record, ...]
    tail: StreamPosition | None = None
    """The tail, if the reply reaches the tail and states it."""
    is_remembered: bool = False
    """Whether the stream's owner, another worker, has stated the tail from memory, as in `AtTail`."""


@dataclass(frozen=True, slots=True)
class AtTail:
    """The origin has no record at the start of the read or after it."""

    tail: StreamPosition
    is_remembered: bool = False
    """Whether the stream's owner, another worker, has stated the tail from memory.  There may be records after this
    tail."""


@dataclass(frozen=True, slots=True)
class S2Refused:
    """An error from the origin, or an error of the gateway's own in the same form.  `body` is usually S2's JSON, but a
    proxy may send something else."""

    status: int
    headers: CIMultiDict[str]
    """The error's Content-Type and Retry-After, if there are any."""
    body: bytes
    asked_with: CIMultiDict[str] | None = None
    """The request headers; None if the gateway itself made the error, or if the error ended a session."""

    @property
    def is_draining(self) -> bool:
        """Whether the error states that the server is about to shut down."""
        return says_draining(self.status, self.body)

    @property
    def is_absent(self) -> bool:
        """Whether the stream does not exist.  A stream that is being deleted counts as absent too."""
        if self.status not in (404, 409):
            return False
        error = parse_error(self.status, self.body)
        return self.status == 404 or (isinstance(error, Other) and error.code in _DELETIONS)


def _ignore(reply: Reply, size: int) -> None:
    """Do nothing: the bytes are counted elsewhere."""


S2Outcome = FoundRecords | AtTail | S2Refused


def ended_with(status: int, body: bytes) -> S2Refused:
    """Return an error in S2's JSON, for an error of the gateway itself or an error that ended a session."""
    return S2Refused(status, CIMultiDict({"Content-Type": CONTENT_TYPE}), body)


@dataclass(frozen=True, slots=True)
class S2Client:
    """Sends requests for one stream, for clients that share `headers`.  All methods raise GatewayErrors."""

    send: Callable[[OriginCall], Awaitable[Reply]]
    url: str
    """The URL of the stream."""
    headers: CIMultiDict[str]
    """The request headers with the client's credentials and the name of the basin (S2's namespace of streams)."""
    bounds: Bounds
    client: str | Askers
    is_live: bool = False
    received: Callable[[Reply, int], object] = _ignore
    """Called with each reply to a read, and its size."""

    async def read(self, query: ReadQuery) -> S2Outcome:
        """Read records."""
        return await _past_drains(lambda: self._read(query))

    async def tail(self) -> AtTail | S2Refused:
        """Get the tail by a read without records."""
        outcome = await self.read(PROBE)
        if isinstance(outcome, FoundRecords):
            if outcome.records or outcome.tail is None:
                raise UpstreamBroken("Origin's answer to a probe of the tail names no tail")
            return AtTail(outcome.tail, outcome.is_remembered)
        return outcome

    async def checked_tail(self) -> AtTail | S2Refused:
        """Get the tail by S2's check-tail request, which may need another permission than reads."""
        return await _past_drains(self._checked_tail)

    async def session(self, seq_num: int, total_s: float | None) -> Reply | AtTail | S2Refused:
        """Open a read session from `seq_num`, for at most `total_s` seconds.  The caller must close the reply."""
        url = f"{self.url}/records?{encode_read_query(ReadQuery(FromSeqNum(seq_num)))}"
        bounds = replace(self.bounds, idle_s=SILENCE_S, total_s=total_s)
        reply = await self._ask("GET", url, {"Content-Type": session.CONTENT_TYPE}, bounds)
        try:
            refused = await self._refusal(reply, _READ)
        except BaseException:
            reply.close()
            raise
        if refused is None:
            return reply
        reply.close()
        return _at_tail(refused, reply) or refused

    async def write(
        self, method: str, url: str, more: dict[str, str], body: bytes | None = None, most_bytes: int = 0
    ) -> bytes | S2Refused:
        """Send a request other than a read; return the body of a success.  With `most_bytes` 0 the body is not read."""
        async with await self._ask(method, url, more, self.bounds, body) as reply:
            if (refused := await self._refusal(reply, _WRITTEN)) is not None:
                return refused
            return await reply.read(most_bytes) if most_bytes else b""

    async def _read(self, query: ReadQuery) -> S2Outcome:
        url = f"{self.url}/records?{encode_read_query(query)}"
        async with await self._ask("GET", url, {"Accept": protobuf.CONTENT_TYPE}, self.bounds) as reply:
            if (refused := await self._refusal(reply, _READ)) is not None:
                return _at_tail(refused, reply) or refused
            body = await reply.read(MOST_BODY_BYTES)
            self.received(reply, len(body))
            try:
                batch = protobuf.decode_read_batch(body)
            except protobuf.BadProtobuf as error:
                raise UpstreamBroken from error
            return FoundRecords(batch.records, batch.tail, _is_remembered(reply))

    async def _checked_tail(self) -> AtTail | S2Refused:
        async with await self._ask("GET", f"{self.url}/records/tail", {"Accept": CONTENT_TYPE}, self.bounds) as reply:
            if (refused := await self._refusal(reply, _READ)) is not None:
                return refused
            try:
                return AtTail(decode_tail(await reply.read(MOST_ERROR_BYTES)), _is_remembered(reply))
            except BadJson as error:
                raise UpstreamBroken from error

    async def _ask(
        self, method: str, url: str, more: dict[str, str], bounds: Bounds, body: bytes | None = None
    ) -> Reply:
        headers = CIMultiDict(self.headers)
        headers.update(more)
        return await self.send(OriginCall(method, url, headers, bounds, body, self.is_live, self.client))

    async def _refusal(self, reply: Reply, successes: Container[int]) -> S2Refused | None:
        """Return the error of a reply; None if its status is in `successes`."""
        if reply.status in successes:
            return None
        if reply.status < 400:
            raise UpstreamBroken("Origin answered with neither a success nor an error")
        headers: CIMultiDict[str] = CIMultiDict()
        for name in ("Content-Type", "Retry-After"):
            if (value := reply.headers.get(name)) is not None:
                headers[name] = value
        refused = S2Refused(reply.status, headers, await reply.read(MOST_ERROR_BYTES), self.headers)
        if refused.is_draining:
            reply.retire()
        return refused


async def _past_drains(ask: Callable[[], Awaitable[T]]) -> T:
    """Send a request, and repeat it on another connection while the server is about to shut down."""
    outcome = await ask()
    for _ in range(_MOST_DRAINS):
        if not isinstance(outcome, S2Refused) or not outcome.is_draining:
            break
        outcome = await ask()
    return outcome


def _is_remembered(reply: Reply) -> bool:
    return reply.said is not None and reply.said.is_stale


def _at_tail(refused: S2Refused, reply: Reply) -> AtTail | None:
    if refused.status == 416:
        error = parse_error(416, refused.body)
        if isinstance(error, Unwritten):
            return AtTail(error.tail, _is_remembered(reply))
    return None
