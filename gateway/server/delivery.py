"""Sends an answer to its client.

Every wait is bounded.  If an answer cannot be completed, its connection is dropped, so that a truncated body does not
look complete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from multidict import CIMultiDict

from gateway.engine.answer import Answer, BodyRun
from gateway.errors import GatewayError
from gateway.http.outgoing import Fields
from gateway.limits.memory import Holding, SharedBytes
from gateway.server.request import Answered, Request
from gateway.telemetry.metrics import MetricsRecorder
from gateway.tuples import make

PART_BYTES: Final = 1 << 16
"""The most bytes written at a time.  The client has the write timeout to read them."""
_JOINED_BYTES: Final = 1 << 18
"""The largest body that is sent in one write with its head."""


class Aborted(ConnectionError):
    """The connection was dropped within a body, so no response can be sent any more."""


class WholeBody:
    """A large body in memory that is written in parts.  Implements `gateway.server.request.Holder`."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    def holdings(self) -> tuple[Holding]:
        size = len(self._body)
        return (Holding(SharedBytes(size), size),)

    async def parts(self) -> AsyncIterator[bytes]:
        yield self._body


class Delivery:
    """Writes the answer to one request.  `now` returns monotonic seconds."""

    __slots__ = ("_metrics", "_now", "_request", "first_byte_at", "sent_bytes")

    def __init__(self, request: Request, metrics: MetricsRecorder, now: Callable[[], float]) -> None:
        self._request = request
        self._metrics = metrics
        self._now = now
        self.first_byte_at: float | None = None
        """The time at which the answer's head was written; None before."""
        self.sent_bytes = 0
        """Body bytes handed to the connection."""

    def whole_answer(self, answer: Answer) -> Answered | None:
        """Send an answer if its body is small and in memory.  For any other answer, send nothing and return None."""
        parts = answer.parts
        if parts is None:
            return self.text(answer.status, answer.headers, answer.body)
        if self._request.method != "GET":
            return None
        body = parts.small_body(answer.is_json, _JOINED_BYTES)
        return self._joined(answer, body) if body is not None else None

    def _joined(self, answer: Answer, body: bytes) -> Answered:
        if answer.run is not None:
            answer.run.stream.sent_bytes += len(body)
        return self.passed_on(answer.status, None, answer.headers, body)

    async def send_answer(self, answer: Answer) -> Answered:
        """Send an answer that `whole_answer` has refused.  Raises Aborted if the client or the origin fails within the
        body."""
        assert answer.parts is not None
        length = answer.parts.length(answer.is_json)
        if length is not None and length <= _JOINED_BYTES and self._request.method == "GET":
            # Nothing has been written yet, so a failure of the body can still become an error response.
            return self._joined(answer, b"".join([piece async for piece in answer.parts.stream(answer.is_json)]))
        self._request.held = answer
        body_parts = answer.parts.stream(answer.is_json)
        return await self.stream(answer.status, None, answer.headers, length, body_parts, answer.run)

    def text(self, status: int, headers: CIMultiDict[str], body: bytes) -> Answered:
        """Send a short body that is in memory."""
        if status == 204:
            headers.popall("Content-Type", None)
        return self.passed_on(status, None, headers, body)

    def passed_on(self, status: int, reason: str | None, headers: Fields, body: bytes) -> Answered:
        """Send a short body with the headers unchanged."""
        request = self._request
        request.channel.respond(request, status, headers, body, reason)
        self.first_byte_at = self._now()
        # The channel (the HTTP/1.1 connection or HTTP/2 stream) omits the body after a HEAD, and with a 204 or 304 (RFC
        # 9110 section 6.4.1).
        if body and request.method != "HEAD" and status not in (204, 304):
            self.count_sent(len(body))
        return make(Answered, (status, headers))

    def count_sent(self, size: int) -> None:
        """Count body bytes that were handed to the channel."""
        self.sent_bytes += size
        self._metrics.downstream_bytes(size)

    async def whole(self, status: int, headers: CIMultiDict[str], body: bytes) -> Answered:
        """Send a large body in parts.  Raises Aborted if the client leaves within the body."""
        held = self._request.held = WholeBody(body)
        return await self.stream(status, None, headers, len(body), held.parts())

    async def stream(
        self,
        status: int,
        reason: str | None,
        headers: CIMultiDict[str],
        length: int | None,
        body: AsyncIterator[bytes],
        run: BodyRun | None = None,
    ) -> Answered:
        """Send a body as it becomes available.  If the body is a part of a durable stream, `run` is this part, and the
        sent bytes are counted at the stream.  Raises Aborted if the body fails.
        """
        channel = self._request.channel
        self.start_response(status, reason, headers, length)
        try:
            async for chunk in body:
                if run is not None:
                    run.stream.sent_bytes += len(chunk)
                # Write in parts, because the write timeout bounds the time for each part.
                for begin in range(0, len(chunk), PART_BYTES):
                    self.part(chunk[begin : begin + PART_BYTES])
                    if channel.is_full:
                        await channel.drained()
        except GatewayError as error:
            raise self.abort() from error
        self.end_response()
        return Answered(status, headers)

    def start_response(self, status: int, reason: str | None, headers: Fields, length: int | None) -> None:
        """Send the head of a body with `length` bytes; None if the length is unknown."""
        self._request.channel.start_response(self._request, status, reason, headers, length)
        self.first_byte_at = self._now()

    def part(self, piece: bytes) -> None:
        """Send a part of the body, of at most `PART_BYTES`."""
        self.count_sent(len(piece))
        self._request.channel.send_part(piece)

    def end_response(self) -> None:
        """End the body as complete."""
        self._request.channel.end_response()

    def abort(self) -> Aborted:
        """Drop the connection at once, because an orderly end would make a truncated body look complete.  Returns the
        error to raise."""
        self._request.channel.abort()
        return Aborted("connection dropped")
