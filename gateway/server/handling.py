"""Runs the request handler for a channel: an HTTP/1.1 connection or an HTTP/2 stream.

The handler runs synchronously as far as it can, and a task does any work that has to wait.  If the handler fails before
anything is written, the answer is a 500.  If it fails later, the connection is dropped.

A *deferred* request waits without a task.  The first read of a stream waits for the fetch from the origin, or for the
answer of another worker.  A request that has to be authorised may wait for a key set or for an authorisation service.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Final, Protocol, cast
from urllib.parse import quote, unquote

from multidict import CIMultiDict

from gateway.aio.tasks import begin
from gateway.engine.cold_reads import FirstRead
from gateway.engine.passed_read import PassedRead
from gateway.engine.read import Read
from gateway.engine.route import HeaderRules
from gateway.http.outgoing import Fields
from gateway.http.request_parser import Mark
from gateway.limits.accounts import Account
from gateway.limits.memory import NOTHING, Holding
from gateway.live.subscriber import Subscriber
from gateway.protocol.names import NOW
from gateway.s2 import json_format
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.server.context import RequestContext
from gateway.server.interpreting import RequestMeaning
from gateway.server.phase import Phase, PhasedChannel
from gateway.server.remembered import RememberedAnswer
from gateway.server.request import Channel, GivenUp, Handler, Request, Work
from gateway.tape.store import TapeStore
from gateway.upstream.auth_services import WaitingRequest

_log = logging.getLogger("gateway.server")

REFUSALS: Final = {
    Mark.BROKEN: (400, b"Bad request\n"),
    Mark.TARGET_TOO_LONG: (414, b"Request target too long\n"),
    Mark.HEAD_TOO_LARGE: (431, b"Request head too large\n"),
}
"""Status and body of the answers to bytes that are not an acceptable request."""

_ANSWERING: Final = Phase.ANSWERING
INTERNAL_ERROR: Final = b"Internal error\n"
"""The body of the 500 for a request whose handler fails."""


class Handling(PhasedChannel, ABC):
    """The part of a `gateway.server.request.Channel` that runs the request handler."""

    __slots__ = ()

    @property
    @abstractmethod
    def alias(self) -> bytes | None: ...

    @abstractmethod
    def respond(self, request: Request, status: int, headers: Fields, body: bytes) -> None: ...

    @abstractmethod
    def response_written(self, request: Request) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @property
    @abstractmethod
    def use(self) -> Account | None: ...

    @abstractmethod
    def _begin_handling(self, request: Request) -> None:
        """Answer the request as far as possible without waiting.  A task does the work that has to wait."""

    @abstractmethod
    def _repeated(self, data: bytes | None) -> Request | None:
        """Return the request with these bytes, or the latest request if `data` is None.  Returns None if the client has
        left.
        """

    @abstractmethod
    def _ended(self, task: asyncio.Task[None]) -> None:
        """Called when the request's task has ended, or was cancelled before it began."""

    def _handle(self, request: Request, handler: Handler) -> asyncio.Task[None] | None:
        """Run the handler as far as possible without waiting.  Returns the task for the work that has to wait; None
        without such work.
        """
        try:
            work = handler(request)
        except Exception:
            _log.exception("unhandled error")
            if self._live is None:
                self._fail(request)
            else:
                self.abort()
            return None
        if work is None:
            return None
        task = begin(self._clients.loop, self._work(request, work))
        if task is not None:
            task.add_done_callback(self._ended)
        return task

    @property
    def _is_detached(self) -> bool:
        """Whether the request continues although its client has left."""
        return self._request is not None and self._request.is_detached

    def _client_left(self) -> None:
        """End the answer in progress, because the client has left."""
        if self._leave_live():
            return
        if not self._is_detached:
            # End the task in the loop's next turn.  By then `_task` refers to the task even if the task is new.  The
            # task has also begun by then, so it can close the answer.
            self._clients.loop.call_soon(self._end_task)

    def _end_task(self) -> None:
        """Cancel the task.  If the task has begun a live answer since the client left, end this answer."""
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
                self.response_written(request)

    def end_early(self) -> None:
        """End the live answer in progress.  An SSE answer ends properly.  For any other answer, the connection is
        dropped.
        """
        if isinstance(self._live, Subscriber):
            self._live.drain_within(0.0, 0.0)
        else:
            self.abort()

    def _fail(self, request: Request) -> None:
        """Answer with a 500, or abort if the answer has begun.  The log has the error."""
        if request.has_begun:
            self.abort()
            return
        request.keeps_alive = False
        self.respond(request, 500, plain_text(), INTERNAL_ERROR)
        self.response_written(request)

    def go_on(self, request: Request, handler: Handler) -> None:
        """Resume the handler after a `LiveAnswer` has waited on its behalf."""
        self.enter_phase(_ANSWERING)
        self._run(request, handler)

    def _run(self, request: Request, handler: Handler) -> None:
        """Run the handler, and start a task for the work that has to wait."""
        if (task := self._handle(request, handler)) is not None:
            self._task = task

    def begin_again(self, request: bytes | None, at: str, group: GivenUp) -> None:
        """Give up a live answer before any of it is written, and relay its request instead.

        `request` holds the request's bytes, or is None for the latest request.  A read that began at the stream's tail
        (its end) continues from the offset `at`.  Many answers may be given up at once, so each request waits for its
        turn.  While the request waits, `group` counts its client.
        """
        again = _Again(self, request, at, group)
        self.hand_over(again)
        if not self._clients.turns.must_wait(again):
            again.take_turn()

    def take_again(self, data: bytes | None, at: str, group: GivenUp) -> None:
        """Handle the request that `begin_again` has put off."""
        request = self._repeated(data)
        if request is not None:
            group.handed_over(cast("Channel", self))
            request.is_alone = True
            request.target = _from_tail(request.target, at)
            self._begin_handling(request)

    @property
    def learns(self) -> bool:
        """Whether `learn` can remember an answer to this request."""
        return self._clients.remembered is not None and self.alias is not None

    def learn(self, answer: RememberedAnswer, rules: HeaderRules) -> None:
        """Remember `answer` for later requests with the same bytes, if this request may be remembered."""
        alias, remembered = self.alias, self._clients.remembered
        if alias is not None and remembered is not None:
            remembered.remember(alias, answer, rules)


