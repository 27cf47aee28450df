"""The interface to the origins: `Upstream` sends a request, and a `Requester` receives its outcome.

The `Upstream` notifies a requester by plain calls, without a task.  Relays, of which there is one for each relayed
client request, are requesters themselves.  Most other callers await a reply: `answer_to` adapts the calls to an
awaitable.
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
    """Receives the outcome of a request.  Its methods are called in the connection's `contextvars` context."""

    @property
    def sent(self) -> Callable[[], object]:
        """Return a callback that is called for each attempt to send the request."""

    def informed(self, interim: Interim) -> None:
        """Handle an interim (1xx) reply."""

    def head_arrived(self, reply: Reply) -> None:
        """Handle the reply, whose head has arrived.  The requester must call `Reply.close` at the end."""

    def failed(self, error: GatewayError) -> None:
        """Handle a failure before the head.

        `error` is CircuitOpen if no origin may be used, and UpstreamCongested if no connection was free in time.
        Otherwise it is UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, or the error that the request body raised.
        """


class PendingRequest(Protocol):
    """A request whose reply has not arrived yet."""

    def give_up(self) -> None:
        """Cancel the request.  Has no effect once the head of the reply has arrived."""


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

    `on_sent` is called for each attempt to send the request, in the connection's context.
    """
    waiter = _Waiter(on_sent)
    pending = ask(waiter, call)
    answer = waiter.answer
    try:
        return await answer
    except asyncio.CancelledError:
        pending.give_up()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            # The reply arrived in the same iteration of the loop as the cancellation.  Close it, because nobody will
            # read it.
            answer.result().close()
        raise
    finally:
        # Avoid a reference cycle: the traceback of a raised error refers to this frame.
        del waiter, pending, answer


class Upstream(Protocol):
    """Sends requests to origins: `client.OriginClient`, or an in-memory one in tests."""

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns."""

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout or UpstreamBroken.  Raises CircuitOpen at once if no origin may be
        used, and UpstreamCongested if no connection is free in time.
        """
