"""Requests to bridged streams, and replies in the form of a Durable Streams server (section 5).

The body of a reply is complete, or is written while it is read.  The writer of a long body waits until the reader has
taken the earlier bytes (`room`).  A slow client therefore delays the S2 session instead of using up memory.

`BridgedRequest` is one request, with the functions that the other modules share for answering it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.aio.clock import Clock
from gateway.aio.timers import Deadline
from gateway.bridge.content import Content, Page
from gateway.bridge.origin import Call
from gateway.bridge.streams import offset_at, parse_offset
from gateway.http.reply_lines import Head
from gateway.protocol.cursor import next_cursor
from gateway.protocol.names import START, STREAM_CLOSED, STREAM_NEXT_OFFSET, STREAM_UP_TO_DATE
from gateway.s2.errors import Other, parse_error
from gateway.upstream.failures import ConnectionLost
from gateway.upstream.origin_call import Bounds
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import S2Refused

HIGH_WATER_BYTES: Final = 1 << 18
"""The number of unread bytes above which the writer waits."""


class MadeBody:
    """The body of a reply made here, with one writer and one reader."""

    def __init__(self, on_left: Callable[[], object] = lambda: None) -> None:
        self.on_change: Callable[[], object] = _nothing
        self.has_ended = False
        self._on_left = on_left
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self._error: BaseException | None = None
        self._room: asyncio.Event | None = None
        self._deadline: Deadline | None = None

    @classmethod
    def whole(cls, data: bytes) -> MadeBody:
        """Return a body that is complete."""
        body = cls()
        body.write(data)
        body.finish()
        return body

    # -- for the writer

    def write(self, data: bytes) -> None:
        """Add bytes."""
        if data and not self._is_over:
            self._pieces.append(data)
            self._size += len(data)
            self._changed()

    def retire(self) -> None:
        """Do nothing, because the body has no connection."""

    def finish(self) -> None:
        """Mark the body as complete."""
        if not self._is_over:
            self._is_complete = True
            self.has_ended = not self._pieces
            self._changed()

    async def room(self) -> None:
        """Wait until the reader has taken the bytes written so far.  The caller is cancelled if the reader leaves."""
        while self._size > HIGH_WATER_BYTES and not self._is_over:
            self._room = asyncio.Event()
            await self._room.wait()

    @property
    def _is_over(self) -> bool:
        return self._is_complete or self._error is not None

    def _changed(self) -> None:
        if self._deadline is not None:
            self._deadline.clear()
        self.on_change()

    # -- for the reader

    def take(self) -> bytes | None:
        """Return the bytes not yet taken: empty at the end of the body, None if no bytes have arrived."""
        if self._pieces:
            taken = b"".join(self._pieces)
            self._pieces = []
            self._size = 0
            self.has_ended = self._is_complete
            if self._room is not None:
                self._room.set()
            return taken
        if self._is_complete:
            return b""
        if self._error is not None:
            raise self._error
        return None

    def expect(self, by: float) -> None:
        """Fail with TimeoutError unless more bytes arrive before this time of the loop's clock."""
        if not self._is_over:
            if self._deadline is None:
                self._deadline = Deadline(asyncio.get_running_loop(), lambda: self._fail(TimeoutError()))
            self._deadline.move(by)

    async def changed(self) -> None:
        """Wait for the next change."""
        changed = asyncio.Event()
        self.on_change = changed.set
        try:
            await changed.wait()
        finally:
            self.on_change = _nothing

    def break_off(self, why: str) -> None:
        """Fail with ConnectionLost unless the body is complete, and notify the writer."""
        self._fail(ConnectionLost(why))

    def _fail(self, error: BaseException) -> None:
        if self._deadline is not None:
            self._deadline.close()
            self._deadline = None
        if not self._is_over:
            self._error = error
            self._on_left()
            self.on_change()


def _nothing() -> None:
    """The callback while the reader does not wait."""


NO_STORE: Final = "no-store"

_OWN: Final = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "cross-origin"}

_TEXT: Final = "text/plain; charset=utf-8"

_RETRY_S: Final = "1"

_DELETION_PENDING: Final = ("stream_deletion_pending", "basin_deletion_pending")


