"""Unary reads, SSE reads and read sessions.

A read decides and starts to wait in one step, without an await, so no append can be missed in between.  SSE reads and
sessions send a 200 before their outcome is known.  A later error is sent in a terminal frame or an error event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.aio.clock import Clock, wait_until
from gateway.origin.live import Drain
from gateway.origin.s2.bodies import respond
from gateway.origin.s2.calls import JSON_TYPE, PROTOBUF_TYPE, Call, format_of, wants_protobuf
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.delivery import Delivery
from gateway.origin.s2.exchange import Exchange
from gateway.origin.s2.faults import FailSession, FinishSession
from gateway.origin.s2.forms import EventForm, Form, SessionForm
from gateway.origin.s2.reading import Pause, Reading
from gateway.origin.s2.refusals import Refusal, Refused
from gateway.origin.s2.stream import Stream, milliseconds
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import S2ErrorCode
from gateway.s2.read_query import ReadQuery
from gateway.s2.records import ReadBatch
from gateway.s2.session import choose_compression

_ROUNDING_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The range, in seconds, from which a session draws the time until its next heartbeat."""

    least_s: float = 5.0
    most_s: float = 15.0

    def draw(self, random: Random) -> float:
        """Return the time until the next heartbeat."""
        return random.uniform(self.least_s, self.most_s)


class Reads:
    """Serves the reads of one running origin."""

    def __init__(
        self, counters: S2Counters, clock: Clock, drain: Drain, random: Random, heartbeats: Heartbeats
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._drain = drain
        self._random = random
        self._heartbeats = heartbeats

    async def once(self, exchange: Exchange, stream: Stream, query: ReadQuery, delivery: Delivery) -> None:
        """Answer a unary read.  Raises Unwritten, BadFormat, or Refused (503)."""
        format_ = format_of(exchange.headers)
        batch = await self._one_batch(stream, Reading(stream, query.unary()))
        self._counters.delivered(Call.READ, len(batch.records))
        if wants_protobuf(exchange.headers):
            await respond(exchange, delivery, PROTOBUF_TYPE, protobuf.encode_read_batch(batch))
        else:
            await respond(exchange, delivery, JSON_TYPE, json_format.encode_read_batch(batch, format_))

    async def _one_batch(self, stream: Stream, reading: Reading) -> ReadBatch:
        """Return the first batch with records, or an empty one if none arrives within the wait.

        The tail is included only if the read has waited.
        """
        until = self._clock.now() + (reading.wait_s or 0)
        has_waited = False
        while True:
            step = reading.advance()
            match step:
                case Pause.OVER:
                    return ReadBatch(())
                case Pause.WAITING:
                    if self._drain.has_begun:
                        raise draining()
                    if self._is_past(until):
                        return reading.heartbeat()
                    await self._change(stream, until)
                    has_waited = True
                case _ if step.records:
                    return step if has_waited else ReadBatch(step.records)

    async def on(self, exchange: Exchange, stream: Stream, query: ReadQuery, call: Call, delivery: Delivery) -> None:
        """Answer an SSE read or a read session.  Raises Unwritten and BadFormat."""
        form: Form
        if call is Call.READ_SESSION:
            form = SessionForm(choose_compression(exchange.headers.get("accept-encoding")))
        else:
            form = EventForm(format_of(exchange.headers))
        reading = Reading(stream, query)
        await delivery.reply_faults()
        await delivery.open(200, form.headers)
        try:
            await self._messages(stream, reading, form, call, delivery)
        except Refusal as error:
            await delivery.send(form.failure(error.status, error.body))
        else:
            await delivery.send(form.finish())
        await delivery.end()

    async def _messages(self, stream: Stream, reading: Reading, form: Form, call: Call, delivery: Delivery) -> None:
        """Send batches and heartbeats until the read ends.  Raises Refusal if it ends with an error."""
        latest = heard = self._clock.now()
        """When the read last got a record or reached the tail, and when the client last received something."""
        silence_s = self._heartbeats.draw(self._random)
        while True:
            step = reading.advance()
            now = self._clock.now()
            match step:
                case Pause.OVER:
                    return
                case Pause.WAITING:
                    if self._drain.has_begun:
                        raise draining()
                    over_at = None if reading.wait_s is None else latest + reading.wait_s
                    if over_at is not None and self._is_past(over_at):
                        return
                    if not self._is_past(heard + silence_s):
                        due_at = heard + silence_s
                        await self._change(stream, due_at if over_at is None else min(due_at, over_at))
                        continue
                    batch = reading.heartbeat()
                case _:
                    batch, latest = step, now
            due = delivery.due_failure()
            if isinstance(due, FailSession):
                raise Refusal(due.status, due.body)
            if isinstance(due, FinishSession):
                return
            heard, silence_s = now, self._heartbeats.draw(self._random)
            self._counters.delivered(call, len(batch.records))
            advises = delivery.advises_reconnect
            await delivery.send_message(form.message(batch, self._now_ms(), advises_reconnect=advises))

    def _now_ms(self) -> int:
        return milliseconds(self._clock.wall())

    def _is_past(self, at: float) -> bool:
        # Tolerate rounding errors: the timer's delay is the difference of two floats.
        return self._clock.now() >= at - _ROUNDING_S

    async def _change(self, stream: Stream, until: float) -> None:
        """Wait for a change of the stream, the drain of the origin, or a time of the monotonic clock."""
        changed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        stream.watchers.add(wake)
        self._counters.parked_by(1)
        try:
            with self._drain.calling(wake):
                await wait_until(changed, self._clock, until - self._clock.now())
        finally:
            self._counters.parked_by(-1)
            stream.watchers.discard(wake)


def draining() -> Refused:
    """Return the 503 with which waiting requests end when the origin drains."""
    return Refused(S2ErrorCode.SERVER_DRAINING, "the server is draining")
