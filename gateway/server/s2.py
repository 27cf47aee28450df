"""Requests to S2 origins: the engine answers reads, and all other requests are relayed.

A unary answer is written whole.  A read session needs no task after the head of its answer.  The channel holds the
connection, and an `S2SessionReader` holds the position in the stream.
"""

from __future__ import annotations

import math
from typing import Final

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.engine.s2.reader import S2Session
from gateway.engine.s2.reads import S2Reads
from gateway.engine.s2.request import S2CheckTail, S2Read, S2ReadRecords, S2ReplyKind, S2Request
from gateway.engine.s2.unary_read import S2Answer
from gateway.errors import GatewayError
from gateway.http.outgoing import response_head
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.mode import Mode
from gateway.protocol.names import ACCEL_BUFFERING
from gateway.s2 import session as s2s
from gateway.s2 import sse
from gateway.s2.records import fixed_width
from gateway.server.context import RequestContext, ResponseRecorder, Stage, learn_hit
from gateway.server.live import LiveAnswers
from gateway.server.remembered import Repeatable
from gateway.server.request import Answered, Request, Work
from gateway.telemetry.access_record import Record, note_span

_WHOLE_BYTES: Final = 1 << 18
"""The largest body written in one piece.  A larger body is written in parts, each with its own write timeout."""


class S2Answers:
    """Answers reads of S2 streams.  The engine owns the state."""

    def __init__(self, reads: S2Reads, recorder: ResponseRecorder, live: LiveAnswers) -> None:
        self._reads = reads
        self._recorder = recorder
        self._live = live

    def answer_read(self, context: RequestContext, route: Route, request: S2Request) -> Answered | Work:
        """Answer a read from memory, or return the work that answers it.  Raises a GatewayError."""
        read, asked = request
        answer = self._reads.held(read, asked) if isinstance(asked, S2ReadRecords) else None
        if answer is None:
            return self._answer(context, route, request)
        self._dress(context, answer)
        body = answer.body
        if answer.run is not None:
            repeatable = Repeatable(
                answer.run, answer.outcome, answer.status, answer.headers, (body,), copied=len(body)
            )
            learn_hit(context, route, repeatable, math.inf)
        if len(body) <= _WHOLE_BYTES:
            return context.delivery.text(answer.status, answer.headers, body)
        return context.delivery.whole(answer.status, answer.headers, body)

    async def _answer(self, context: RequestContext, route: Route, request: S2Request) -> Answered | None:
        """Answer a read.  Returns None if a session gives the answer.  Raises a GatewayError."""
        read, asked = request
        if isinstance(asked, S2CheckTail):
            return await self._deliver(context, await self._reads.check_tail(read))
        if asked.form.is_unary:
            return await self._deliver(context, await self._reads.unary(read, asked))
        opened = await self._reads.open(read, asked)
        if isinstance(opened, S2Answer):
            return await self._deliver(context, opened)
        self._begin_session(context, route, read, opened)
        return None

    async def answer_probe(self, context: RequestContext, read: S2Read) -> Answered:
        """Answer another worker's check of the tail.  Raises a GatewayError."""
        return await self._deliver(context, await self._reads.probe_tail(read))

    def _dress(self, context: RequestContext, answer: S2Answer) -> None:
        context.outcome, headers = answer.outcome, answer.headers
        if answer.span is not None:
            note_span(*map(fixed_width, answer.span))
        headers["Cache-Status"] = cache_status(self._recorder.node, answer.outcome)
        headers.setdefault("Cache-Control", "no-store")
        self._recorder.finish(context, headers)

    async def _deliver(self, context: RequestContext, answer: S2Answer) -> Answered:
        self._dress(context, answer)
        headers, body = answer.headers, answer.body
        if len(body) <= _WHOLE_BYTES:
            return context.delivery.text(answer.status, headers, body)
        return await context.delivery.whole(answer.status, headers, body)

    def _begin_session(self, context: RequestContext, route: Route, read: S2Read, session: S2Session) -> None:
        """Begin a session.  Raises UpstreamBroken, and closes the session, if a header must not be sent."""
        request, reads = context.request, self._reads
        channel, keeps, is_chunked = request.channel, request.keeps_alive, request.version != "1.0"
        try:
            head = self._head(request, route, session, keeps=keeps, is_chunked=is_chunked)
        except GatewayError:
            reads.discard_session(session)
            raise
        reader, start = reads.start_session(read, session, channel), session.read.at

        def fill(into: Record) -> None:
            topic = reader.topic
            into.status, into.first_byte_s = 200, channel.live_first_byte_s
            into.start = into.start or fixed_width(start)
            into.next_offset, into.sent_bytes = fixed_width(reader.at), channel.live_bytes
            into.subscribers = len(topic.readers_now) if topic is not None else 1

        name = route.config.name
        note = self._live.note(context.observed, Mode.SSE, name, context.began, fill)
        channel.follow(reader, name, context.began, note, keeps=keeps, is_chunked=is_chunked)
        channel.write_head(head)
        context.stage = Stage.LIVE
        reads.begin_sending(reader)

    def _head(self, request: Request, route: Route, session: S2Session, *, keeps: bool, is_chunked: bool) -> bytes:
        is_sse = session.form.reply is S2ReplyKind.SSE
        headers = CIMultiDict({"Content-Type": sse.CONTENT_TYPE if is_sse else s2s.CONTENT_TYPE})
        headers["Cache-Control"] = "no-cache, no-transform"
        headers[ACCEL_BUFFERING] = "no"
        headers["Cache-Status"] = cache_status(self._recorder.node, Outcome.FOLLOWED)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self._recorder.dress(route, request.headers.get("Origin"), headers)
        return response_head(200, headers, self._reads.clock.wall(), keeps=keeps)
