"""Relaying: forwards requests that are not reads, and reads whose answers may not be shared.

Bodies are streamed in both directions.  Nothing is stored and nothing is retried.  `gateway.engine.writes` records the
effects of a write before any byte of its answer reaches the client.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Final

from gateway.aio.clock import Clock
from gateway.engine.relayed_request import WRITES, RelayedRequest, SentRequest, origin_url
from gateway.engine.writes import Writes
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.http.reply_parser import Interim
from gateway.protocol.header_forwarding import joined
from gateway.protocol.mode import Mode
from gateway.tape.store import TapeStore
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.origin_call import Body, OriginCall, RepeatedUrl
from gateway.upstream.reply import PendingRequest, Reply, Upstream

# Enum members are slow to reach in Python 3.11, so every relayed request uses these constants.
_HEAD, _OTHER, _SSE = Mode.HEAD, Mode.OTHER, Mode.SSE


class RelayedCall(SentRequest):
    """One relayed request under way.  A subclass (the party) forwards the answer to its client.

    The effects of a write are recorded before the party gets the answer (`take_answer`) or the failure
    (`take_failure`).
    """

    __slots__ = ("_has_left", "_is_decided", "_pending", "_relay", "is_write")

    def __init__(self, relay: Relay, request: RelayedRequest, body: Body = None) -> None:
        key = request.tape_key
        # Do not call through `super()`, which would cost another call.
        SentRequest.__init__(self, request, relay.find(key) if key is not None else None, relay.now(), body)
        if self.stream is not None:
            self.tail = self.stream.tape.tail
        self._relay = relay
        self.is_write = request.mode in WRITES
        self._pending: PendingRequest | None = None
        self._is_decided = False
        """Whether the answer or the failure has arrived."""
        self._has_left = False

    def send(self) -> None:
        """Send the request.  The answer or the failure may arrive before this method returns."""
        pending = self._relay.send(self)
        if not self._is_decided:
            # Keep the pending request only until it is decided.  The request refers to this object, so the two form a
            # reference cycle, which would keep both alive.
            self._pending = pending

    def client_gone(self) -> None:
        """Record that the client has gone.  A read is cancelled; a write is not, and its effects are still recorded."""
        self._has_left = True
        if not self.is_write and self._pending is not None:
            pending, self._pending = self._pending, None
            pending.give_up()

    # -- for the party to implement

    def take_attempt(self) -> None:
        """Called when the request is being sent to an origin."""

    def take_interim(self, interim: Interim) -> None:
        """Called when an interim reply (1xx) has arrived."""

    @abstractmethod
    def take_answer(self, reply: Reply) -> None:
        """Called when the head of the reply has arrived.  The party must call `Reply.close`."""

    @abstractmethod
    def take_failure(self, error: GatewayError) -> None:
        """Called when the request has failed without an answer."""

    # -- called by the upstream client

    def sent(self) -> None:
        request = self.request
        self._relay.metrics.upstream_request(request.mode, request.route.name)
        self.take_attempt()

    def informed(self, interim: Interim) -> None:
        if not self._has_left:
            self.take_interim(interim)

    def head_arrived(self, reply: Reply) -> None:
        self._is_decided, self._pending = True, None
        self._relay.record_reply(self, reply)
        if self._has_left:
            reply.close()
        else:
            self.take_answer(reply)

    def failed(self, error: GatewayError) -> None:
        self._is_decided, self._pending = True, None
        self._relay.record_failure(self, error)
        if not self._has_left:
            self.take_failure(error)


class Relay:
    """Relays requests.  Keeps no state of its own."""

    def __init__(
        self, upstream: Upstream, store: TapeStore, writes: Writes, clock: Clock, metrics: MetricsRecorder
    ) -> None:
        self._upstream = upstream
        self.find: Final = store.find
        """Finds a stream in memory by its key."""
        self._writes = writes
        self.now = clock.now
        """Returns monotonic seconds."""
        self.metrics = metrics

    def send(self, relayed: RelayedCall) -> PendingRequest:
        """Send a request to its origin.  `relayed` may get the answer before this method returns."""
        request = relayed.request
        route, is_live = request.route, request.is_live
        bounds = route.live_bounds if is_live else route.bounds
        if is_live and (request.mode is _SSE or request.is_session):
            # Allow the origin to be silent for long, because it may have nothing to send until something is appended.
            bounds = replace(bounds, idle_s=route.config.total_timeout_s, total_s=None)
        if relayed.is_write:
            self._writes.write_started(relayed)
        url = request.url or RepeatedUrl(origin_url(route, request.group, request.raw_query))
        return self._upstream.ask(
            relayed,
            OriginCall(
                request.method,
                url.url,
                request.headers,
                bounds,
                relayed.body,
                is_live,
                request.client,
                url,
                None,
                request.has_own_credentials,
            ),
        )

    def record_reply(self, relayed: RelayedCall, reply: Reply) -> None:
        """Record the effects of an answer whose head has arrived."""
        request = relayed.request
        request.route.heard()
        self.metrics.upstream_head(request.mode, reply.status, self.now() - relayed.asked_at, request.route.name)
        if relayed.is_write:
            self._writes.write_answered(relayed, reply)
            return
        if request.mode is _OTHER:
            return
        self._writes.missing(relayed, reply)
        if request.mode is not _HEAD and request.tape_key is not None and request.route.heeds_origin:
            web_origin = joined(request.headers, "Origin")
            if web_origin is not None:
                stream = relayed.stream
                is_known = stream is not None and stream.origins_named_at > -math.inf
                shared = stream.headers if stream is not None and is_known else None
                request.route.judge_web_origin(request.group, web_origin, reply, shared)

    def record_failure(self, relayed: RelayedCall, error: GatewayError) -> None:
        """Record that a request has failed without an answer."""
        request = relayed.request
        if not relayed.is_cut_short and not isinstance(error, CircuitOpen | UpstreamCongested):
            self.metrics.upstream_failure(request.mode, type(error).__name__, request.route.name)
        if relayed.is_write:
            self._writes.write_failed(relayed, error)
