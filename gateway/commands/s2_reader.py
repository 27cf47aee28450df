"""Reads an S2 stream from a sequence number and follows it across disconnects, without loss or duplicates.

The position is the number after the last delivered record.  After a lost connection, the next request starts there.

The stream is followed by SSE, with bodies in base64, or by unary reads that wait at the tail.  When a read ends, it is
sent again, because an unlimited read has no regular end.

After the first answer, two failures are final: the stream was deleted, or it was created again with fewer records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import Transient, request
from gateway.commands.failure import CommandFailed
from gateway.commands.following import Batch, Follow, Following
from gateway.commands.s2_events import BadEvent, EventReader
from gateway.commands.s2_exchange import body_error, event_error, s2_error, tail_in
from gateway.protocol.names import NOW, SSE_TYPE, START, media_type
from gateway.s2 import json_format, protobuf, sse
from gateway.s2.json_format import FORMAT_HEADER, Format
from gateway.s2.records import Record, StreamPosition, is_command

SILENCE_S: Final = 20.0
"""A session without an event for this long is lost.  S2 sends an event at least every 15 s, and its SDKs wait 20 s."""

_WAIT_S: Final = 30
"""The seconds that a unary read waits at the tail.  The HTTP session's timeout must be longer."""

_EVENTS: Final = {"Accept": SSE_TYPE, "Accept-Encoding": "identity", FORMAT_HEADER: Format.BASE64.value}
_UNARY: Final = {"Accept": protobuf.CONTENT_TYPE}


class RecordReader(Following):
    """One reader of one S2 stream.  `offset` is a sequence number or a sentinel.

    Its pieces are bodies as lines, without command records; or, with `as_json`, arrays of whole records.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        offset: str,
        *,
        as_json: bool,
        follow: Follow,
        clock: Clock,
        rng: random.Random,
        take: Callable[[Batch], None],
        notice: Callable[[str], None],
    ) -> None:
        super().__init__(session, url, offset, follow=follow, clock=clock, rng=rng, take=take, notice=notice)
        self.content_type = json_format.CONTENT_TYPE if as_json else "text/plain"
        self._as_json = as_json
        self._at = 0
        if offset != NOW:
            self._move(0 if offset == START else int(offset))

    def __repr__(self) -> str:
        return f"<RecordReader at {self.offset}>"

    async def _once(self) -> None:
        if self.offset == NOW:
            await self._find_tail()
        elif self._follow is Follow.LONG_POLL:
            await self._unary()
        else:
            await self._events()

    async def _find_tail(self) -> None:
        async with request(self._session, "GET", f"{self._url}/records/tail") as response:
            if response.status != 200:
                raise await s2_error(response)
            tail = tail_in(self._url, await response.read())
        self._answered()
        self._move(tail.seq_num)
        self._take(Batch((), self.offset))

    async def _unary(self) -> None:
        began, before = self._clock.now(), self._at
        async with request(self._session, "GET", f"{self._target()}&wait={_WAIT_S}", _UNARY) as response:
            body = await response.read()
            if response.status == 416:
                self._check_tail(tail_in(self._url, body))
            elif response.status != 200:
                raise self._refused(body_error(response, body), response.status)
            else:
                try:
                    records = protobuf.decode_read_batch(body).records
                except protobuf.BadProtobuf as error:
                    raise CommandFailed(f"{self._url}: {error}") from None
                self._answered()
                self._deliver(records)
        if self._at == before:
            await self._after_nothing(began)

    async def _events(self) -> None:
        began, before = self._clock.now(), self._at
        async with request(self._session, "GET", self._target(), _EVENTS) as response:
            if response.status == 416:
                self._check_tail(tail_in(self._url, await response.read()))
            elif response.status != 200:
                raise self._refused(await s2_error(response), response.status)
            elif media_type(response.headers.get("Content-Type")) != SSE_TYPE:
                raise CommandFailed(f"{self._url}: the answer is not SSE; try --long-poll")
            else:
                self._answered()
                await self._read_events(response)
        if self._at == before:
            await self._after_nothing(began)

    async def _read_events(self, response: aiohttp.ClientResponse) -> None:
        events = EventReader(Format.BASE64)
        async for data in response.content.iter_any():
            try:
                found = events.feed(data)
            except BadEvent as error:
                raise CommandFailed(f"{self._url}: {error}") from None
            for event in found:
                match event:
                    case sse.BatchEvent(batch=batch):
                        self._deliver(batch.records)
                    case sse.Ping(tail=tail):
                        if tail is not None:
                            self._check_tail(tail)
                    case sse.Failure(body):
                        raise self._refused(event_error(self._url, body))
                    case sse.Done():
                        return
        raise Transient("the session was broken off")

    def _target(self) -> str:
        return f"{self._url}/records?seq_num={self._at}"

    def _deliver(self, records: Sequence[Record]) -> None:
        """Deliver records, and move the position after the last one."""
        records = [record for record in records if record.seq_num >= self._at]
        if not records:
            return
        self._move(records[-1].seq_num + 1)
        self._backoff.reset()
        self._take(Batch(_pieces(records, as_json=self._as_json), self.offset))

    def _move(self, seq_num: int) -> None:
        self._at = seq_num
        self.offset = str(seq_num)

    def _check_tail(self, tail: StreamPosition) -> None:
        """Raise CommandFailed if the tail is before the position."""
        if tail.seq_num < self._at:
            raise CommandFailed(
                f"{self._url}: its tail, {tail.seq_num}, is before {self._at}: "
                "the stream was created again, or never reached this number"
            )

    def _refused(self, error: CommandFailed | Transient, status: int = 0) -> CommandFailed | Transient:
        if status == 404 and self._has_answered:
            return CommandFailed(f"{self._url}: the stream was deleted")
        return error


def _pieces(records: Sequence[Record], *, as_json: bool) -> tuple[bytes, ...]:
    if as_json:
        return (b"[%b]" % b",".join(json_format.encode_record(record, Format.RAW) for record in records),)
    lines = b"".join(record.body + b"\n" for record in records if not is_command(record))
    return (lines,) if lines else ()
