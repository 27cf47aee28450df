"""One request and the channel for its answer, the same over HTTP/1.1 and HTTP/2.

Both bodies are streams and may flow at the same time, as in an append session.  Sending waits until the client has
room, and the client has to wait while its body is not taken.

Why not use a server library?  Fault switches must end a stream or connection at an exact byte, which ASGI servers do
not offer to applications.  The gateway's own server is not used either, because a bug on both sides could go unnoticed.
h11 and h2 provide the protocol state machines, so that only this interface and the sockets are left.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from multidict import CIMultiDict


class Stopped(Exception):
    """The origin takes no more of the body."""


class Incoming:
    """A request's body as it arrives.  `taken` is called with the size of each part when it is taken."""

    def __init__(self, taken: Callable[[int], object]) -> None:
        self.queued_bytes = 0
        self._taken = taken
        self._parts: deque[bytes] = deque()
        self._is_whole = False
        self._has_left = False
        self._is_stopped = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the client has sent the whole body."""
        return self._is_whole

    def feed(self, part: bytes) -> None:
        """Add a part that has arrived."""
        self._parts.append(part)
        self.queued_bytes += len(part)
        self._wake()

    def end(self) -> None:
        """Mark the body as complete."""
        self._is_whole = True
        self._wake()

    def leave(self) -> None:
        """Record that the client has left."""
        self._has_left = True
        self._wake()

    def stop(self) -> None:
        """Take no more: when all received parts have been taken, `take` raises Stopped."""
        self._is_stopped = True
        self._wake()

    async def take(self) -> bytes | None:
        """Return the next part; None at the end.

        Raises Stopped, or ConnectionResetError if the client leaves before the end.
        """
        while not self._parts:
            if self._has_left and not self._is_whole:
                raise ConnectionResetError("the client has left")
            if self._is_whole:
                return None
            if self._is_stopped:
                raise Stopped
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        part = self._parts.popleft()
        self.queued_bytes -= len(part)
        self._taken(len(part))
        return part

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Exchange(ABC):
    """A request, and the answer to it.  Sending raises ConnectionResetError once the client has left."""

    def __init__(self, method: str, target: str, headers: CIMultiDict[str], incoming: Incoming) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        """Path and query as sent, with percent-encoding."""
        self.headers = headers
        self.incoming = incoming
        self.has_begun = False
        """Whether a part of the answer has been sent."""
        self.has_ended = False
        """Whether the answer is complete."""

    @abstractmethod
    async def begin(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        """Send the head of an answer whose body has `length` bytes; None if the length is not known."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send a part of the body, and wait until the client has room for more."""

    @abstractmethod
    async def end(self) -> None:
        """End the body as complete."""

    @abstractmethod
    async def flushed(self) -> None:
        """Wait until the kernel has every byte that was sent."""

    @abstractmethod
    def truncate(self) -> None:
        """End an incomplete answer as if it were complete: end the stream, or close the connection."""

    @abstractmethod
    def reset(self) -> None:
        """Abort the answer: reset the stream over HTTP/2, the connection over HTTP/1.1."""

    @abstractmethod
    def cut(self) -> None:
        """Reset the connection, with all other answers on it."""

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        await self.begin(status, headers, len(body))
        if body and self.method != "HEAD":
            await self.send(body)
        await self.end()


Serve = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers an exchange.  Cancelled when the client leaves."""
