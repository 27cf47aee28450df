"""A request that cannot be judged yet, and waits without a task: the `LiveAnswer` of its channel until then."""

from __future__ import annotations

from typing import Protocol

from gateway.limits.memory import NOTHING, Holding
from gateway.server.clients import Work
from gateway.server.context import RequestContext
from gateway.server.parsing import ParsedRequest
from gateway.server.request import Channel, Request
from gateway.upstream.auth_services import WaitingRequest


class Judge(Protocol):
    """Answers requests that have waited to be judged."""

    def go_on(self, waiting: UndecidedRequest) -> Work | None:
        """Answer the request as far as possible; returns the remaining work."""

    def abandon(self, context: RequestContext) -> None:
        """The request's client has left."""


class UndecidedRequest:
    """One such request."""

    __slots__ = ("_judge", "context", "parsed", "waiting")

    def __init__(self, context: RequestContext, parsed: ParsedRequest, judge: Judge) -> None:
        self.context = context
        self.parsed = parsed
        self.waiting: WaitingRequest | None = None
        """Its place in the queue."""
        self._judge = judge

    def holdings(self) -> tuple[Holding, ...]:
        """Nothing: the answer has not begun."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing: the answer has not begun."""

    def client_left(self, channel: Channel) -> None:
        """The client has left."""
        if self.waiting is not None:
            self.waiting.leave_queue()
        self._judge.abandon(self.context)

    def ready(self) -> None:
        """The question has been asked: judge the request again."""
        request = self.context.request
        request.channel.go_on(request, self._go_on)

    def _go_on(self, request: Request) -> Work | None:
        return self._judge.go_on(self)
