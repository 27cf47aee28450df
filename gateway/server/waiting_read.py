"""A first read that waits for its fetch without a task: the `LiveAnswer` of its channel until then."""

from __future__ import annotations

from typing import Protocol

from gateway.engine.first_read import FirstRead
from gateway.engine.read import Read
from gateway.limits.memory import NOTHING, Holding
from gateway.server.clients import Work
from gateway.server.context import ParsedRequest, RequestContext
from gateway.server.request import Channel


class Answerer(Protocol):
    """Answers first reads."""

    def rest_of(self, context: RequestContext, parsed: ParsedRequest, read: Read, first: FirstRead) -> Work:
        """The answer to a first read, whose fetch has been awaited."""

    def left(self, context: RequestContext, first: FirstRead) -> None:
        """The client of a waiting read has left."""


class WaitingRead:
    """One waiting read."""

    __slots__ = ("_answerer", "_context", "_first", "_parsed", "_read")

    def __init__(
        self, context: RequestContext, parsed: ParsedRequest, read: Read, first: FirstRead, answerer: Answerer
    ) -> None:
        self._context = context
        self._parsed = parsed
        self._read = read
        self._first = first
        self._answerer = answerer

    def holdings(self) -> tuple[Holding, ...]:
        """Nothing: the answer has not begun."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing: the answer has not begun."""

    def left(self, channel: Channel) -> None:
        """The client has left."""
        self._answerer.left(self._context, self._first)

    def go_on(self) -> None:
        """The fetch has been awaited: answer."""
        context = self._context
        request = context.request
        request.channel.go_on(request, self._answerer.rest_of(context, self._parsed, self._read, self._first))
