"""Live answers: SSE responses and waiting long-polls leave the strict protocol for the bare connection.

From here on nothing of aiohttp is held for such a client: the door keeps the connection, a subscriber or a waiter the
place in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from multidict import CIMultiDict

from gateway.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.replies import failure_answer
from gateway.engine.route import Route
from gateway.engine.tail import Subscription, Waiting
from gateway.engine.waiter import Rendered
from gateway.errors import GatewayError
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.mode import Mode
from gateway.protocol.names import SSE_TYPE
from gateway.server.connection import ClientConnection
from gateway.server.door import Door
from gateway.server.head import date_line, field_lines, status_line

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds what every response carries, for a client of this route that sent this Origin header."""


class Parked(web.StreamResponse):
    """In place of a response: it is written elsewhere, and the connection is no longer aiohttp's."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing to write."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing to end."""

    @property
    def keep_alive(self) -> bool:
        return True


class LiveAnswers:
    """Begins live answers.  Owns nothing: their doors do."""

    def __init__(self, node: str, dress: Dress, clock: Clock) -> None:
        self.node = node
        self.dress = dress
        self._clock = clock

    def subscribe(
        self, request: web.BaseRequest, subscription: Subscription, route: Route | None, began: float
    ) -> Parked:
        """Begin an SSE response.  Raises UpstreamBroken, and closes the subscription, for headers not to be written."""
        door = _door(request)
        is_chunked = request.version >= HttpVersion11
        keeps = is_chunked and request.keep_alive
        headers = CIMultiDict(subscription.stream.headers)
        headers.update(subscription.headers)
        headers["Content-Type"] = SSE_TYPE
        headers["Cache-Control"] = "no-cache"
        headers["Cache-Status"] = cache_status(self.node, Outcome.FOLLOWED)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self.dress(route, request.headers.get(hdrs.ORIGIN), headers)
        try:
            head = self.head(200, headers, keeps=keeps)
        except GatewayError:
            subscription.close()
            raise
        subscriber = subscription.start(door)
        door.take_over(subscriber, Mode.SSE, began, keeps=keeps, is_chunked=is_chunked)
        door.write_head(head)
        subscriber.start()
        return Parked()

    def wait(self, request: web.BaseRequest, waiting: Waiting, route: Route | None, began: float) -> Parked:
        """Have a long-poll wait for its answer."""
        door = _door(request)
        keeps = request.version >= HttpVersion11 and request.keep_alive
        waiter = waiting.start(_Poller(self, door, route, request.headers.get(hdrs.ORIGIN), keeps=keeps))
        door.take_over(waiter, Mode.LONGPOLL, began, keeps=keeps, is_chunked=False)
        waiter.start()
        return Parked()

    def head(self, status: int, headers: CIMultiDict[str], *, keeps: bool) -> bytes:
        """The head of a response.  Raises UpstreamBroken for a header that must not be written."""
        close = b"" if keeps else b"Connection: close\r\n"
        return status_line(status) + field_lines(headers) + close + date_line(int(self._clock.wall())) + b"\r\n"


class _Poller:
    """The client of a long-poll: a `gateway.engine.waiter.Client`."""

    __slots__ = ("_answers", "_door", "_keeps", "_origin", "_route")

    def __init__(
        self, answers: LiveAnswers, door: Door, route: Route | None, origin: str | None, *, keeps: bool
    ) -> None:
        self._answers = answers
        self._door = door
        self._route = route
        self._origin = origin
        self._keeps = keeps

    @property
    def shape(self) -> Hashable:
        return self._origin, self._keeps

    def render(self, answer: Answer) -> Rendered:
        try:
            return self._rendered(answer)
        except GatewayError as error:
            return self._rendered(failure_answer(self._answers.node, error))

    def _rendered(self, answer: Answer) -> Rendered:
        self._answers.dress(self._route, self._origin, answer.headers)
        body = answer.whole()
        if answer.status not in (204, 304):
            answer.headers["Content-Length"] = str(len(body))
        head = self._answers.head(answer.status, answer.headers, keeps=self._keeps)
        return Rendered(head + body, len(body), answer.outcome)

    def reply(self, rendered: Rendered) -> None:
        self._door.reply(*rendered)

    def has_gone(self) -> None:
        self._door.over(in_order=False)


def _door(request: web.BaseRequest) -> Door:
    connection = request.protocol
    assert isinstance(connection, ClientConnection)
    return connection.door
