"""Running the request handler for a channel, the same for each version of HTTP.

The handler runs synchronously as far as it can; a task runs the rest if anything has to be waited for.  Every failure
ends the answer: with a 500 if nothing has been written yet, else by dropping the connection.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Final

from multidict import CIMultiDict

from gateway.http.request import Mark
from gateway.server.clients import Clients, Work
from gateway.server.remembered import RememberedAnswer
from gateway.server.request import LiveAnswer, Request

_log = logging.getLogger("gateway.server")

REFUSALS: Final = {
    Mark.BROKEN: (400, b"Bad request\n"),
    Mark.TARGET_TOO_LONG: (414, b"Request target too long\n"),
    Mark.HEAD_TOO_LARGE: (431, b"Request head too large\n"),
}
"""Status and body for bytes that are not an acceptable request."""


class Handling(ABC):
    """The part of a `gateway.server.request.Channel` that runs handlers."""

    __slots__ = ()

    _clients: Clients
    _live: LiveAnswer | None
    _request: Request | None
    _task: asyncio.Task[None] | None

    @property
    @abstractmethod
    def alias(self) -> bytes | None: ...

    @abstractmethod
    def respond(self, request: Request, status: int, headers: CIMultiDict[str], body: bytes) -> None: ...

    @abstractmethod
    def answered(self, request: Request) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def _leave_live(self) -> bool:
        """End the answer that is given without a task, and its count; returns whether there was one."""

    @abstractmethod
    def _ended(self, task: asyncio.Task[None]) -> None:
        """The request's task has ended, or was cancelled before it began."""

    def _handle(self, request: Request) -> asyncio.Task[None] | None:
        """Answer the request as far as possible without waiting; returns the task for the rest, if any."""
        try:
            work = self._clients.handler(request)
        except Exception:
            _log.exception("unhandled error")
            if self._live is None:
                self._fail(request)
            else:
                self.abort()
            return None
        if work is None:
            return None
        task = self._clients.loop.create_task(self._work(request, work))
        task.add_done_callback(self._ended)
        return task

    @property
    def _is_detached(self) -> bool:
        """Whether the request goes on although its client has left."""
        return self._request is not None and self._request.is_detached

    def _client_left(self) -> None:
        """End the answer in progress: its client has left."""
        if self._leave_live():
            return
        if self._task is not None and not self._is_detached:
            # In the next turn: a task that has just been made has begun by then, and ends what it was given.
            self._clients.loop.call_soon(self._end_task)

    def _end_task(self) -> None:
        """Cancel the task.  It may have gone on since its client left, and have begun a live answer."""
        if not self._leave_live() and self._task is not None and not self._is_detached:
            self._task.cancel()

    async def _work(self, request: Request, work: Work) -> None:
        try:
            answered = await work
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _log.exception("unhandled error")
            self._fail(request)
        else:
            if answered is not None:
                self.answered(request)

    def _fail(self, request: Request) -> None:
        """Answer with a 500 or abort; the error itself is in the log."""
        if request.has_begun:
            self.abort()
            return
        request.keeps_alive = False
        self.respond(request, 500, plain_text(), b"Internal error\n")
        self.answered(request)

    def learn(self, answer: RememberedAnswer, meaningful_names: Collection[str]) -> None:
        """Remember `answer` for the request's bytes, if the request has an alias that is still valid."""
        alias, remembered = self.alias, self._clients.remembered
        if alias is not None and remembered is not None:
            remembered.remember(alias, answer, meaningful_names)


def plain_text() -> CIMultiDict[str]:
    """The headers of a short plain-text answer by the gateway itself."""
    return CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
