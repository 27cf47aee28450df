"""The interface between a request to an origin and the component that made it.

A `Requester` receives the outcome by plain calls.  Most of the gateway awaits the reply instead: `answer_to` adapts the
calls to an awaitable.  Relays are requesters themselves, because there is one for each client request.

The engine's interface to the origins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from gateway.errors import GatewayError
from gateway.http.reply import Interim
from gateway.upstream.call import OriginCall
from gateway.upstream.incoming import no_op
from gateway.upstream.reply import Reply

C = TypeVar("C")


class Requester(Protocol):
    """Receives the outcome of a request.  Its methods are called in the context of the connection."""

    @property
    def sent(self) -> Callable[[], object]:
        """Called once for each attempt, when the request is being sent to an origin."""

    def informed(self, interim: Interim) -> None:
        """An interim reply has arrived."""

    def head_arrived(self, reply: Reply) -> None:
        """The head of the reply has arrived.  The requester must call `Reply.close`."""

    def failed(self, error: GatewayError) -> None:
        """No reply will come.  `error` is UpstreamUnreachable, UpstreamTimeout or UpstreamBroken; CircuitOpen if no
        origin may be used; UpstreamCongested if no connection is free in time; or the error that the request body
        raised."""


class PendingRequest(Protocol):
    """A request whose reply is awaited."""

    def give_up(self) -> None:
        """Give up waiting for the head of the reply.  Has no effect once the head is here."""


class _Waiter:
    """A requester that resolves a future."""

    __slots__ = ("answer", "sent")

    def __init__(self, on_sent: Callable[[], object]) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.sent = on_sent

    def informed(self, interim: Interim) -> None: ...

    def head_arrived(self, reply: Reply) -> None:
        if self.answer.done():
            reply.close()
        else:
            self.answer.set_result(reply)

    def failed(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def answer_to(
    ask: Callable[[Requester, C], PendingRequest], call: C, on_sent: Callable[[], object] = no_op
) -> Reply:
    """Send a request by `ask` and wait for the head of its reply.  Raises the error passed to `Requester.failed`.

    `on_sent` is called for each attempt, in the context of the connection.
    """
    waiter = _Waiter(on_sent)
    pending = ask(waiter, call)
    answer = waiter.answer
    try:
        return await answer
    except asyncio.CancelledError:
        pending.give_up()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            # The reply arrived in the same turn of the loop as the cancellation.
            answer.result().close()
        raise
    finally:
        # The raised error refers to this frame, so the frame must not refer to the error.
        del waiter, pending, answer


class Upstream(Protocol):
    """Sends requests to origins: `client.OriginClient`, or an in-memory one in tests."""

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns."""

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, if no origin may be used;
        UpstreamCongested if no connection is free in time.
        """
