"""The channel between the supervisor and one worker: messages as lines of JSON over a pair of Unix sockets.

The channel is also how a worker notices that its supervisor is gone: the kernel closes the supervisor's end.  The queue
of a socket keeps a message for a worker whose event loop does not run yet, which a signal would not survive.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

MOST_LINE_BYTES: Final = 1 << 20
"""The longest message.  A longer one ends the channel."""
_READ_BYTES: Final = 1 << 16

Message = dict[str, Any]


class ChannelEnd:
    """One end of a channel: writes messages, and splits what it reads into messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._rest = b""

    def send(self, message: Message) -> bool:
        """Send a message without waiting.  Returns False if the other end is gone or reads nothing."""
        with suppress(OSError):
            data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
            return self.sock.send(data) == len(data)
        return False

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the other end is gone."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) > MOST_LINE_BYTES:
            return None
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self.sock.close()


class Control:
    """The worker's end of the channel to its supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self._end = ChannelEnd(sock)
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._asked: dict[str, list[asyncio.Future[Message]]] = {}
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

    async def ask(self, kind: str, answer: str) -> Message:
        """Send a message to the supervisor, and wait for the next message of the kind `answer`."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(answer, []).append(future)
        self.tell(kind)
        return await future

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._end.sock.fileno())
        self._end.close()

    def _read(self) -> None:
        messages = self._end.receive()
        if messages is None:
            asyncio.get_running_loop().remove_reader(self._end.sock.fileno())
            self._on_end()
            return
        for message in messages:
            if (handler := self._handlers.get(message["kind"])) is not None:
                handler(message)
            for future in self._asked.pop(message["kind"], ()):
                if not future.done():
                    future.set_result(message)
