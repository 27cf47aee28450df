"""How requests are read over HTTP/1.1: what comes is parsed and waits, in order, until it can be taken.

Requests that come before the one in front of them is answered wait here, already parsed, and nothing more is read
meanwhile.  A parser is held only from the first byte of a message to its last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.errors import BadRequest
from gateway.http.request import Event, Mark, RequestHead, RequestParser
from gateway.http.state import State
from gateway.server.body import RequestBody
from gateway.server.clients import Clients
from gateway.server.remembered import MAX_REQUEST_BYTES
from gateway.server.writing import WritingConnection

_SLICE_BYTES: Final = 1 << 14
"""So much is parsed at a time: requests take many times the memory of the bytes that they came in."""
_MOST_PENDING: Final = 1 << 12
"""Bytes, and events, that wait behind the request that is being answered before no more is read."""
_MOST_UNREAD: Final = 1 << 18
"""Bytes of a body that wait to be read before the client has to."""
NOTHING: Final[deque[Event]] = deque()


class ReadingConnection(WritingConnection):
    """The reading half of a client's connection: the `Flow` of its requests' bodies."""

    __slots__ = (
        "_body",
        "_candidate",
        "_candidate_generation",
        "_is_busy",
        "_is_going_on",
        "_is_held",
        "_is_unread",
        "_parser",
        "_pending",
        "_rest",
    )

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._parser: RequestParser | None = None
        """The parser that holds a part of a message, or has read the last one."""
        self._pending: deque[Event] = NOTHING
        """What has been parsed and not been taken."""
        self._rest = b""
        """What has come and is not parsed yet."""
        self._is_unread = False
        """Whether no more is read until what is pending has been taken."""
        self._is_busy = False
        """Whether a request may find something before it here: a look is due before it is answered from memory."""
        self._is_going_on = False
        """Whether what is pending is being taken now."""
        self._is_held = False
        """Whether the body that is being read has enough for now."""
        self._body: RequestBody | None = None
        """The body that is being read."""
        self._candidate: bytes | None = None
        """The request that is being answered, where its bytes may be remembered."""
        self._candidate_generation = 0
        """That of what is remembered when the candidate was read."""

    @abstractmethod
    def _go_on(self) -> None:
        """Take of what has been parsed as much as can be taken now."""

    @property
    def alias(self) -> bytes | None:
        """The request in bytes, where it came by itself and whole, and they may be remembered."""
        return self._candidate if self._candidate_generation == self._clients.joins.generation else None

    def _read(self, is_first: bool = False) -> None:
        """Parse what has come, a slice at a time, as far as what is parsed can be taken."""
        data = self._rest
        while data and not self._pending:
            part, data = (data[:_SLICE_BYTES], data[_SLICE_BYTES:]) if len(data) > _SLICE_BYTES else (data, b"")
            # Beforehand: what is taken now may lead here again.
            self._rest = data
            self._feed(part, is_first)
            is_first, data = False, self._rest
        if self._pending and self.transport is not None and len(self._rest) + len(self._pending) > _MOST_PENDING:
            # Not at once: an end that is not read is not seen.
            self._is_unread = True
            self.transport.pause_reading()
        elif self._is_unread and not self._pending:
            self._is_unread = False
            if not self._is_held:
                self._read_on()

    def _feed(self, data: bytes, is_first: bool) -> None:
        clients = self._clients
        events = clients.header_cache.lookup(data) if is_first else None
        if events is None:
            parser = self._parser or clients.parser()
            events = parser.feed(data)
            if parser.state is State.IDLE:
                self._parser = None
                clients.spare(parser)
                if is_first:
                    clients.header_cache.store(data, events)
            else:
                self._parser = parser
        if events:
            # Line ends between two requests are no sign of life.
            self._is_active = True
        # Nothing may be left in the parser: it would be a part of what is remembered.
        if is_first and self._parser is None and _is_one_plain_get(events, data):
            self._candidate = data
            self._candidate_generation = clients.joins.generation
        self._pending = deque(events)
        self._go_on()

    def _take_body(self, body: RequestBody, pending: deque[Event]) -> None:
        """Give a body what of it has come."""
        while pending and self._body is body:
            event = pending.popleft()
            if isinstance(event, bytes):
                body.feed(event)
                continue
            self._body = None
            if event is Mark.END:
                body.end()
            else:
                # Broken: nobody can tell where it would end, so that this answer is the last one.
                body.fail(BadRequest("Malformed request body"))

    # -- a body's side

    def unread(self, size: int) -> None:
        if size > _MOST_UNREAD:
            self._is_held = True
            if self.transport is not None:
                self.transport.pause_reading()
        elif self._is_held:
            self._read_on()

    def _read_on(self) -> None:
        """Take in more of what the client sends."""
        self._is_held = False
        if self._pending or self._rest:
            # Not before that has been taken.
            self._is_unread = True
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


def _is_one_plain_get(events: Sequence[Event], data: bytes) -> bool:
    """Whether `data` is one whole HTTP/1.1 GET without a body that keeps its connection, and nothing more."""
    if len(events) != 2 or len(data) > MAX_REQUEST_BYTES:
        return False
    head, end = events
    if end is not Mark.END or not isinstance(head, RequestHead) or head.method != "GET" or not head.keeps_alive:
        return False
    return head.fields.is_plain
