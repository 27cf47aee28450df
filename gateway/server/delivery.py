"""Writing answers to clients: every write has a deadline, and a body that cannot be finished is never ended cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from gateway.engine.answer import Answer, Shown
from gateway.errors import GatewayError
from gateway.metrics_seam import Recorder

_PART_BYTES = 1 << 16
"""The most that is written at a time, for which a client has the time of the write bound."""
_JOINED_BYTES = 1 << 18
"""A body up to this size is joined and sent with its head in one write."""


class Aborted(Exception):
    """The connection was dropped in the middle of a body; there is nobody left to tell."""


class Delivery:
    """Writes to one client.  `now` gives monotonic seconds; without it the first byte's time is not noted."""

    def __init__(
        self,
        request: web.BaseRequest,
        recorder: Recorder,
        write_timeout_s: float,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._request = request
        self._recorder = recorder
        self._write_timeout_s = write_timeout_s
        self._now = now
        self.first_byte_at: float | None = None
        """When the answer began to be written; None where it did not."""
        self.sent_bytes = 0
        """Body bytes handed to the connection."""

    async def answer(self, answer: Answer) -> web.StreamResponse:
        """Send an answer whole.  Raises Aborted when the client or the origin went away in the middle."""
        if answer.parts is None:
            return await self.text(answer.status, answer.headers, answer.body)
        length = answer.parts.length(answer.is_json)
        if length is not None and length <= _JOINED_BYTES and self._request.method == "GET":
            # Nothing has been written yet, so what fails here can still be told by a status.
            body = b"".join([piece async for piece in answer.parts.stream(answer.is_json)])
            if answer.shown is not None:
                answer.shown.stream.sent_bytes += len(body)
            return await self.text(answer.status, answer.headers, body)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_length = length
        return await self.stream(response, answer.parts.stream(answer.is_json), answer.shown)

    async def text(self, status: int, headers: CIMultiDict[str], body: bytes) -> web.StreamResponse:
        """Send a short body that is here."""
        content_type = headers.pop("Content-Type", None)
        response = web.Response(status=status, headers=headers, body=body if status not in (204, 304) else None)
        if content_type is not None and status != 204:
            response.headers["Content-Type"] = content_type
        elif "Content-Type" in response.headers:
            del response.headers["Content-Type"]
        self._sent(len(body))
        self._begins()
        await self._bounded(response.prepare(self._request))
        await self._bounded(response.write_eof())
        return response

    def _begins(self) -> None:
        if self._now is not None:
            self.first_byte_at = self._now()

    def _sent(self, size: int) -> None:
        self.sent_bytes += size
        self._recorder.downstream_bytes(size)

    async def stream(
        self, response: web.StreamResponse, body: AsyncIterator[bytes], shown: Shown | None = None
    ) -> web.StreamResponse:
        """Send a body as it becomes available; `shown` says of which stream it is, if of any."""
        self._begins()
        await self._bounded(response.prepare(self._request))
        try:
            async for chunk in body:
                self._sent(len(chunk))
                if shown is not None:
                    shown.stream.sent_bytes += len(chunk)
                # In parts, so that the bound is on progress and not on the size of what came in one piece.
                for begin in range(0, len(chunk), _PART_BYTES):
                    await self._bounded(response.write(chunk[begin : begin + _PART_BYTES]))
        except GatewayError as error:
            raise self.abort() from error
        await self._bounded(response.write_eof())
        return response

    async def _bounded(self, write: Coroutine[Any, Any, object]) -> None:
        try:
            # Nearly every write finds room and ends at its first step; a timer for it would cost as much as itself.
            waited_for = write.send(None)
            async with asyncio.timeout(self._write_timeout_s):
                await _Rest(write, waited_for)
        except StopIteration:
            return
        except TimeoutError as error:
            self._recorder.slow_consumer()
            raise self.abort() from error
        except (ConnectionError, RuntimeError) as error:
            raise self.abort() from error

    def abort(self) -> Aborted:
        """Drop the connection at once: an orderly end would make a part look like the whole."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()
        return Aborted("connection dropped")


class _Rest:
    """What is left of a coroutine that has been run up to its first wait."""

    __slots__ = ("_coroutine", "_waited_for")

    def __init__(self, coroutine: Coroutine[Any, Any, object], waited_for: object) -> None:
        self._coroutine = coroutine
        self._waited_for = waited_for

    def __await__(self) -> Generator[object, Any, None]:
        waited_for = self._waited_for
        while True:
            try:
                value = yield waited_for
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                waited_for = step()
            except StopIteration:
                return
