"""A first read that waits for its fetch without a task: the `LiveAnswer` of its channel until then."""

from __future__ import annotations

from typing import Protocol

from gateway.engine.first_read import FirstRead
from gateway.engine.read import Read
from gateway.limits.memory import NOTHING, Holding
from gateway.server.clients import Work
from gateway.server.context import RequestContext
from gateway.server.parsing import ParsedRequest
from gateway.server.request import Channel, Request


class Answerer(Protocol):
    """Answers first reads."""

    def go_on(self, waiting: WaitingRead) -> Work | None:
        """Answer a first read, whose fetch has been awaited, as far as possible; returns the remaining work."""

    def waiting_read_left(self, waiting: WaitingRead) -> None:
        """The client of a waiting read has left."""


class WaitingRead:
    """One waiting read."""

    __slots__ = ("_answerer", "context", "first", "parsed", "read")

    def __init__(
        self, context: RequestContext, parsed: ParsedRequest, read: Read, first: FirstRead, answerer: Answerer
    ) -> None:
        self.context = context
        self.parsed = parsed
        self.read = read
        self.first = first
        self._answerer = answerer

    def holdings(self) -> tuple[Holding, ...]:
        """Nothing: the answer has not begun."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing: the answer has not begun."""

    def client_left(self, channel: Channel) -> None:
        """The client has left."""
        self._answerer.waiting_read_left(self)

    def ready(self) -> None:
        """The fetch has been awaited: answer."""
        request = self.context.request
        request.channel.go_on(request, self._go_on)

    def _go_on(self, request: Request) -> Work | None:
        return self._answerer.go_on(self)
