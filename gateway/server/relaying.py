"""Relays: the gateway passes a request to the origin, and the origin's answer to the client.

The gateway relays writes, and also reads whose answers must not be shared.  A relay has no task.  Plain calls from both
sides drive the relay: when the head of the answer or a part of the body arrives, when the client has room again, and
when the client leaves.  Flow control works in both directions: while the client does not read, the origin's connection
is not read either.

A small request body is collected before the request is sent (`request_body`).  Only this step needs a task.

Interim replies of the origin go to the client (RFC 9110 section 15.2), and an expectation of 100 Continue goes to the
origin (`Expectation`).  In two cases the gateway itself asks the client for its body: if the origin must not get the
head before the body is whole, and if another origin may need the body after a redirect.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final

from multidict import istr

from gateway.auth.questions import Undecided
from gateway.config.limits import LimitsConfig
from gateway.engine.core import Engine
from gateway.engine.relay import RelayedCall
from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.route import Route
from gateway.engine.s2.writes import S2Acknowledgements
from gateway.errors import BodyTooLarge, GatewayError, UpstreamBroken, UpstreamCongested
from gateway.http.outgoing import JOINED_BYTES, states_length
from gateway.http.reply_parser import Interim
from gateway.limits.memory import NOTHING, Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.header_forwarding import response_headers_for_client
from gateway.protocol.mode import Mode
from gateway.s2.errors import DrainWatch
from gateway.server.concealing import absence_times_of, conceal_absence
from gateway.server.context import RequestContext, ResponseRecorder, Stage
from gateway.server.delivery import PART_BYTES
from gateway.server.guarded_live_reads import GuardedReads
from gateway.server.interpreting import RequestMeaning
from gateway.server.relayed_messages import CatchUpEnd, relayed_fields, relayed_request
from gateway.server.request import Answered, Channel, Expectation, ask_for_body, is_expecting
from gateway.server.request_admission import RelayedLiveUse
from gateway.telemetry.access_record import AccessLog
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Body
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.front")

SESSION_IDLE_S: Final = 600.0
"""Seconds for which a client may send nothing in an S2 append session.  After this time, the gateway drops the client's
connection.
"""

# Module names are faster to look up than enum members, and every relay needs these members.
_DELETE, _HEAD = Mode.DELETE, Mode.HEAD
_ABORTED, _FAILED, _PASS = Outcome.ABORTED, Outcome.FAILED, Outcome.PASS
_RELAYED: Final = Stage.RELAYED
_CONTENT_LENGTH: Final = istr("Content-Length")


class Relays:
    """Begins relays."""

    def __init__(
        self,
        recorder: ResponseRecorder,
        engine: Engine,
        access_log: AccessLog,
        limits: LimitsConfig,
        reads: GuardedReads,
    ) -> None:
        self.recorder = recorder
        self.engine = engine
        self._reads = reads
        self.access_log = access_log
        self.limits = limits
        # The gateway does not bound the bytes of an S2 append session, because the origin does.  A session may be idle,
        # like a live read.
        self._session_limits = limits.model_copy(
            update={
                "max_request_bytes": sys.maxsize,
                "client_min_rate": 0,
                "client_body_timeout_s": math.inf,
                "client_idle_timeout_s": SESSION_IDLE_S,
            }
        )

    def relay_request(self, context: RequestContext, meaning: RequestMeaning) -> None:
        """Relay a request without a body, or with a body that has arrived.  Raises a GatewayError if the request must
        not be sent."""
        body = context.request.body
        if body is None:
            self._relay(context, meaning, None)
            return
        body.check(context.request.head, self.limits)
        whole = body.take()
        if len(whole) > self.limits.max_request_bytes:
            raise BodyTooLarge
        self._relay(context, meaning, whole)

    async def until_begun(self, context: RequestContext, meaning: RequestMeaning) -> None:
        """Wait for a small body, then relay the request.  Raises a GatewayError if the request must not be sent."""
        request, body = context.request, context.request.body
        if body is None:
            self.relay_request(context, meaning)
            return
        if context.is_session:
            self._relay(context, meaning, body.chunks(self._session_limits))
            return
        # Check before 100 Continue is sent, so that the client never sends a body whose Content-Length is too large.
        body.check(request.head, self.limits)
        # Send a DELETE only after its body has arrived.  An origin may delete the stream once it has the head.  If the
        # rest of the body then failed to arrive, the DELETE would have succeeded at the origin, but the gateway would
        # count it as failed.
        is_delete = context.mode is _DELETE
        if is_expecting(request) and not body.unread_bytes:
            if not is_delete and not self._keeps_bodies(meaning.route):
                self._relay(context, meaning, body.chunks(self.limits), is_expecting=True)
                return
            ask_for_body(request)
        whole = await body.gather(self.limits, is_awaited=is_delete)
        if whole is None and is_delete:
            raise BodyTooLarge
        if whole is not None and len(whole) > self.limits.max_request_bytes:
            raise BodyTooLarge
        self._relay(context, meaning, whole if whole is not None else body.chunks(self.limits))

    def _keeps_bodies(self, route: Route) -> bool:
        """Return whether the body must have arrived before the origin gets the request."""
        if route.guard is not None and route.guard.absence_times is not None:
            # A refusal that hides a stream must look the same whether or not the origin asks for the body.
            return True
        return route.is_bridged or self.engine.origins.pool(route.url).follows_redirects

    def _relay(
        self, context: RequestContext, meaning: RequestMeaning, upload: Body, *, is_expecting: bool = False
    ) -> None:
        passed, guard = meaning.relayed, meaning.route.guard
        if passed is None or is_expecting:
            passed = relayed_request(context, meaning, is_expecting=is_expecting)
            # Do not reuse the headers if a service authorises the requests: for the next equal request, the service may
            # name another principal.
            if not is_expecting and (guard is None or not guard.asks_services):
                meaning.relayed = passed
        if varied := context.request.head.fields.varied:
            passed = passed.varied_by(varied)
        if passed.is_live:
            channel = context.request.channel
            if meaning.route.ends_live_in_s is not None:
                # A reload has put the route under rules of authorisation, which this read has not passed.  Answer 503,
                # so that the client repeats the request under these rules.
                raise Undecided
            relayed = self.engine.live_table.begin_relayed(meaning.client, meaning.route.name, channel.end_early)
            channel.live_use = RelayedLiveUse(channel.live_use, relayed)
            self._reads.end_at_expiry(channel)
        if context.why_alone is not None:
            self.recorder.metrics.unshared(context.why_alone, meaning.route.name)
        context.stage = _RELAYED
        Relaying(self, context, meaning, passed, upload, is_expecting=is_expecting).send_request()


class Relaying(RelayedCall):
    """One relay.  It is the requester of the origin's reply, and the `LiveAnswer` of the client's channel (the HTTP/1.1
    connection or HTTP/2 stream)."""

    __slots__ = (
        "_acks",
        "_answered",
        "_channel",
        "_context",
        "_context_vars",
        "_drains",
        "_end",
        "_expectation",
        "_is_over",
        "_meaning",
        "_record",
        "_relays",
        "_reply",
        "_request",
        "_unwritten",
        "_write_epoch",
    )

    def __init__(
        self,
        relays: Relays,
        context: RequestContext,
        meaning: RequestMeaning,
        passed: RelayedRequest,
        body: Body,
        *,
        is_expecting: bool = False,
    ) -> None:
        # Do not call through `super()`, which would double the cost of the call.
        RelayedCall.__init__(self, relays.engine.relay, passed, body)
        self._relays = relays
        self._context = context
        self._meaning = meaning
        self._request = context.request
        self._channel: Channel = context.request.channel
        observed = context.observed
        self._record = observed.record if observed is not None else None
        # Spans of the origin's calls become children of the request's span, so the steps run in its context.
        self._context_vars: Context | None = copy_context() if observed is not None and observed.is_traced else None
        self._answered: Answered | None = None
        self._write_epoch = relays.engine.pending_writes.epoch
        self._reply: Reply | None = None
        self._unwritten = b""
        """Body bytes of the reply that have not been written to the client."""
        self._acks: S2Acknowledgements | None = None
        """Reads the answer to an append to an S2 stream."""
        self._drains: DrainWatch | None = None
        """Watches an S2 origin's answer for the server's announcement that it shuts down."""
        self._end: CatchUpEnd | None = None
        """Detects when the reader of a relayed SSE replay has caught up with the tail.  The answer then ends.  None for
        other answers."""
        self._is_over = False
        self._expectation: Expectation | None = None
        if is_expecting:
            self._expectation = Expectation(context.request, relays.limits.client_idle_timeout_s)

    @property
    def is_cut_short(self) -> bool:
        body = self._request.body
        return body is not None and body.error is not None

    def send_request(self) -> None:
        """Send the request to the origin."""
        # A write may take effect even if its client leaves, so the relay continues to the write's end.
        self._request.is_detached = self.is_write
        self._channel.hand_over(self)
        if self.request.route.is_s2:
            self._acks = self._relays.engine.s2_writes.appends(self.request)
        self.send()

    def _run(self, step: Callable[..., None], *with_: Any) -> None:
        """Call `step`.  If it fails, end the client's answer."""
        try:
            if self._context_vars is None:
                step(*with_)
            else:
                self._context_vars.run(step, *with_)
        except GatewayError as error:
            self._refuse(error)
        except Exception:
            _log.exception("unhandled error")
            self._refuse(GatewayError())

    # -- called by the upstream

    def take_attempt(self) -> None:
        record = self._record
        if record is None:
            return
        if record.is_accounted:
            self._relays.access_log.unclaimed(self._meaning.recorded, self._context.mode, requests=1)
        else:
            record.origin_requests += 1

    def take_interim(self, interim: Interim) -> None:
        if interim.status == 100:
            if self._expectation is not None:
                self._expectation.meet()
        elif not (self._is_over or self._request.has_begun or self._channel.is_full or self._request.version == "1.0"):
            headers = response_headers_for_client(interim.headers, node=self._relays.recorder.node, http_version="1.1")
            headers.popall("Content-Length", None)
            with suppress(UpstreamBroken):
                self._channel.inform(interim.status, headers)

    def take_failure(self, error: GatewayError) -> None:
        body = self._request.body
        self._run(self._refuse, body.error if body is not None and body.error is not None else error)

    def take_answer(self, reply: Reply) -> None:
        if self._expectation is not None:
            self._expectation.cancel()
        self._reply = reply
        self._request.is_detached = False
        self._run(self._begin, reply)

    def _begin(self, reply: Reply) -> None:
        context, meaning = self._context, self._meaning
        recorder, status = self._relays.recorder, reply.status
        context.outcome = _PASS if status < 500 else _FAILED
        if (
            context.mode is _HEAD
            and status in (404, 410)
            and meaning.read is not None
            and meaning.route.why_refusal_alone(status, reply.headers) is None
        ):
            self._relays.engine.negative_cache.add_relayed(
                meaning.key,
                status,
                meaning.read.source.headers,
                meaning.route,
                context.began,
                self._write_epoch,
                meaning.client,
            )
        if status == 404 and (absence_times := absence_times_of(context)) is not None:
            self._close()
            recorder.record_end(context, conceal_absence(recorder, context, absence_times, is_from_origin=True))
            return
        headers = relayed_fields(recorder, context, reply.head)
        if context.fields is not None:
            recorder.state_limits(context, headers)
        if context.is_replay:
            self._end = CatchUpEnd()
            # Leave out the origin's Content-Length, because the body may end earlier than it states.
            if states_length(headers):
                del headers[_CONTENT_LENGTH]
        if self._acks is not None:
            self._acks.read_head(status, reply.headers)
        if meaning.route.is_s2:
            self._drains = DrainWatch(status, reply.headers, reply.retire)
        if reply.has_arrived and self._end is None:
            whole = reply.take() or b""
            if whole or self._acks is not None:
                self._see(whole)
            if len(whole) <= JOINED_BYTES:
                self._answered = context.delivery.passed_on(status, reply.head.reason, headers, whole)
                self._finish()
                return
            self._unwritten = whole
        context.delivery.start_response(status, reply.head.reason, headers, None)
        self._answered = Answered(status, headers)
        self._pump()
        if not self._is_over:
            reply.notify(self.pump)
            reply.on_reclaim = self._make_way

    # -- called by either side

    def holdings(self) -> tuple[Holding, ...]:
        """Return the buffer of bytes that have not been written to the client."""
        size = len(self._unwritten)
        return (Holding(SharedBytes(size), size),) if size else NOTHING

    def pump(self) -> None:
        """Write as much as the client has room for.  Called when more of the body has arrived, and when the client has
        room again."""
        if self._reply is not None and not self._is_over:
            self._run(self._pump)

    def _pump(self) -> None:
        reply, channel, delivery = self._reply, self._channel, self._context.delivery
        assert reply is not None
        while not channel.is_full:
            if self._unwritten:
                # Write in parts, because the write timeout bounds the time for each part.
                part, self._unwritten = self._unwritten[:PART_BYTES], self._unwritten[PART_BYTES:]
                delivery.part(part)
                continue
            if self._end is not None and self._end.is_reached:
                self._end_body()
                return
            chunk = reply.take()
            if chunk is None:
                return
            if not chunk:
                self._end_body()
                return
            self._see(chunk)
            self._unwritten = chunk
        reply.stall()

    def _see(self, chunk: bytes) -> None:
        """Count and inspect a part of the body."""
        if chunk:
            self._count(len(chunk))
        if self._acks is not None:
            self._acks.see(chunk)
        if self._drains is not None:
            self._drains.see(chunk)
        if self._end is not None:
            self._end.see(chunk)

    def _make_way(self) -> None:
        """Give up the connection to the origin, because other requests wait for it and the client does not read."""
        self._run(self._refuse, UpstreamCongested())

    def _count(self, size: int) -> None:
        self._relays.recorder.metrics.upstream_bytes(size, self._context.mode, self._context.route_name)
        if self._record is not None:
            self._record.fetched_bytes += size

    def client_left(self, channel: Channel) -> None:
        """Called when the client has left: stop, unless the request is a write in progress."""
        if self._is_over or self._request.is_detached:
            # Continue a write in progress, because its outcome still has to be recorded.
            return
        self.client_gone()
        self._break_off()

    # -- the end of the relay

    def _end_body(self) -> None:
        """End a complete answer, after its body."""
        self._finish(self._channel.end_response)

    def _finish(self, end: Callable[[], object] = no_op) -> None:
        """End the relay after a complete answer."""
        if self._acks is not None:
            self._acks.finish()
        self._close()
        end()
        self._relays.recorder.record_end(self._context, self._answered)

    def _refuse(self, error: GatewayError) -> None:
        """Answer with the error, or abort an answer that has begun."""
        if self._is_over:
            return
        if self._request.has_begun:
            # Set the flag first, because `abort` calls `client_left` over HTTP/2 before it returns.
            self._is_over = True
            # Abort, because an orderly end would make a truncated body look complete.  Abort before the channel is
            # freed, because the next request would otherwise begin on the broken connection.
            self._channel.abort()
            self._break_off()
        else:
            self._close()
            recorder = self._relays.recorder
            recorder.record_end(self._context, recorder.refuse(self._context, error))

    def _break_off(self) -> None:
        """End the relay after an incomplete answer."""
        self._close()
        self._context.outcome = _ABORTED
        self._relays.recorder.record_end(self._context, None)

    def _close(self) -> None:
        if self._expectation is not None:
            self._expectation.cancel()
        self._is_over = True
        self._request.is_detached = False
        # The watch refers to the reply, and would keep it alive.
        self._drains = None
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.notify(no_op)
            reply.close()
