"""Relaying: requests that are no reads, or whose answers may not be shared.

Bodies stream both ways; nothing is stored and nothing is retried.  What a write changes is recorded by
`gateway.engine.writes` before any byte of its answer reaches the client.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gateway.aio.clock import Clock
from gateway.engine.relayed_request import WRITES, RelayedRequest, SentRequest
from gateway.engine.writes import Writes
from gateway.errors import CircuitOpen, GatewayError, UpstreamCongested
from gateway.http.reply import Interim
from gateway.protocol.forwarded_headers import joined
from gateway.protocol.mode import Mode
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.asking import PendingRequest, Requester
from gateway.upstream.reply import Bounds, Reply
from gateway.upstream.upstream import Upstream


class RelayExchange(SentRequest):
    """One relayed request under way; the `Requester` of its upstream request."""

    __slots__ = ("_asker", "_asking", "_has_left", "_relay", "is_write")

    def __init__(
        self, relay: Relay, request: RelayedRequest, asker: Requester, stream: Stream | None, asked_at: float
    ) -> None:
        super().__init__(request, stream, asked_at)
        self._relay = relay
        self._asker = asker
        self.is_write = request.mode in WRITES
        self._asking: PendingRequest | None = None
        self._has_left = False

    def begin(self, upstream: Upstream, url: str, bounds: Bounds, *, is_live: bool) -> None:
        request = self.request
        self._asking = upstream.ask(
            self,
            request.method,
            url,
            request.headers,
            bounds,
            request.body,
            is_live=is_live,
            client=request.client,
        )

    def leave(self) -> None:
        """The client no longer waits for the answer.  A write is not cancelled by that, so its effects are still
        recorded."""
        self._has_left = True
        if not self.is_write and self._asking is not None:
            asking, self._asking = self._asking, None
            asking.leave()

    # -- from the origin

    def sent(self) -> None:
        self._relay.metrics.upstream_request(self.request.mode, self.request.route.config.name)
        self._asker.sent()

    def informed(self, interim: Interim) -> None:
        if not self._has_left:
            self._asker.informed(interim)

    def answered(self, reply: Reply) -> None:
        self._asking = None
        self._relay.answered(self, reply)
        if self._has_left:
            reply.close()
        else:
            self._asker.answered(reply)

    def failed(self, error: GatewayError) -> None:
        self._asking = None
        self._relay.failed(self, error)
        if not self._has_left:
            self._asker.failed(error)


class Relay:
    """Relays requests.  Keeps no state of its own."""

    def __init__(
        self, upstream: Upstream, store: TapeStore, writes: Writes, clock: Clock, metrics: MetricsRecorder
    ) -> None:
        self._upstream = upstream
        self._store = store
        self._writes = writes
        self._clock = clock
        self.metrics = metrics

    def ask(self, request: RelayedRequest, asker: Requester) -> RelayExchange:
        """Relay a request.  Its effects are recorded before `asker` is called, possibly before this returns."""
        route = request.route
        url = route.upstream_base(request.path)
        if request.raw_query:
            url = f"{url}?{request.raw_query}"
        is_live = request.is_live
        bounds = route.live_bounds if is_live else route.bounds
        if request.mode is Mode.SSE or request.is_session:
            # An origin may be silent on such a connection while nothing is appended.
            bounds = replace(bounds, idle_s=route.config.total_timeout_s, total_s=None)
        stream = self._store.find(request.tape_key) if request.tape_key is not None else None
        relayed = RelayExchange(self, request, asker, stream, self._clock.now())
        if relayed.is_write:
            self._writes.begin(relayed)
        relayed.begin(self._upstream, url, bounds, is_live=is_live)
        return relayed

    def answered(self, relayed: RelayExchange, reply: Reply) -> None:
        """The head of the answer has arrived: record its effects."""
        request = relayed.request
        request.route.heard()
        self.metrics.upstream_head(
            request.mode, reply.status, self._clock.now() - relayed.asked_at, request.route.config.name
        )
        if relayed.is_write:
            self._writes.answered(relayed, reply)
            return
        if request.mode is Mode.HEAD:
            self._writes.missing(relayed, reply)
        elif request.mode is not Mode.OTHER and request.tape_key is not None and request.route.heeds_origin:
            web_origin = joined(request.headers, "Origin")
            if web_origin is not None:
                stream = relayed.stream
                is_known = stream is not None and stream.origins_named_at > -math.inf
                shared = stream.headers if stream is not None and is_known else None
                request.route.judge_web_origin(request.group, web_origin, reply, shared)

    def failed(self, relayed: RelayExchange, error: GatewayError) -> None:
        """There is no answer."""
        request = relayed.request
        if not request.is_cut_short() and not isinstance(error, CircuitOpen | UpstreamCongested):
            self.metrics.upstream_failure(request.mode, type(error).__name__, request.route.config.name)
        if relayed.is_write:
            self._writes.failed(relayed, error)
