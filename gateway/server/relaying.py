"""What is no read, or may not be shared, from the client's connection to the origin's and back.

A relay goes on by what happens on either side, in plain calls: the head of the answer comes, a part of its body comes,
the client has room again, the client leaves.  No task waits for any of that.  Bodies are passed on as they come, with
flow control both ways: what the client does not take is left with the origin, whose connection is not read meanwhile.

A body that a client sends is waited for where it is small (`body`), and that alone takes a task.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextvars import Context, copy_context
from typing import Any

from gateway.config.limits import LimitsConfig
from gateway.engine.core import Engine
from gateway.engine.relay import WRITES, RelayedRequest, RelayExchange
from gateway.errors import BodyTooLarge, GatewayError
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.forwarding import response_headers_for_client
from gateway.protocol.mode import Mode
from gateway.server.context import ParsedRequest, RequestContext, ResponseRecorder
from gateway.server.delivery import PART_BYTES
from gateway.server.replay import CatchUpEnd
from gateway.server.request import Answered, Channel, Request
from gateway.telemetry.access_record import AccessLog, RecordedStream, note_fetched, note_origin_request
from gateway.upstream.connection import no_op
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.front")


class Relays:
    """Begins relays."""

    def __init__(self, recorder: ResponseRecorder, engine: Engine, access_log: AccessLog, limits: LimitsConfig) -> None:
        self.recorder = recorder
        self.engine = engine
        self.access_log = access_log
        self._limits = limits

    def is_ready(self, request: Request) -> bool:
        """Whether all is here that is waited for before the origin hears of it."""
        return request.body is None or request.body.is_whole

    def begin(self, context: RequestContext, asked: ParsedRequest) -> None:
        """Relay a request that is ready; the answer is given from here on.  Raises a GatewayError where it must not
        be."""
        body = context.request.body
        if body is None:
            self._relay(context, asked, None)
            return
        body.check(context.request.head, self._limits)
        self._relay(context, asked, self._whole(body.take()))

    async def until_begun(self, context: RequestContext, asked: ParsedRequest) -> None:
        """Wait for what is to be waited for, and relay the request.  Raises a GatewayError."""
        request, body = context.request, context.request.body
        if body is None:
            self.begin(context, asked)
            return
        # Before the client is told to go on: a body that is announced as too large need not be sent.
        body.check(request.head, self._limits)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version != "1.0":
            request.channel.proceed()
        whole = await body.gather(self._limits)
        self._relay(context, asked, self._whole(whole) if whole is not None else body.chunks(self._limits))

    def _whole(self, body: bytes) -> bytes:
        if len(body) > self._limits.max_request_bytes:
            raise BodyTooLarge
        return body

    def _relay(
        self, context: RequestContext, asked: ParsedRequest, upload: AsyncIterator[bytes] | bytes | None
    ) -> None:
        request, body = context.request, context.request.body
        route, target, key, shares, facts, _ = asked
        # Origins give the same strong ETag to every coding; what passes here is not to be confused by that.
        is_plain = request.method in ("GET", "HEAD") and context.mode is not Mode.OTHER
        headers = facts.forwarded(request, is_plain=is_plain)
        passed = RelayedRequest(
            route,
            key.group,
            key if shares else None,
            context.mode,
            request.method,
            target.path,
            target.query,
            request.target.partition("?")[2].partition("#")[0],
            headers,
            upload,
            _is_whole if body is None else lambda: body.error is not None,
        )
        context.is_relayed = True
        Relaying(self, context, asked).begin(passed)


def _is_whole() -> bool:
    return False


class Relaying:
    """One relay, from the request on its way to the last byte of its answer: the requester of the origin's reply and
    the source of the client's answer."""

    __slots__ = (
        "_answered",
        "_asked",
        "_channel",
        "_context",
        "_context_vars",
        "_end",
        "_is_over",
        "_relayed",
        "_relays",
        "_reply",
        "_request",
        "_rest",
        "_write_epoch",
    )

    def __init__(self, relays: Relays, context: RequestContext, asked: ParsedRequest) -> None:
        self._relays = relays
        self._context = context
        self._asked = asked
        self._request = context.request
        self._channel: Channel = context.request.channel
        # What is told of a request by a task's context is told in that of whoever waits for this.
        self._context_vars: Context | None = copy_context() if context.over is not None else None
        self._relayed: RelayExchange | None = None
        self._answered: Answered | None = None
        self._write_epoch = relays.engine.absences.write_epoch
        self._reply: Reply | None = None
        self._rest = b""
        """What has been taken of the body and not been written yet."""
        self._end: CatchUpEnd | None = None
        """Where the answer ends before its origin ends it."""
        self._is_over = False

    def begin(self, passed: RelayedRequest) -> None:
        """Send it."""
        # A client that leaves does not take a write back that may have happened.
        self._request.is_detached = passed.mode in WRITES
        self._channel.hand_over(self)
        relayed = self._relays.engine.relay.ask(passed, self)
        if not self._is_over:
            self._relayed = relayed

    def _run(self, step: Callable[..., None], *with_: Any) -> None:
        """Take a step; whatever goes wrong in it, the client gets an end."""
        try:
            if self._context_vars is not None:
                self._context_vars.run(step, *with_)
            else:
                step(*with_)
        except GatewayError as error:
            self._refuse(error)
        except Exception:
            _log.exception("unhandled error")
            self._refuse(GatewayError())

    # -- from the origin

    def sent(self) -> None:
        """The request is being sent to an origin."""
        if self._context_vars is not None:
            self._context_vars.run(self._note_sent)

    def _note_sent(self) -> None:
        if not note_origin_request():
            place = RecordedStream.of(self._asked.route.config.name, self._asked.target, self._asked.key.partition)
            self._relays.access_log.unclaimed(place, self._context.mode, requests=1)

    def failed(self, error: GatewayError) -> None:
        """There is no answer."""
        body = self._request.body
        self._run(self._refuse, body.error if body is not None and body.error is not None else error)

    def answered(self, reply: Reply) -> None:
        """The head of the answer has come."""
        self._reply = reply
        self._request.is_detached = False
        self._run(self._begin, reply)

    def _begin(self, reply: Reply) -> None:
        context, request, asked = self._context, self._request, self._asked
        recorder, status = self._relays.recorder, reply.status
        context.outcome = Outcome.PASS if status < 500 else Outcome.FAILED
        if context.mode is Mode.HEAD and status in (404, 410) and asked.read is not None:
            self._relays.engine.absences.add_relayed(
                asked.key, status, asked.read.source.headers, asked.route, context.began, self._write_epoch
            )
        headers = response_headers_for_client(reply.headers, node=recorder.node, http_version="1.1")
        said = cache_status(recorder.node, Outcome.PASS, fwd_status=status, by_method=request.method != "GET")
        headers["Cache-Status"] = ", ".join([*headers.popall("Cache-Status", []), said])
        if (location := headers.get("Location")) is not None:
            headers["Location"] = asked.route.public_location(location, f"{request.scheme}://{request.host}")
        recorder.finish(context, headers)
        if context.is_replay:
            self._end = CatchUpEnd()
            # It may end before its origin thought.
            headers.popall("Content-Length", None)
        context.delivery.begin(status, reply.reason, headers, None)
        self._answered = Answered(status, headers)
        reply.notify(self.pump)
        self._pump()

    # -- from either side

    def pump(self) -> None:
        """More of the body has come, or the client has room again."""
        if self._reply is not None and not self._is_over:
            self._run(self._pump)

    def _pump(self) -> None:
        reply, channel, delivery = self._reply, self._channel, self._context.delivery
        assert reply is not None
        while not channel.is_full:
            if self._rest:
                # In parts, so that the bound is on progress and not on the size of what came in one piece.
                part, self._rest = self._rest[:PART_BYTES], self._rest[PART_BYTES:]
                delivery.part(part)
                continue
            if self._end is not None and self._end.is_reached:
                self._finish()
                return
            chunk = reply.take()
            if chunk is None:
                return
            if not chunk:
                self._finish()
                return
            self._count(len(chunk))
            if self._end is not None:
                self._end.see(chunk)
            self._rest = chunk

    def _count(self, size: int) -> None:
        self._relays.recorder.metrics.upstream_bytes(size, self._context.mode, self._context.route_name)
        note_fetched(size)

    def left(self, channel: Channel) -> None:
        """The client has gone."""
        if self._is_over or self._request.is_detached:
            # What a write changes is still to be recorded.
            return
        if self._relayed is not None:
            self._relayed.leave()
        self._break_off()

    # -- its end

    def _finish(self) -> None:
        """All of the answer is out."""
        context = self._context
        self._close()
        context.delivery.end()
        self._answer_is_out()

    def _refuse(self, error: GatewayError) -> None:
        """There is no answer, or not the whole of it."""
        if self._is_over:
            return
        if self._request.has_begun:
            # Over HTTP/2 `left` is called before the next call returns.
            self._is_over = True
            # An orderly end would make a part look like the whole; and before anybody hears that the channel is free,
            # or the next request would be begun on it.
            self._channel.abort()
            self._break_off()
        else:
            self._close()
            self._answered = self._relays.recorder.refuse(self._context, error)
            self._answer_is_out()

    def _answer_is_out(self) -> None:
        context, over = self._context, self._context.over
        if over is None:
            self._relays.recorder.tell(context)
            self._channel.answered(self._request)
        elif not over.done():
            assert self._answered is not None
            over.set_result(self._answered)

    def _break_off(self) -> None:
        """The client does not get all of an answer."""
        context, over = self._context, self._context.over
        self._close()
        context.outcome = Outcome.ABORTED
        if over is None:
            self._relays.recorder.tell(context)
            # Its connection may have gone long ago, and have been kept for this answer alone.
            self._channel.answered(self._request)
        elif not over.done():
            over.set_result(None)

    def _close(self) -> None:
        self._is_over = True
        self._request.is_detached = False
        self._relayed = None
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.notify(no_op)
            reply.close()