class _Again:
    """The channel's `LiveAnswer` while its request waits to be handled again."""

    __slots__ = ("_at", "_channel", "_group", "_request", "use")

    waits: Final = None

    def __init__(self, channel: Handling, request: bytes | None, at: str, group: GivenUp) -> None:
        self._channel: Handling | None = channel
        self._request = request
        self._at = at
        self._group = group
        self.use = channel.use

    def holdings(self) -> tuple[Holding, ...]:
        """Empty, because the answer has not begun."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing, because the answer has not begun."""

    def client_left(self, channel: Channel) -> None:
        self._channel = None
        self._group.client_left(channel)

    def take_turn(self) -> None:
        channel = self._channel
        if channel is not None:
            channel.take_again(self._request, self._at, self._group)


def _from_tail(target: str, at: str) -> str:
    """Return the target of a read, with the offset `at` in place of `now`, in any spelling of the parameter."""
    path, mark, query = target.partition("?")
    parts = query.split("&")
    for number, part in enumerate(parts):
        name, _, value = part.partition("=")
        if unquote(name) == "offset" and unquote(value) == NOW:
            parts[number] = f"offset={quote(at, safe='')}"
    return path + mark + "&".join(parts)


def refusal(status: int, text: bytes, *, is_s2: bool) -> tuple[CIMultiDict[str], bytes]:
    """Return the headers and the body of an answer to bytes that are not an acceptable request.

    The body is one line of text, or S2's JSON.  Such bytes belong to no route, so `is_s2` selects S2's JSON.  It is set
    if all routes are S2 routes.
    """
    headers = plain_text()
    if is_s2:
        code = _S2_CODES.get(status, S2ErrorCode.OTHER)
        headers["Content-Type"], text = json_format.CONTENT_TYPE, error_body(code, text.decode().strip())
    headers["Content-Length"] = str(len(text))
    return headers, text


_S2_CODES: Final = {400: S2ErrorCode.BAD_HEADER, 414: S2ErrorCode.BAD_PATH, 431: S2ErrorCode.BAD_HEADER}


def plain_text() -> CIMultiDict[str]:
    """Make the headers of a short plain-text answer of the gateway's own."""
    return CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})


class Answerer(Protocol):
    """The part of the request handler that resumes requests after their wait."""

    def go_on(self, waiting: DeferredRequest) -> Work | None:
        """Answer the request as far as possible without waiting.  Returns the work that is left for a task, or None."""

    def abandon(self, context: RequestContext) -> None:
        """Called when the request's client has left."""


class DeferredRequest(ABC):
    """A request that waits before its answer begins.  While it waits, this object is the channel's `LiveAnswer`."""

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


class WaitingPassedRead(DeferredRequest):
    """A read that waits for the answer of its stream's owner, another worker."""

    __slots__ = ("passed",)

    def __init__(
        self, context: RequestContext, meaning: RequestMeaning, answerer: Answerer, passed: PassedRead
    ) -> None:
        super().__init__(context, meaning, answerer)
        self.passed = passed

    def _stop_waiting(self) -> None:
        self.passed.give_up()


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
