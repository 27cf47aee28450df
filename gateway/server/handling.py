"""How a channel has its request answered, over whichever version of HTTP: by the handler, and by a task for what that
leaves to be waited for.  Whatever goes wrong, the client gets an end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection

from multidict import CIMultiDict

from gateway.server.clients import Clients, Work
from gateway.server.remembered import RememberedAnswer
from gateway.server.request import LiveAnswer, Request

_log = logging.getLogger("gateway.server")


class Handling(ABC):
    """The part of a `gateway.server.request.Channel` that runs handlers."""

    __slots__ = ()

    _clients: Clients
    _live: LiveAnswer | None

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
    def _ended(self, task: asyncio.Task[None]) -> None:
        """What was left to be done has been, or was cancelled before it began."""

    def _handle(self, request: Request) -> asyncio.Task[None] | None:
        """Have the request answered as far as nothing has to be waited for; the task for the rest, if any is left."""
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
        """What went wrong in detail is in the log."""
        if request.has_begun:
            self.abort()
            return
        request.keeps_alive = False
        self.respond(request, 500, plain_text(), b"Internal error\n")
        self.answered(request)

    def learn(self, answer: RememberedAnswer, credential_headers: Collection[str]) -> None:
        """The request was answered so; remember it if it was one to remember, and if what it came by still holds."""
        alias, remembered = self.alias, self._clients.remembered
        if alias is not None and remembered is not None:
            remembered.remember(alias, answer, credential_headers)


def plain_text() -> CIMultiDict[str]:
    """The header of a short answer of the gateway's own."""
    return CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
