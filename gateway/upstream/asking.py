"""Asking an origin: who asks, and how one waits for the answer where waiting is what one does.

Most of the gateway waits: `answer_to` makes an awaitable of what is asked.  Relays, of which each client's request has
one, are told instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Protocol

from gateway.errors import GatewayError
from gateway.upstream.reply import Reply


class Asker(Protocol):
    """Who has asked.  Told by plain calls, in whatever context the connection runs."""

    def sent(self) -> None:
        """The request is being sent to an origin; once for each time."""

    def answered(self, reply: Reply) -> None:
        """The head of the answer has come; `Reply.close` is owed."""

    def failed(self, error: GatewayError) -> None:
        """There will be no answer: UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen where no origin
        may be asked; or what the request body failed with."""


class Asking(Protocol):
    """What has been asked."""

    def leave(self) -> None:
        """Nobody waits for the head of the answer any more; without effect once it is here."""


class _Waiter:
    """Waits for the answer."""

    def __init__(self, on_sent: Callable[[], object]) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._on_sent = on_sent
        self._context = copy_context()

    def sent(self) -> None:
        # A connection knows nothing of whom the waiting one works for.
        self._context.run(self._on_sent)

    def answered(self, reply: Reply) -> None:
        if self.answer.done():
            reply.close()
        else:
            self.answer.set_result(reply)

    def failed(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def answer_to(ask: Callable[[Asker], Asking], on_sent: Callable[[], object] = lambda: None) -> Reply:
    """The answer to what is asked, once its head is here; raises what `Asker.failed` is told."""
    waiter = _Waiter(on_sent)
    asking = ask(waiter)
    answer = waiter.answer
    try:
        return await answer
    except asyncio.CancelledError:
        asking.leave()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            # It came in the very turn in which the wait was called off.
            answer.result().close()
        raise
    finally:
        # What is raised has this frame, and must not be found from it.
        del waiter, asking, answer
