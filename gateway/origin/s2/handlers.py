"""Request handlers: from an exchange to its answer.

A request is validated completely before its stream is looked up, because the request may create the stream.  A unary
answer is computed completely before it is sent, so an error cannot occur after the head.  An append session sends a 200
when its stream has been found.  It then processes one append after the other, and the first error ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from gateway.aio.clock import Clock
from gateway.origin.live import Drain
from gateway.origin.s2.account import Account, Basin
from gateway.origin.s2.bodies import respond, whole_body
from gateway.origin.s2.calls import (
    JSON_TYPE,
    PROTOBUF_TYPE,
    SESSION_TYPE,
    Call,
    Target,
    basin_of,
    format_of,
    key_of,
    sends_protobuf,
    stream_config_of,
    target_of,
    wants_protobuf,
)
from gateway.origin.s2.control import control
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.delivery import Cut, Delivery
from gateway.origin.s2.exchange import Exchange, Stopped
from gateway.origin.s2.faults import FailSession, FinishSession, S2Faults
from gateway.origin.s2.reads import Reads, draining
from gateway.origin.s2.refusals import BAD_REQUESTS, Refusal, Refused, refusal_of
from gateway.origin.s2.stream import Stream
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import S2ErrorCode
from gateway.s2.read_query import ReadQuery, parse_read_query
from gateway.s2.records import AppendAck, AppendInput, check_append_input
from gateway.s2.session import BadFrame, FrameReader, Message, choose_compression, encode_message, encode_terminal
from gateway.s2.sse import parse_event_id

_log = logging.getLogger("gateway.origin.s2")


class Handlers:
    """Answers every request of one running origin."""

    def __init__(
        self,
        account_of: Callable[[Exchange], Account],
        faults: S2Faults,
        counters: S2Counters,
        clock: Clock,
        drain: Drain,
        reads: Reads,
    ) -> None:
        self._account_of = account_of
        self._faults = faults
        self._counters = counters
        self._clock = clock
        self._drain = drain
        self._reads = reads

    async def handle(self, exchange: Exchange) -> None:
        """Answer any request.  Raises ConnectionError if the client leaves; no request makes it raise other errors."""
        refusal: Refusal | None = None
        try:
            target = target_of(exchange.method, exchange.path, exchange.headers)
        except Refusal as error:
            target, refusal = Target(Call.OTHER), error
        call = target.call
        self._counters.began(call)
        effects = self._faults.take(call, exchange.method, exchange.path)
        delivery = Delivery(exchange, call, self._counters, self._clock, effects)
        try:
            # A fault may end even an error reply.
            with suppress(Cut):
                await self._answer_or_refuse(exchange, target, delivery, refusal)
        except ConnectionError:
            raise
        except Exception:
            _log.exception("unhandled error")
            if exchange.has_begun:
                exchange.reset()
            else:
                failure = Refused(S2ErrorCode.OTHER, "internal error")
                await delivery.respond(failure.status, {"content-type": JSON_TYPE}, failure.body)
        finally:
            self._counters.ended(call)

    async def _answer_or_refuse(
        self, exchange: Exchange, target: Target, delivery: Delivery, refusal: Refusal | None
    ) -> None:
        """Answer a request, or send `refusal` if it is given.  Raises Cut if a fault ends the answer."""
        try:
            if not await delivery.request_faults():
                if refusal is not None:
                    raise refusal
                await self._answer(exchange, target, delivery)
        except (Refusal, *BAD_REQUESTS) as error:
            refusal = refusal_of(error)
            await delivery.reply_faults()
            await delivery.respond(refusal.status, {"content-type": JSON_TYPE}, refusal.body)

    async def _answer(self, exchange: Exchange, target: Target, delivery: Delivery) -> None:
        match target.call:
            case Call.HEALTH:
                await delivery.respond(200, {"content-type": "text/plain"}, b"OK")
            case Call.OTHER:
                await delivery.respond(404, {}, b"")
            case Call.CONTROL:
                body = await whole_body(exchange)
                account = self._account_of(exchange)
                reply = control(
                    account, target, exchange.method, exchange.query, exchange.headers, body, self._clock.wall()
                )
                await delivery.reply_faults()
                await delivery.respond(reply.status, reply.headers, reply.body)
            case Call.CHECK_TAIL:
                stream = self._found(exchange, target)
                await respond(exchange, delivery, JSON_TYPE, json_format.encode_tail(stream.tail))
            case Call.APPEND:
                await self._append(exchange, target, delivery)
            case Call.APPEND_SESSION:
                await self._append_session(exchange, target, delivery)
            case Call.READ:
                query = _query_of(exchange, target.call)
                await self._reads.once(exchange, self._stream_to_read(exchange, target), query, delivery)
            case Call.READ_EVENTS | Call.READ_SESSION:
                query = _query_of(exchange, target.call)
                stream = self._stream_to_read(exchange, target)
                await self._reads.on(exchange, stream, query, target.call, delivery)

    # -- streams

    def _basin(self, exchange: Exchange) -> Basin:
        return self._account_of(exchange).basin(basin_of(exchange.headers))

    def _stream_to_append(self, exchange: Exchange, target: Target) -> Stream:
        change = stream_config_of(exchange.headers)
        stream = self._basin(exchange).stream_to_append(target.names[0], change, self._clock.wall())
        if (key := key_of(exchange.headers, stream.cipher)) is not None:
            stream.keys.add(key)
        return stream

    def _stream_to_read(self, exchange: Exchange, target: Target) -> Stream:
        stream = self._found(exchange, target)
        key = key_of(exchange.headers, stream.cipher)
        if key is not None and stream.keys and key not in stream.keys:
            raise Refused(S2ErrorCode.INVALID, "the records cannot be decrypted with this key")
        return stream

    def _found(self, exchange: Exchange, target: Target) -> Stream:
        change = stream_config_of(exchange.headers)
        return self._basin(exchange).stream_to_read(target.names[0], change, self._clock.wall())

    # -- appends

    async def _append(self, exchange: Exchange, target: Target, delivery: Delivery) -> None:
        body = await whole_body(exchange)
        appended = _append_input(exchange, body)
        check_append_input(appended)
        ack = self._store(self._stream_to_append(exchange, target), appended)
        if wants_protobuf(exchange.headers):
            await respond(exchange, delivery, PROTOBUF_TYPE, protobuf.encode_append_ack(ack))
        else:
            await respond(exchange, delivery, JSON_TYPE, json_format.encode_append_ack(ack))

    def _store(self, stream: Stream, appended: AppendInput) -> AppendAck:
        ack = stream.append(appended, self._clock.wall())
        self._counters.appended(len(appended.records))
        return ack

    async def _append_session(self, exchange: Exchange, target: Target, delivery: Delivery) -> None:
        """Append batch after batch, and acknowledge each before the next is processed."""
        stream = self._stream_to_append(exchange, target)
        compression = choose_compression(exchange.headers.get("accept-encoding"))
        await delivery.open(200, {"content-type": SESSION_TYPE})
        frames = FrameReader()
        try:
            while (part := await self._part(exchange)) is not None:
                for frame in frames.feed(part):
                    if not isinstance(frame, Message):
                        raise BadFrame("a client sends no terminal frame")
                    if stream.is_deleted:
                        raise Refused(S2ErrorCode.UNAVAILABLE, "the stream is gone")
                    due = delivery.due_failure()
                    if isinstance(due, FailSession):
                        raise Refusal(due.status, due.body)
                    if isinstance(due, FinishSession):
                        await delivery.end()
                        return
                    ack = self._store(stream, protobuf.decode_append_input(frame.body))
                    await delivery.reply_faults()
                    encoded = protobuf.encode_append_ack(ack)
                    advises = delivery.advises_reconnect
                    await delivery.send_message(encode_message(encoded, compression, is_reconnect_advised=advises))
            frames.finish()
        except (Refusal, *BAD_REQUESTS) as error:
            refusal = refusal_of(error)
            await delivery.send(encode_terminal(refusal.status, refusal.body))
            await delivery.end()
        else:
            await delivery.end()

    async def _part(self, exchange: Exchange) -> bytes | None:
        """Return the next part of a session's body; None at its end.  Raises Refused (503) when the origin drains."""
        if self._drain.has_begun:
            exchange.incoming.stop()
        with self._drain.calling(exchange.incoming.stop):
            try:
                return await exchange.incoming.take()
            except Stopped:
                raise draining() from None


def _query_of(exchange: Exchange, call: Call) -> ReadQuery:
    """Return the query of a read.  Raises BadFormat, BadEventId or BadQuery."""
    query = parse_read_query(exchange.query)
    if call is not Call.READ_SESSION:
        format_of(exchange.headers)
    if call is Call.READ_EVENTS and (seen := exchange.headers.get("last-event-id")):
        query = query.resumed(parse_event_id(seen))
    return query


def _append_input(exchange: Exchange, body: bytes) -> AppendInput:
    """Decode the body of a unary append.  Raises BadFormat, BadJson or BadProtobuf."""
    if sends_protobuf(exchange.headers):
        return protobuf.decode_append_input(body)
    return json_format.decode_append_input(body, format_of(exchange.headers))
