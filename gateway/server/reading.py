"""Reads requests over HTTP/1.1: parses input into events, which wait in order until they can be taken.

Pipelined requests wait here as events, and reading pauses meanwhile.  A connection holds a parser only while a message
is incomplete.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.errors import BadRequest
from gateway.http.framing import State
from gateway.http.request_parser import Event, Mark, RequestHead, RequestParser
from gateway.server.client_connections import Clients
from gateway.server.header_meanings import MAX_REQUEST_BYTES
from gateway.server.phase import Phase
from gateway.server.request_body import RequestBody
from gateway.server.writing import WritingConnection

_SLICE_BYTES: Final = 1 << 14
"""The most bytes parsed at a time.  The bound is low because parsed events take many times the memory of their
bytes."""
FINE_SLICE_BYTES: Final = 1 << 12
"""The most bytes parsed at a time if the input may consist of tiny chunks or requests.  Parsing them takes at most half
a millisecond."""
_MANY_HEADS: Final = 16
"""A slice with more requests than this is parsed in pieces of `FINE_SLICE_BYTES`."""
_MOST_PENDING: Final = 1 << 12
"""The most bytes and events that may wait after the current request.  Reading pauses beyond this bound."""
_MOST_UNREAD: Final = 1 << 18
"""The most unread bytes of a body.  Reading pauses beyond this bound."""
_EVENT_BYTES: Final = 1 << 10
"""Each waiting event counts as this many bytes of memory."""
NO_EVENTS: Final[deque[Event]] = deque()

# Module names are faster to look up than enum members, and every request needs these members.
_IDLE: Final = State.IDLE
_END: Final = Mark.END


class ReadingConnection(WritingConnection):
    """The part of a client's connection that reads requests.

    The connection implements `Flow` (`gateway.server.request_body`), by which the bodies of requests report how many of
    their bytes are unread.
    """

    __slots__ = (
        "_body",
        "_candidate",
        "_candidate_generation",
        "_is_body_full",
        "_is_busy",
        "_is_paused",
        "_is_taking",
        "_is_waiting",
        "_parser",
        "_pending",
        "_unparsed",
    )

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._parser: RequestParser | None = None
        """The parser, while a message is incomplete or after the connection's last message; None at other times."""
        self._pending: deque[Event] = NO_EVENTS
        """Parsed events that have not been taken."""
        self._unparsed = b""
        """Input that has not been parsed."""
        self._is_paused = False
        """Whether reading is paused until the pending events have been taken."""
        self._is_busy = False
        """Whether new input must not be answered from memory, because an earlier answer may be unfinished or unsent."""
        self._is_taking = False
        """Whether a caller further up the stack is beginning requests.  That caller then also begins the next request.
        Otherwise, `_resume` begins the next request at the end of an answer.
        """
        self._is_waiting = False
        """Whether the unparsed input waits for its turn (`gateway.server.turns`)."""
        self._is_body_full = False
        """Whether reading is paused because the body has too many unread bytes."""
        self._body: RequestBody | None = None
        """The body that is being received."""
        self._candidate: bytes | None = None
        """The bytes of the current request, if its answer may be remembered under these bytes."""
        self._candidate_generation = 0
        """The value of `Joins.generation` when `_candidate` was read.  `Joins.generation` counts changes of the
        routes."""

    @abstractmethod
    def _take_pending(self) -> None:
        """Handle parsed events while the connection's phase allows."""

    @abstractmethod
    def take_turn(self) -> None:
        """Begin the waiting request, or read the waiting input.  Called when the connection's turn comes."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this client alone costs."""
        if self.transport is None or self.cut_reason is not None:
            return 0
        held = max(0, self.transport.get_write_buffer_size() - self._shared_bytes)
        if self._is_busy:
            held += len(self._unparsed) + _EVENT_BYTES * len(self._pending)
            if self._parser is not None:
                held += self._parser.held_bytes
            if self._body is not None:
                held += self._body.unread_bytes
        return held

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self._has_waiting_input

    @property
    def _has_waiting_input(self) -> bool:
        """Whether input waits for its turn, here or in the layer of TLS."""
        return self._is_waiting or self.waits.is_waiting

    def close_if_idle(self) -> None:
        # A request that waits for its turn arrived before the deadline, so the request is answered.
        if not self._has_waiting_input:
            super().close_if_idle()

    @property
    def alias(self) -> bytes | None:
        """The request's bytes, if an answer may be remembered under these bytes.  None if the routes have changed since
        the request was read.
        """
        return self._candidate if self._candidate_generation == self._clients.joins.generation else None

    def _read(self, is_first: bool = False, *, has_turn: bool = True) -> None:
        """Parse the input slice by slice, until events have to wait or the connection must wait for its turn.  With
        `has_turn`, the first slice does not wait for a turn."""
        data = self._unparsed
        while data and not self._pending and not self._is_waiting:
            if not has_turn and self._clients.turns.must_wait(self, is_request=self._body is None):
                self._is_waiting = True
                break
            has_turn = False
            size = len(data)
            if size > FINE_SLICE_BYTES:
                size = FINE_SLICE_BYTES if self._is_fine(data) else _SLICE_BYTES
            # Set the attribute before parsing, because taking the events may call this method again.
            self._unparsed = data[size:]
            self._parse(data[:size], is_first)
            is_first, data = False, self._unparsed
        if self._pending or self._is_waiting:
            self._limit_unparsed()
        elif self._is_paused:
            self._end_pause()
        if self._has_ended:
            self._end_input()

    def _end_input(self) -> None:
        """Called when the client sends no more: fail an incomplete body, and close once all requests are answered."""
        if self._unparsed or self._pending or self._is_waiting:
            return
        body, self._body = self._body, None
        if body is not None:
            body.fail(BadRequest("Request body ended early"))
        if self.phase is Phase.IDLE:
            self._close()

    def _is_fine(self, data: bytes) -> bool:
        """Return whether the input may consist of many small chunks or requests."""
        if self._body is not None:
            return self._body.is_chunked
        return data.count(b"\r\n\r\n", 0, _SLICE_BYTES) > _MANY_HEADS

    def _end_pause(self) -> None:
        """Resume reading, because no input waits any more."""
        self._is_paused = False
        if not self._is_body_full:
            self._resume_reading()

    def _limit_unparsed(self) -> None:
        """Pause reading if much input waits."""
        # Do not pause earlier.  While reading is paused, the loop does not notice that the client closes the
        # connection.
        if self.transport is not None and len(self._unparsed) + len(self._pending) > _MOST_PENDING:
            self._is_paused = True
            if not self._has_ended:
                self.transport.pause_reading()

    def _parse(self, data: bytes, is_first: bool) -> None:
        clients = self._clients
        parser = self._parser or clients.parser()
        events = parser.feed(data)
        if parser.state is _IDLE:
            self._parser = None
            clients.spare(parser)
            if is_first:
                clients.header_cache.store(data, events)
        else:
            self._parser = parser
        if events:
            # Only events count as activity, so line breaks between requests do not.
            self._is_active = True
        # If a parser is left, it holds a part of another request, so `data` is not exactly one request.
        if is_first and self._parser is None:
            self._may_remember(events, data)
        self._pending = deque(events)
        self._take_pending()

    def _may_remember(self, events: Sequence[Event], data: bytes) -> None:
        """Allow the answer to be remembered if `events` are one plain GET, and nothing else has arrived."""
        if _is_one_plain_get(events, data):
            self._candidate = data
            self._candidate_generation = self._clients.joins.generation

    def _take_body(self, body: RequestBody, pending: deque[Event]) -> None:
        """Move the pending events that belong to the body into the body."""
        while pending and self._body is body:
            event = pending.popleft()
            if isinstance(event, bytes):
                body.feed(event)
                continue
            self._body = None
            if event is Mark.END:
                body.complete()
            else:
                # The end of a malformed body is unknown, so this answer is the connection's last.
                body.fail(BadRequest("Malformed request body"))

    # -- called by a body

    def unread(self, size: int) -> None:
        if size > _MOST_UNREAD:
            self._is_body_full = True
            if self.transport is not None and not self._has_ended:
                self.transport.pause_reading()
        elif self._is_body_full:
            self._resume_reading()

    def input_waited_s(self) -> float:
        return self._clients.turns.waited_s(self.waits)

    async def late(self) -> None:
        await self._clients.late_bodies.turn()

    def _resume_reading(self) -> None:
        self._is_body_full = False
        if self._pending or self._unparsed:
            # Input still waits here.  Keep reading paused until this input has been taken.
            self._is_paused = True
        elif self.transport is not None and not self.transport.is_closing() and not self._has_ended:
            self.transport.resume_reading()


def _is_one_plain_get(events: Sequence[Event], data: bytes) -> bool:
    """Return whether `data` is exactly one HTTP/1.1 GET that has no body and keeps its connection open."""
    if len(events) != 2 or len(data) > MAX_REQUEST_BYTES:
        return False
    head, end = events
    if end is not _END or not isinstance(head, RequestHead) or head.method != "GET" or not head.keeps_alive:
        return False
    return head.fields.is_plain
