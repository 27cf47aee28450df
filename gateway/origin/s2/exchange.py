"""One request and the channel for its answer, the same over HTTP/1.1 and HTTP/2.

Both bodies are streams, and both may flow at once: an append session answers while it is still sent.  Sending waits
until the client has room; receiving stops while nothing is taken.

Why not a server from a library: fault switches have to end a stream or a connection at a byte, which an ASGI server
does not let an application do, and the gateway's own server must not be shared, because one bug in it could then hide
another.  h11 and h2 keep the two protocols' states; what is left is this interface and their sockets.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from multidict import CIMultiDict


class Stopped(Exception):
    """This side takes no more of the body."""


class Incoming:
    """A request's body as it arrives.  `taken` is called with the size of each part that was taken."""

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
        """Whether the client has sent everything."""
        return self._is_whole

    def feed(self, part: bytes) -> None:
        """A part has arrived."""
        self._parts.append(part)
        self.queued_bytes += len(part)
        self._wake()

    def end(self) -> None:
        """The body is whole."""
        self._is_whole = True
        self._wake()

    def leave(self) -> None:
        """The client has left."""
        self._has_left = True
        self._wake()

    def stop(self) -> None:
        """Take no more: `take` raises Stopped once everything that has arrived is taken."""
        self._is_stopped = True
        self._wake()

    async def take(self) -> bytes | None:
        """The next part; None at the end.  Raises Stopped, and ConnectionResetError if the client leaves before it."""
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
        """Both as sent: percent-encoded."""
        self.headers = headers
        self.incoming = incoming
        self.has_begun = False
        """Whether any of the answer was sent."""
        self.has_ended = False
        """Whether the answer is whole."""

    @abstractmethod
    async def begin(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        """Send the head of an answer whose body has `length` bytes; None if that is not known."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send a part of the body, and wait until the client has room for more."""

    @abstractmethod
    async def end(self) -> None:
        """End the body in order."""

    @abstractmethod
    async def flushed(self) -> None:
        """Wait until the kernel has every byte that was sent."""

    @abstractmethod
    def truncate(self) -> None:
        """End the answer as if it were whole where it is not: the stream ends, or the connection closes."""

    @abstractmethod
    def reset(self) -> None:
        """Break the answer off: reset the stream over HTTP/2, the connection over HTTP/1.1."""

    @abstractmethod
    def cut(self) -> None:
        """Reset the connection, with every other answer on it."""

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        await self.begin(status, headers, len(body))
        if body and self.method != "HEAD":
            await self.send(body)
        await self.end()


Serve = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers an exchange; cancelled when the client leaves."""
