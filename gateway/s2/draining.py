"""How a server says that it is about to leave, as an S2 server does before a restart: `server_draining` (503) to a
request or at the end of a session, or a session's frame that advises to reconnect.

It says so of the connection: behind a load balancer a new one leads to another server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.s2 import session, sse
from gateway.s2.errors import Other, S2ErrorCode, parse_error
from gateway.s2.session import FrameHead

_MOST_ERROR_BYTES: Final = 4_096
_EVENT: Final = b"\nevent: error"
_CODE: Final = f'"{S2ErrorCode.SERVER_DRAINING.code}"'.encode()


def says_draining(status: int, body: bytes) -> bool:
    """Whether an error says that its server is about to leave."""
    if status != S2ErrorCode.SERVER_DRAINING.status:
        return False
    said = parse_error(status, body)
    return isinstance(said, Other) and said.code == S2ErrorCode.SERVER_DRAINING.code


class DrainWatch:
    """Looks at the bytes of an answer that is passed on; `on_drain` is called at most once.

    It keeps a few bytes, whatever the size of the answer: the messages of a session are passed over.
    """

    __slots__ = ("_buffer", "_look", "_on_drain", "_skipped")

    def __init__(self, status: int, headers: Mapping[str, str], on_drain: Callable[[], object]) -> None:
        self._on_drain = on_drain
        self._buffer = b""
        """The bytes that are not decided yet."""
        self._skipped = 0
        """Bytes of a message that are still to come."""
        type_ = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self._look: Callable[[DrainWatch, bytes], bool] | None = None
        """Decides whether the bytes so far say it; None once there is nothing more to see.  Not bound, so that no
        reference leads back."""
        if status == S2ErrorCode.SERVER_DRAINING.status:
            self._look = DrainWatch._in_error
        elif status == 200 and type_ == session.CONTENT_TYPE:
            self._look = DrainWatch._in_session
        elif status == 200 and type_ == sse.CONTENT_TYPE:
            self._buffer, self._look = b"\n", DrainWatch._in_events

    def see(self, chunk: bytes) -> None:
        """A part of the body has come."""
        if self._look is not None and self._look(self, chunk):
            self._look, self._buffer = None, b""
            self._on_drain()

    def _in_error(self, chunk: bytes) -> bool:
        self._buffer = (self._buffer + chunk)[:_MOST_ERROR_BYTES]
        return says_draining(S2ErrorCode.SERVER_DRAINING.status, self._buffer)

    def _in_events(self, chunk: bytes) -> bool:
        # A line break inside of a record is escaped, so no record can look like the event.
        data = self._buffer + chunk
        at = data.find(_EVENT)
        if at >= 0:
            self._buffer = data[at : at + _MOST_ERROR_BYTES]
            return _CODE in self._buffer
        self._buffer = data[-len(_EVENT) :]
        return False

    def _in_session(self, chunk: bytes) -> bool:
        at = min(self._skipped, len(chunk))
        self._skipped -= at
        while not self._skipped and at < len(chunk):
            taken = session.HEAD_BYTES - len(self._buffer)
            if taken > 0:
                self._buffer += chunk[at : at + taken]
                at += taken
            if len(self._buffer) < session.HEAD_BYTES:
                return False
            head = FrameHead.parse(self._buffer)
            if head.is_reconnect_advised:
                return True
            if head.is_terminal:
                self._buffer = (self._buffer + chunk[at:])[:_MOST_ERROR_BYTES]
                body = self._buffer[session.HEAD_BYTES :]
                return len(body) >= 2 and says_draining(int.from_bytes(body[:2]), body[2:])
            self._buffer = b""
            self._skipped = max(0, head.size - (len(chunk) - at))
            at += head.size
        return False
