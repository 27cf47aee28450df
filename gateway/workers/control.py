"""The channel between the supervisor and one worker: messages as lines of JSON over a pair of Unix sockets.

If the supervisor dies, the kernel closes its end of the channel, and the worker notices this.  The queue of a socket
keeps messages for a worker whose event loop does not run yet.  This is why messages are used and not signals: a signal
would end such a worker.  If the other end reads nothing and the queue is full, messages wait at the sender, which does
not block.

A message can carry an open file, as `descriptor`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

MOST_LINE_BYTES: Final = 1 << 24
"""The longest message.  A longer message ends the channel.  A message must have room for the names of all changed
settings."""
_READ_BYTES: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 8
MOST_WAITING: Final = 1_024
"""The most messages of one kind that wait for room in the socket's queue.  Most kinds are sent once to a worker, or
once for each request of a client of the admin port."""
_MOST_OF_KIND: Final[Mapping[object, int]] = {"configuration": 4, "configuration refused": 64, "certificates": 4}
"""The kinds of messages of which fewer may wait.  The reasons are that any number of SIGHUPs may be sent, and that each
message with an open file uses a descriptor."""
_FINISH_MS: Final = 1_000
"""Milliseconds for which the last messages of a process may wait for room."""
_ANSWER: Final = "answer"

Message = dict[str, Any]


class SupervisorGone(Exception):
    """The supervisor has ended, or does not read requests."""

    def __init__(self, text: str = "the supervisor has ended") -> None:
        super().__init__(text)


@dataclass(slots=True)
class _Waiting:
    """A message, or the unsent rest of a message, that waits for room in the socket's queue."""

    kind: object
    data: memoryview
    descriptor: int | None
    """The file that the message carries; None once the first byte has been sent."""
    is_begun: bool = False
    """Whether a part of the message has been sent."""
    is_lost: bool = False

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class ChannelEnd:
    """One end of a channel: writes messages in their order, and splits its input into messages.

    `watch` is called with True when messages begin to wait for room in the socket's queue, and with False when no
    message waits any more.  Between these calls, the caller must call `flush` whenever the socket is writable.
    """

    def __init__(self, sock: socket.socket, watch: Callable[[bool], object] = lambda _is_waiting: None) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._watch = watch
        self._waiting: deque[_Waiting] = deque()
        self._is_watched = False
        self._rest = b""
        self._descriptors: deque[int] = deque()
        """The files that have arrived before the ends of their messages."""

    def __repr__(self) -> str:
        return f"<ChannelEnd {len(self._waiting)} messages waiting>"

    def send(self, message: Message, descriptor: int | None = None) -> bool:
        """Send a message, with a copy of an open file if one is given.  If the socket's queue is full, the message
        waits for room.  Returns False if the other end is gone, or if too many messages of the same kind wait."""
        kind = message.get("kind")
        if sum(one.kind == kind for one in self._waiting) >= _MOST_OF_KIND.get(kind, MOST_WAITING):
            return False
        if descriptor is not None:
            message = {**message, "descriptor": True}
        data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        try:
            one = _Waiting(kind, data, None if descriptor is None else os.dup(descriptor))
        except OSError:
            return False
        self._waiting.append(one)
        if not self._is_watched:
            self.flush()
            if self._waiting:
                self._is_watched = True
                self._watch(True)
        return not one.is_lost

    def flush(self) -> None:
        """Send the waiting messages for which the socket's queue has room."""
        while self._waiting:
            one = self._waiting[0]
            try:
                if one.descriptor is None:
                    sent = self.sock.send(one.data)
                else:
                    sent = socket.send_fds(self.sock, [one.data], [one.descriptor])
            except BlockingIOError:
                return
            except OSError:
                one.is_lost, sent = True, len(one.data)
                if one.is_begun:
                    # Otherwise, the other end would join the next message to the sent part of this message, and could
                    # read neither.
                    with suppress(OSError):
                        self.sock.shutdown(socket.SHUT_RDWR)
            one.is_begun = True
            one.close()
            one.data = one.data[sent:]
            if not one.data:
                self._waiting.popleft()
        if self._is_watched:
            self._is_watched = False
            self._watch(False)

    def finish(self) -> None:
        """Send the waiting messages, and wait at most `_FINISH_MS` each time for room.  Called in a process that is
        about to end."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        while self._waiting and poll.poll(_FINISH_MS):
            self.flush()

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
        """Close this end.  The messages that wait for room are lost."""
        self.sock.close()
        while self._waiting:
            self._waiting.popleft().close()


class Control:
    """The worker's end of the channel to its supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self._end = ChannelEnd(sock, self._watch)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._asked: dict[int, asyncio.Future[Message]] = {}
        """The requests whose answers have not arrived yet, by number."""
        self._numbers = count()
        self._is_alone = False
        self._on_end: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Control of {', '.join(sorted(self._handlers))}>"

    @property
    def is_alone(self) -> bool:
        """Whether the supervisor is gone."""
        return self._is_alone

    def start(self, on_end: Callable[[], None]) -> None:
        """Read messages on the running loop.  `on_end` is called once if the supervisor is gone."""
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.sock.fileno(), self._read)

    def on(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Call `handler` for each message of this kind."""
        self._handlers[kind] = handler

    def tell(self, kind: str, descriptor: int | None = None, **fields: object) -> bool:
        """Send a message to the supervisor.  Returns False if the supervisor is gone, or reads nothing."""
        return self._end.send({"kind": kind, **fields}, descriptor)

    def tell_last(self, kind: str, **fields: object) -> None:
        """Send the last message of this process, whose event loop has ended."""
        self._loop = None
        self._end.send({"kind": kind, **fields})
        self._end.finish()

    async def ask(self, kind: str) -> Message:
        """Send a request to the supervisor, and return its answer.  Raises SupervisorGone."""
        if self._is_alone:
            raise SupervisorGone
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            if not self.tell(kind, request=number):
                raise SupervisorGone("the supervisor does not read requests")
            return await future
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """Stop reading."""
        self._forget()
        self._end.close()

    def _watch(self, is_waiting: bool) -> None:
        if self._loop is None:
            return
        if is_waiting:
            self._loop.add_writer(self._end.sock.fileno(), self._end.flush)
        else:
            self._loop.remove_writer(self._end.sock.fileno())

    def _forget(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._end.sock.fileno())
            self._loop.remove_writer(self._end.sock.fileno())
            self._loop = None

    def _read(self) -> None:
        messages = self._end.receive()
        if messages is None:
            self._forget()
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
