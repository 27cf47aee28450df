"""One request on its way through the request handler, and how those who answer it tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.engine.response_heads import failure_answer
from gateway.engine.route import Route
from gateway.errors import GatewayError
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.stream_key import StreamKey
from gateway.protocol.target import Target
from gateway.server import cors
from gateway.server.delivery import Delivery
from gateway.server.header_facts import HeaderFacts
from gateway.server.request import Answered, Request
from gateway.telemetry.access_record import note_response
from gateway.telemetry.metrics import NO_ROUTE, MetricsRecorder
from gateway.telemetry.tracing import current


class ParsedRequest(NamedTuple):
    """What a request asks for."""

    route: Route
    target: Target
    key: StreamKey
    shares: bool
    """Whether it may be answered as one of many, and what it changes be recorded of the writer's own tape."""
    facts: HeaderFacts
    read: Read | None
    """As the engine is asked; None for what is no read, or may not be shared."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way: what is known of it for the answer and for the record."""

    request: Request
    delivery: Delivery
    began: float
    over: asyncio.Future[Answered | None] | None = None
    """Told when the answer is out, or None when it has broken off, where somebody waits for that; else the channel
    is."""
    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    route: Route | None = None
    saved_bytes: int = 0
    """What coding spared the client of an answer that was sent whole."""
    is_replay: bool = False
    """Whether a live read is relayed for what comes before the tail, and for no longer."""
    is_live: bool = False
    """Whether the answer is live, and told of when it ends."""
    is_relayed: bool = False
    """Whether a relay gives the answer."""

    @property
    def route_name(self) -> str:
        """The route's name as the metrics have it."""
        return self.route.config.name if self.route is not None else NO_ROUTE


class ResponseRecorder:
    """What all answers have in common, and what is told of them."""

    def __init__(self, node: str, metrics: MetricsRecorder, now: Callable[[], float]) -> None:
        self.node = node
        self.metrics = metrics
        self.now = now

    def tell(self, context: RequestContext) -> None:
        """What became of the request, for those who count, log and trace."""
        mode, outcome, delivery, span = context.mode, context.outcome, context.delivery, current()
        route = context.route.config.name if context.route is not None else None
        sent_bytes = delivery.sent_bytes
        first_byte_s = delivery.first_byte_at - context.began if delivery.first_byte_at is not None else None
        self.metrics.request(
            mode,
            outcome,
            self.now() - context.began,
            context.route_name,
            first_byte_s=first_byte_s,
            sent_bytes=sent_bytes,
            saved_bytes=context.saved_bytes,
        )
        span.describe(mode, outcome, route)
        note_response(mode, outcome, first_byte_s, sent_bytes, context.saved_bytes)

    def refuse(self, context: RequestContext, error: GatewayError) -> Answered:
        """The one place where an error becomes a response: a status and one line."""
        answer = failure_answer(self.node, error)
        context.outcome, headers = answer.outcome, answer.headers
        self.finish(context, headers)
        return context.delivery.text(answer.status, headers, answer.body)

    def finish(self, context: RequestContext, headers: CIMultiDict[str]) -> None:
        """What every response carries."""
        self.dress(context.route, context.request.headers.get("Origin"), headers)

    def dress(self, route: Route | None, origin: str | None, headers: CIMultiDict[str]) -> None:
        """The same for a reader of this web origin."""
        config = route.config.cors if route is not None else None
        if config is not None:
            cors.apply(config, origin, headers)
        if "Via" not in headers:
            headers["Via"] = f"1.1 {self.node}"
        headers.setdefault("Server", self.node)
