"""The S2 requests by which the bridge answers, all in protobuf.

They go to the same origin as the request that they are for, with its credentials, its bounds and its account.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import orjson
from multidict import CIMultiDict

from gateway.bridge.names import StreamName
from gateway.bridge.replies import Refused
from gateway.bridge.sightings import Known, Sighting
from gateway.errors import UpstreamBroken
from gateway.limits.askers import Askers
from gateway.s2 import protobuf, session
from gateway.s2.draining import says_draining
from gateway.s2.errors import Unwritten, parse_error
from gateway.s2.read_query import FromSeqNum, FromTailOffset, ReadQuery, encode_read_query
from gateway.s2.records import (
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    AppendAck,
    AppendInput,
    Record,
    StreamPosition,
    metered_bytes,
    total_metered_bytes,
)
from gateway.upstream.call import Bounds, OriginCall
from gateway.upstream.reply import Reply
from gateway.upstream.upstream import Upstream

MOST_BODY_BYTES: Final = 4 * 1024 * 1024
"""The largest answer to a read; its metered bytes are at most 1 MiB."""

SILENCE_S: Final = 20.0
"""A session without a frame for this long is lost: S2 sends one at least every 15 s, and its SDKs wait 20 s."""

_MOST_ERROR_BYTES: Final = 64 * 1024

_PROBE: Final = ReadQuery(FromTailOffset(0), count=0)
"""A read that is always answered with the tail."""

_MOST_INCARNATIONS: Final = 3
"""How many incarnations of a stream one read meets before it fails."""

_MOST_COMMAND_BYTES: Final = 64
"""Metered bytes of the largest command: a fence with 36 bytes of token has 51."""

_MOST_DRAINS: Final = 3
"""How many servers in a row may be about to leave before a read is answered so."""

_MOST_OVERLAP_BYTES: Final = 1 << 16
"""Metered bytes of the largest record that is asked for again together with its successors."""

_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Found:
    """Records from the requested one on, or from the first that is left; the tail if the read has reached it."""

    records: tuple[Record, ...]
    tail: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class AtTail:
    """There is no record at the requested number or after it."""

    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class Call:
    """What all S2 requests for one request of the engine's have in common."""

    upstream: Upstream
    base: str
    """The URL of the origin as the route has it."""
    name: StreamName
    headers: CIMultiDict[str]
    bounds: Bounds
    client: str | Askers
    is_live: bool
    on_sent: Callable[[], object]
    sighting: Sighting

    async def read(self, query: ReadQuery) -> Found | AtTail | Refused:
        """A unary read.  Raises a GatewayError."""
        known = self.sighting.known()
        outcome = await self._read(query)
        self._saw(known, outcome)
        return outcome

    async def tail(self) -> StreamPosition | Refused:
        """The tail, by a read that brings no record.  Raises a GatewayError."""
        outcome = await self.read(_PROBE)
        if isinstance(outcome, Found):
            raise UpstreamBroken("Origin answered a probe of the tail with records")
        return outcome.tail if isinstance(outcome, AtTail) else outcome

    async def command_at(self, seq_num: int) -> Record | Refused | None:
        """The record of this number if it is small enough for a command; None if not, or if it was trimmed.

        Raises a GatewayError.
        """
        known = self.sighting.known()
        outcome = await self._ask(ReadQuery(FromSeqNum(seq_num), count=1, bytes=_MOST_COMMAND_BYTES))
        if isinstance(outcome, Refused):
            return outcome
        if not isinstance(outcome, Found) or outcome.records[0].seq_num != seq_num:
            return None
        self._saw(known, outcome)
        return outcome.records[0]

    async def read_from(self, seq_num: int, wait_s: int | None = None) -> Found | AtTail | Refused:
        """A unary read from a number on, of the stream that was read before.  It waits at the tail for so many seconds.

        If its records do not show whose they are, the last record that was read before is asked for again.  Behind a
        full page it is asked for with its successors, because there these are likely.  Raises a GatewayError.
        """
        for _ in range(_MOST_INCARNATIONS):
            known = self.sighting.known()
            joined = await self._read_joined(known, seq_num)
            outcome = joined or await self._read(ReadQuery(FromSeqNum(seq_num), wait_s=wait_s))
            if self._is_doubtful(known, outcome, joined) and (refused := await self.recognise(known)) is not None:
                return refused
            if self.sighting.known().incarnation == known.incarnation:
                if isinstance(outcome, Found):
                    self.sighting.saw_records(known, outcome.records, is_proof=True)
                    # One record fewer if the last known record was asked for again.
                    is_full = len(outcome.records) >= MAX_BATCH_RECORDS - 1 or (
                        2 * total_metered_bytes(outcome.records) >= MAX_BATCH_METERED_BYTES
                    )
                    is_full &= metered_bytes(outcome.records[-1]) <= _MOST_OVERLAP_BYTES
                    self.sighting.full_to = outcome.records[-1].seq_num + 1 if is_full else 0
                else:
                    self._saw(known, outcome)
                return outcome
            # Another reply has shown the stream's successor: this one may be of either.
            wait_s = None
        raise UpstreamBroken("Stream changes faster than it can be read")

    async def _read_joined(self, known: Known, seq_num: int) -> Found | None:
        """Records from a number on, by a read that begins with the last known record; None if that is not due, or
        brings nothing new.  Raises a GatewayError."""
        position = known.position
        if position is None or seq_num != position.seq_num or seq_num != self.sighting.full_to:
            return None
        outcome = await self._read(ReadQuery(FromSeqNum(seq_num - 1)))
        if not isinstance(outcome, Found):
            return None
        self.sighting.saw_records(known, outcome.records)
        left = tuple(record for record in outcome.records if record.seq_num >= seq_num)
        return Found(left, outcome.tail) if left else None

    async def recognise(self, known: Known | None = None) -> Refused | None:
        """Ask for the last record again that was read of the stream, as far as it was known, or say why not.

        Raises a GatewayError.
        """
        known = known or self.sighting.known()
        if known.position is None or not known.position.seq_num:
            return None
        seq_num = known.position.seq_num - 1
        outcome = await self._read(ReadQuery(FromSeqNum(seq_num), count=1))
        # If it has been trimmed, nothing that was read before is left, and nothing can tell.
        if not isinstance(outcome, Found) or outcome.records[0].seq_num == seq_num:
            self._saw(known, outcome)
        return outcome if isinstance(outcome, Refused) else None

    async def session(self, seq_num: int, lifetime_s: float) -> Reply | AtTail | Refused:
        """A read session from a number on, which waits for records; the caller must close the reply.

        Raises a GatewayError.
        """
        total_s = min(lifetime_s, self.bounds.total_s or inf)
        known = self.sighting.known()
        reply = await self._send(
            "GET",
            f"{self._stream}/records?{encode_read_query(ReadQuery(FromSeqNum(seq_num)))}",
            {"Content-Type": session.CONTENT_TYPE},
            bounds=replace(self.bounds, idle_s=min(self.bounds.idle_s, SILENCE_S), total_s=total_s),
        )
        try:
            refused = await _refusal(reply)
        except BaseException:
            reply.close()
            raise
        if refused is None:
            return reply
        reply.close()
        outcome = _outcome(refused)
        self._saw(known, outcome)
        return outcome

    async def append(self, appended: AppendInput) -> AppendAck | Refused:
        """An append.  Raises a GatewayError; unless it `is_unsent`, the append may have happened."""
        known = self.sighting.known()
        body = protobuf.encode_append_input(appended)
        headers = {"Content-Type": protobuf.CONTENT_TYPE, "Accept": protobuf.CONTENT_TYPE}
        async with await self._send("POST", f"{self._stream}/records", headers, body) as reply:
            if (refused := await _refusal(reply)) is not None:
                return refused
            try:
                ack = protobuf.decode_append_ack(await reply.read(_MOST_ERROR_BYTES))
            except protobuf.BadProtobuf as error:
                raise UpstreamBroken from error
        if ack.end.seq_num - ack.start.seq_num != len(appended.records):
            # Bytes that are not of S2 decode too: an empty body is a message of zeros.
            raise UpstreamBroken("Origin acknowledged other records than it was sent")
        self.sighting.saw_append(known, ack)
        return ack

    async def create(self) -> Refused | None:
        """Create the stream.  Raises a GatewayError."""
        known = self.sighting.known()
        body = orjson.dumps({"stream": self.name.stream})
        async with await self._send("POST", f"{self.base}/v1/streams", {"Content-Type": _JSON}, body) as reply:
            refused = await _refusal(reply)
        if refused is None:
            self.sighting.gone(known)
        return refused

    async def delete(self) -> Refused | None:
        """Delete the stream.  Raises a GatewayError."""
        known = self.sighting.known()
        async with await self._send("DELETE", self._stream, {}) as reply:
            refused = await _refusal(reply)
        if refused is None or refused.is_absent:
            self.sighting.gone(known)
        return refused

    @property
    def _stream(self) -> str:
        return self.base + self.name.path

    def _is_doubtful(self, known: Known, outcome: Found | AtTail | Refused, joined: Found | None) -> bool:
        """Whether the stream has to be recognised before the outcome is joined to earlier records; `joined` is the
        outcome if it came together with the record before it."""
        closed_at = self.sighting.closed_at
        match outcome:
            case Found(records):
                # Behind the mark, or of a stream that is not closed.
                is_behind = closed_at is not None and closed_at < records[0].seq_num
                return is_behind or (joined is None and not known.is_shown_by(records))
            case AtTail(tail):
                return closed_at is not None and not self.sighting.has_read_to(tail)
            case _:
                return False

    async def _read(self, query: ReadQuery) -> Found | AtTail | Refused:
        if (outcome := await self._ask(query)) is not None:
            return outcome
        # All records between the start and the tail have been trimmed.
        if (tail := await self._ask(_PROBE)) is None:
            raise UpstreamBroken("Origin answered a probe of the tail without it")
        # Records that have come since the read lie before this tail.
        return await self._ask(replace(query, wait_s=None)) or tail

    async def _ask(self, query: ReadQuery) -> Found | AtTail | Refused | None:
        """One unary read; None if it brings neither records nor the tail."""
        target = f"{self._stream}/records?{encode_read_query(query)}"
        for drains in range(_MOST_DRAINS + 1):
            async with await self._send("GET", target, {"Accept": protobuf.CONTENT_TYPE}) as reply:
                if (refused := await _refusal(reply)) is not None:
                    if drains < _MOST_DRAINS and says_draining(refused.status, refused.body):
                        continue
                    return _outcome(refused)
                try:
                    batch = protobuf.decode_read_batch(await reply.read(MOST_BODY_BYTES))
                except protobuf.BadProtobuf as error:
                    raise UpstreamBroken from error
                break
        if batch.records:
            check_run(batch.records, query.start.seq_num if isinstance(query.start, FromSeqNum) else 0)
            return Found(batch.records, batch.tail)
        return None if batch.tail is None else AtTail(batch.tail)

    def _saw(self, known: Known, outcome: Found | AtTail | Refused) -> None:
        match outcome:
            case Found(records):
                self.sighting.saw_records(known, records)
            case AtTail(tail):
                self.sighting.saw_tail(known, tail)
            case Refused(is_absent=True):
                self.sighting.gone(known)
            case _:
                pass

    async def _send(
        self, method: str, url: str, more: dict[str, str], body: bytes | None = None, *, bounds: Bounds | None = None
    ) -> Reply:
        headers = CIMultiDict(self.headers)
        headers.update(more)
        call = OriginCall(method, url, headers, bounds or self.bounds, body, self.is_live, self.client)
        return await self.upstream.send(call, self.on_sent)


def check_run(records: Sequence[Record], start: int) -> None:
    """Raise UpstreamBroken unless these are consecutive records, none of them before `start`."""
    if records and (
        records[0].seq_num < start or any(record.seq_num != at for at, record in enumerate(records, records[0].seq_num))
    ):
        raise UpstreamBroken("Origin sent records that do not follow each other")


async def _refusal(reply: Reply) -> Refused | None:
    """The error that the reply is; None if it is a success."""
    if reply.status < 300:
        return None
    refused = Refused(reply.status, await reply.read(_MOST_ERROR_BYTES), reply.headers.get("Retry-After"))
    if says_draining(refused.status, refused.body):
        reply.retire()
    return refused


def _outcome(refused: Refused) -> AtTail | Refused:
    if refused.status == 416:
        error = parse_error(416, refused.body)
        if isinstance(error, Unwritten):
            return AtTail(error.tail)
    return refused
