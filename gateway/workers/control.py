"""The channel between the supervisor and one worker: messages as lines of JSON over a pair of Unix sockets.

If the supervisor dies, the kernel closes its end of the channel, and the worker notices this.  The queue of a socket
keeps messages for a worker whose event loop does not run yet.  A signal in place of a message would end such a worker.

A message can carry an open file, as `descriptor`.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

MOST_LINE_BYTES: Final = 1 << 24
"""The longest message.  A longer one ends the channel.  The names of all changed settings have to fit."""
_READ_BYTES: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 8
_REST_MS: Final = 1_000
"""Milliseconds for which the rest of a message may wait for room in the queue."""
_ANSWER: Final = "answer"

Message = dict[str, Any]


class SupervisorGone(Exception):
    """The supervisor has ended, and does not answer."""

    def __init__(self) -> None:
        super().__init__("the supervisor has ended")


class ChannelEnd:
    """One end of a channel: writes messages, and splits its input into messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._rest = b""
        self._descriptors: deque[int] = deque()
        """The files that have arrived before the ends of their messages."""

    def send(self, message: Message, descriptor: int | None = None) -> bool:
        """Send a message, and a copy of an open file with it.  Returns False if the other end is gone or reads nothing.

        Waits only if the queue has room for a part of the message."""
        if descriptor is not None:
            message = {**message, "descriptor": True}
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with suppress(OSError):
            sent = self.sock.send(data) if descriptor is None else socket.send_fds(self.sock, [data], [descriptor])
            return self._send_rest(memoryview(data)[sent:])
        return False

    def _send_rest(self, rest: memoryview) -> bool:
        """Send the rest of a message.  If this fails, end the channel, because the other end could not find the
        beginning of the next message."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        while rest:
            if not poll.poll(_REST_MS):
                self.sock.shutdown(socket.SHUT_RDWR)
                return False
            rest = rest[self.sock.send(rest) :]
        return True

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the other end is gone.

        If a message carries an open file, the caller has to close its `descriptor`.  The `descriptor` is None if this
        process could not receive the file, because it has too many open files."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, _READ_BYTES, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._descriptors += descriptors
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) > MOST_LINE_BYTES:
            return None
        messages: list[Message] = [json.loads(line) for line in lines]
        for message in messages:
            if "descriptor" in message:
                message["descriptor"] = self._descriptors.popleft() if self._descriptors else None
        return messages

    def close(self) -> None:
        """Close this end."""
        self.sock.close()


class Control:
    """The worker's end of the channel to its supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self._end = ChannelEnd(sock)
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._asked: dict[int, asyncio.Future[Message]] = {}
        """The answers that have not arrived yet, by the number of the request."""
        self._numbers = count()
        self._is_alone = False
        self._on_end: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Control of {', '.join(sorted(self._handlers))}>"

    def start(self, on_end: Callable[[], None]) -> None:
        """Read messages on the running loop.  `on_end` is called once if the supervisor is gone."""
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._end.sock.fileno(), self._read)

    def on(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Call `handler` for each message of this kind."""
        self._handlers[kind] = handler

    def tell(self, kind: str, **fields: object) -> None:
        """Send a message to the supervisor."""
        self._end.send({"kind": kind, **fields})

    async def ask(self, kind: str) -> Message:
        """Send a request to the supervisor, and return its answer.  Raises SupervisorGone."""
        if self._is_alone:
            raise SupervisorGone
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self.tell(kind, request=number)
            return await future
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._end.sock.fileno())
        self._end.close()

    def _read(self) -> None:
        messages = self._end.receive()
        if messages is None:
            asyncio.get_running_loop().remove_reader(self._end.sock.fileno())
            self._is_alone = True
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(SupervisorGone())
            self._on_end()
            return
        for message in messages:
            if message["kind"] == _ANSWER:
                asked = self._asked.get(message["request"])
                if asked is not None and not asked.done():
                    asked.set_result(message)
            elif (handler := self._handlers.get(message["kind"])) is not None:
                handler(message)
