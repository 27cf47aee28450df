"""Sending a streamed request body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from multidict import CIMultiDict

from gateway.http.outgoing import InvalidRequest
from gateway.upstream.failures import UploadFailed
from gateway.upstream.incoming import Carrier, IncomingReply


class Upload:
    """A streamed request body.  The upload may fail because the client does not send the body."""

    __slots__ = ("_body", "_deadline", "_first_byte_s", "_has_begun", "_length", "has_ended")

    def __init__(self, body: AsyncIterator[bytes], first_byte_s: float, deadline: float) -> None:
        self._body = body
        self._first_byte_s = first_byte_s
        self._deadline = deadline
        self._length: int | None = None
        self._has_begun = False
        self.has_ended = False
        """Whether the whole body has been sent."""

    def measure(self, headers: CIMultiDict[str]) -> int | None:
        """Return the Content-Length, or None for a chunked body.  Raises InvalidRequest if the Content-Length is
        invalid.
        """
        said = headers.getall("Content-Length", None)
        if said is not None:
            if len(said) > 1 or not (said[0].isascii() and said[0].isdecimal()):
                raise InvalidRequest("a length that is none")
            self._length = int(said[0])
        return self._length

    def is_at_fault(self, error: BaseException) -> bool:
        """Return whether the request failed because its client did not send the whole body in time."""
        is_late = isinstance(error, TimeoutError) and self._has_begun and not self.has_ended
        return is_late or isinstance(error, UploadFailed)

    async def run(self, connection: Carrier, incoming: IncomingReply) -> None:
        """Send the body, then start the time limit for the reply's first byte."""
        self._has_begun = True
        self.has_ended = await connection.send_body(self._body, self._length)
        if self.has_ended and incoming.head is None and incoming.connection is not None:
            now = asyncio.get_running_loop().time()
            connection.deadline.move(min(now + self._first_byte_s, self._deadline))


async def send_body(
    chunks: AsyncIterator[bytes], length: int | None, write: Callable[[bytes], Awaitable[None]]
) -> UploadFailed | None:
    """Write a body of `length` bytes, or of any length if None.

    If the iterator raises or the length is wrong, return the failure.
    """
    left = length
    try:
        async for chunk in chunks:
            if left is not None:
                left -= len(chunk)
                if left < 0:
                    return UploadFailed("longer than announced")
            if chunk:
                await write(chunk)
    except Exception as error:
        return _failure(error)
    return UploadFailed("shorter than announced") if left else None


def _failure(error: Exception) -> UploadFailed:
    # A separate function avoids a reference cycle: the error's traceback refers to the caller's frame, which must not
    # refer to the failure.
    if isinstance(error, UploadFailed):
        return error
    failure = UploadFailed("broken off")
    failure.__cause__ = error
    return failure
