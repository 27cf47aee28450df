"""Requests that wait without a task.

The first read of a stream waits for the fetch from the origin.  A request that has to be authorised may wait for a key
set or for an authorisation service.  Until the answer begins, the `DeferredRequest` is the channel's `LiveAnswer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from gateway.engine.first_read import FirstRead
from gateway.engine.read import Read
from gateway.limits.memory import NOTHING, Holding
from gateway.server.client_connections import Work
from gateway.server.context import RequestContext
from gateway.server.interpreting import RequestMeaning
from gateway.server.request import Channel, Request
from gateway.tape.store import TapeStore
from gateway.upstream.auth_services import WaitingRequest


class Answerer(Protocol):
    """The part of the request handler that resumes requests after their wait."""

    def go_on(self, waiting: DeferredRequest) -> Work | None:
        """Answer the request as far as possible without waiting.  Returns the work that is left for a task, or None."""

    def abandon(self, context: RequestContext) -> None:
        """Called when the request's client has left."""


class DeferredRequest(ABC):
    """A request that waits, and whose answer has not begun."""

    __slots__ = ("_answerer", "context", "meaning")

    def __init__(self, context: RequestContext, meaning: RequestMeaning, answerer: Answerer) -> None:
        self.context = context
        self.meaning = meaning
        self._answerer = answerer

    def holdings(self) -> tuple[Holding, ...]:
        """Empty, because the answer has not begun."""
        return NOTHING

    def pump(self) -> None:  # noqa: B027
        """Do nothing, because the answer has not begun."""

    def client_left(self, channel: Channel) -> None:
        """Stop the wait, and record the request as aborted."""
        self._stop_waiting()
        self._answerer.abandon(self.context)

    def ready(self) -> None:
        """Called when the wait is over: answer the request."""
        request = self.context.request
        request.channel.go_on(request, self._resume)

    @abstractmethod
    def _stop_waiting(self) -> None:
        """Cancel the wait, because the client has left."""

    def _resume(self, request: Request) -> Work | None:
        return self._answerer.go_on(self)


class WaitingRead(DeferredRequest):
    """A first read, which waits for the fetch of its stream.  `store` has the tapes of all streams."""

    __slots__ = ("_store", "first", "read")

    def __init__(
        self,
        context: RequestContext,
        meaning: RequestMeaning,
        answerer: Answerer,
        read: Read,
        first: FirstRead,
        store: TapeStore,
    ) -> None:
        super().__init__(context, meaning, answerer)
        self.read = read
        self.first = first
        self._store = store

    def _stop_waiting(self) -> None:
        self.first.give_up(self._store)


class UndecidedRequest(DeferredRequest):
    """A request that waits for the verdict of authorisation."""

    __slots__ = ("waiting",)

    def __init__(self, context: RequestContext, meaning: RequestMeaning, answerer: Answerer) -> None:
        super().__init__(context, meaning, answerer)
        self.waiting: WaitingRequest | None = None
        """The request's entry in the queue of `gateway.upstream.auth_services`; None before the request waits there."""

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.leave_queue()