@dataclass(frozen=True, slots=True)
class Made:
    """A reply of the bridge: complete, or with a body that is still being written."""

    status: int
    headers: dict[str, str]
    body: bytes | MadeBody = b""

    def reply(self, bounds: Bounds, *, is_head: bool = False) -> Reply:
        """Return the reply in the form that its requester expects."""
        loop = asyncio.get_running_loop()
        length = len(self.body) if isinstance(self.body, bytes) else None
        body = self.body
        if isinstance(body, bytes):
            body = MadeBody.whole(b"" if is_head else body)
        fields = CIMultiDict({**self.headers, **_OWN})
        head = Head(self.status, "", CIMultiDictProxy(fields), length, is_delimited=True)
        deadline = inf if bounds.total_s is None else loop.time() + bounds.total_s
        return Reply(head, body, bounds, deadline)


def text(status: int, line: str, headers: dict[str, str] | None = None) -> Made:
    """Return a reply with one line of text, such as an error."""
    return Made(status, {"Content-Type": _TEXT, **(headers or {})}, line.encode())


def position_headers(seq_num: int, *, up_to_date: bool = False, is_closed: bool = False) -> dict[str, str]:
    """Return the headers that state a reply's position."""
    headers = {STREAM_NEXT_OFFSET: offset_at(seq_num)}
    if up_to_date or is_closed:
        headers[STREAM_UP_TO_DATE] = "true"
    if is_closed:
        headers[STREAM_CLOSED] = "true"
    return headers


def refusal(refused: S2Refused, *, creates: bool = False) -> Made:
    """Translate an error of the origin to a reply for a Durable Streams client.

    `creates` states that the request was to create a stream.  Temporary conflicts become a 503, so that clients retry.
    These are conflicts between transactions, and the creation of a stream while a stream with its name is being
    deleted.  For a request that does not create a stream, a stream that is being deleted counts as gone.  A 422 becomes
    a 400.  A failed condition (412, 416) that the request did not state becomes a 502.  A status that is not an HTTP
    error, which the last frame of a session may contain, becomes a 502 too.
    """
    if not 400 <= refused.status < 600 or refused.status in (412, 416):
        return text(502, "The origin has sent an answer that does not fit the request")
    error = parse_error(refused.status, refused.body)
    message = " ".join(error.message.split()) if isinstance(error, Other) else ""
    code = error.code if isinstance(error, Other) else ""
    status = refused.status
    retry = {name: value for name, value in refused.headers.items() if name == "Retry-After"}
    if status == 401:
        # RFC 9110 section 11.6.1 requires this header.  S2's tokens are bearer tokens.
        retry["WWW-Authenticate"] = "Bearer"
    if code == "transaction_conflict" or status == 408 or (creates and code in _DELETION_PENDING):
        return text(503, message or "Try again", {"Retry-After": _RETRY_S} | retry)
    if refused.is_absent:
        return text(404, "Stream not found")
    if status == 422:
        status = 400
    return text(status, message or "The origin has refused the request", retry)


@dataclass(frozen=True, slots=True)
class BridgedRequest:
    """One request from the engine."""

    call: Call
    content: Content
    offset: str | None
    cursor: str | None
    wait_s: int
    """How long a long-poll waits, in seconds."""
    lifetime_s: float
    """How long an SSE answer lasts, in seconds."""
    location: str
    """The stream's URL at the origin."""
    clock: Clock
    rng: random.Random
    on_trim: Callable[[int], object]
    """Called with the first sequence number that a trim has kept."""

    @property
    def start_offset(self) -> str:
        """The requested offset; the beginning if there is none."""
        return self.offset if self.offset is not None else START

    @property
    def place(self) -> int:
        """The sequence number of the record after the offset.  Raises `BadOffset`."""
        return 0 if self.start_offset == START else parse_offset(self.start_offset)

    def next_cursor(self) -> str:
        """Return the cursor of the answer."""
        return next_cursor(self.clock.wall(), self.cursor, self.rng)

    def etag(self, end: str, *, is_closed: bool) -> str:
        """Return the entity tag of the bytes from the requested offset to `end`.  The tag names the stream's
        incarnation."""
        return f'"{self.call.sighting.identity}:{self.start_offset}:{end}{":c" if is_closed else ""}"'

    def add_page(self, page: Page) -> None:
        """Report the trims of a page that is part of the answer."""
        if page.trimmed:
            self.on_trim(page.trimmed)
