"""A parser for an origin's replies, without I/O: bytes in, events out.

A parser belongs to one connection and reads one reply after another.  `expect` announces the request for each reply.  A
reply yields a `Head`, the body's bytes as they arrive, and `END`.  `feed_eof` reports the end of the connection.

llhttp in strict mode checks the syntax of heads and chunks.  It accepts no bare LF, no folded line, no second
Content-Length, and no Content-Length together with chunks.  A usual head that arrives whole is read line by line
without llhttp, because most of its lines have been parsed before (`gateway.http.reply_lines`).  Chunks that arrive
whole are read without llhttp too.  Everything else is read by llhttp.

This module finds the start and the end of bodies itself (RFC 9112 section 6.3), because llhttp expects a body in the
reply to a HEAD, and does not report where excess bytes begin.  This module is also stricter than llhttp.  It refuses
replies that the gateway could not forward: versions other than HTTP/1, transfer codings other than chunked, statuses
below 100, and control characters in a reason phrase.

Interim replies (1xx) are collected apart from the events (`interim`), and their rate is bounded.  An origin may send
them to keep the connection alive while it works on a request.  101 is refused, because the gateway never requests an
upgrade.  Trailers and chunk extensions are dropped.  Bounds apply to the length and the number of a head's lines, to an
incomplete head, and to the framing inside a chunked body.

Excess bytes after a reply look like the next reply.  A connection that has delivered excess bytes is therefore not used
again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar, Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, CIMultiDictProxy, istr

from gateway.http.framing import TRANSITIONS, Framing, InterimRate, State, Step, whole_chunks
from gateway.http.reply_lines import NAMES, FieldLine, Head, ReplyShape, keeps_alive, read_lines, status_line_of

MOST_LINE_BYTES: Final = 16_384
"""The most bytes of a status line, and of a field's name and value together."""
MOST_FIELDS: Final = 128
MOST_HEAD_BYTES: Final = 65_536
MOST_FRAMING_BYTES: Final = 65_536
"""The most consecutive bytes of chunk extensions and trailers without a byte of content."""

_IDLE, _BODY, _CLOSED = State.IDLE, State.BODY, State.CLOSED
_BEGUN: Final = TRANSITIONS[_IDLE, Step.BEGUN]
_HEAD_DONE: Final = TRANSITIONS[_BEGUN, Step.HEAD_DONE]
_DONE, _LAST_DONE = TRANSITIONS[_HEAD_DONE, Step.DONE], TRANSITIONS[_HEAD_DONE, Step.LAST_DONE]

_FIRST: Final = ord("H")
_HEAD_END: Final = b"\r\n\r\n"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that a reason phrase must not contain (RFC 9112 section 4).  In fields, llhttp checks for these bytes."""
_VERSIONS: Final = frozenset({"1.1", "1.0"})
_NO_BODY: Final = frozenset({204, 304})
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
"""Fed to llhttp before the chunks of a reply whose own head was read without llhttp."""
_CONTENT_LENGTH, _TRANSFER_ENCODING = istr("Content-Length"), istr("Transfer-Encoding")


class ReplyBroken(Exception):
    """The bytes are not a valid reply, are a reply that must not be forwarded, or belong to no request."""

    is_reported = False
    """Whether another request on the same connection already reports this failure."""


class TooManyInterim(ReplyBroken):
    """Interim replies come faster than the bound allows."""


class Interim(NamedTuple):
    """An interim reply (RFC 9110 section 15.2)."""

    status: int
    """The status: 100, or 102 to 199."""
    headers: CIMultiDictProxy[str]


class ReplyEnd(Enum):
    """The end of a reply."""

    END = auto()


END: Final = ReplyEnd.END

Event = Head | bytes | ReplyEnd


_LENGTH, _CHUNKS, _CLOSE = Framing.LENGTH, Framing.CHUNKS, Framing.CLOSE


class ReplyParser:
    """Parses the replies of one connection.  Parses nothing more after ReplyBroken."""

    __slots__ = (
        "_answers_head",
        "_fields",
        "_framing",
        "_framing_bytes",
        "_has_excess",
        "_head_bytes",
        "_head_fields",
        "_interim",
        "_is_begun",
        "_is_complete",
        "_is_head_done",
        "_keeps_alive",
        "_llhttp",
        "_now",
        "_pieces",
        "_reason",
        "_remaining",
        "_tail",
        "interim",
        "is_awaited",
        "state",
    )

    def __init__(self) -> None:
        self.state = _IDLE
        self.is_awaited = False
        """Whether a request has been sent whose reply has not ended."""
        self._answers_head = False
        self._framing = _LENGTH
        self._keeps_alive = False
        self._remaining = 0
        """Bytes of the body that have yet to arrive."""
        self._framing_bytes = 0
        """Bytes of chunk framing since the last byte of content, at most `MOST_FRAMING_BYTES`."""
        self._now = 0.0
        self.interim: list[Interim] = []
        """Interim replies that have arrived.  The parser's owner removes these replies."""
        self._interim: InterimRate | None = None
        """The rate of interim replies to the current request; None before the first interim reply."""
        self._pieces: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]]
        self._head_fields: list[tuple[bytes, bytes]]
        self._tail: bytes
        """The last bytes of an incomplete head, to find an end of the head that arrives in two calls of `feed`."""
        self._begin()

    _read_lines = staticmethod(read_lines)
    _most_head: ClassVar[float] = MOST_HEAD_BYTES
    _most_line: ClassVar[float] = MOST_LINE_BYTES
    _most_fields: ClassVar[float] = MOST_FIELDS

    def __repr__(self) -> str:
        return f"<ReplyParser {self.state}{', awaited' if self.is_awaited else ''}>"

    def close(self) -> None:
        """Parse nothing more.  Every parser must be closed, because it forms a reference cycle with llhttp."""
        self.state = _CLOSED
        del self._llhttp

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent on this connection after the current reply."""
        return self.state is not _CLOSED

    def expect(self, *, is_head: bool) -> None:
        """Announce the request that was sent, whose reply comes next.  `is_head` means that the request is a HEAD.
        Must not be called while a reply is awaited.
        """
        self.is_awaited = True
        self._answers_head = is_head
        self._interim = None

    def feed(self, data: bytes, now: float = 0.0) -> list[Event]:
        """Parse bytes that arrive at `now`, in monotonic seconds, and return their events.  Raises ReplyBroken for
        invalid bytes, and for bytes that belong to no request."""
        self._now = now
        events: list[Event] = []
        while data:
            if self.state is _BODY:
                data = self._feed_body(data, events)
            elif self.is_awaited and self.state is not _CLOSED:
                end = -1 if self._is_begun else data.find(_HEAD_END)
                if end >= 0 and self._take_common_head(data, end, events):
                    data = data[end + len(_HEAD_END) :]
                else:
                    data = self._feed_head(data, events)
            elif events:
                # There are excess bytes after a complete reply.  The reply is valid, but it is the connection's last.
                self.state = _CLOSED
                break
            else:
                self.state = _CLOSED
                raise ReplyBroken("bytes that no request asked for")
        return events

    def feed_eof(self) -> list[Event]:
        """Return the events that the end of the connection completes.  Raises ReplyBroken within a reply."""
        if self.state is _BODY and self._framing is _CLOSE:
            events: list[Event] = []
            self._end(events, keeps_alive=False)
            return events
        is_broken = self.is_awaited
        self.state = _CLOSED
        if is_broken:
            raise ReplyBroken("connection closed in the middle of a reply")
        return []

    # -- heads

    def _begin(self) -> None:
        """Prepare for the first byte of a head."""
        self._llhttp = HttpResponseParser(self)
        self._fields = self._head_fields = []
        self._reason = self._tail = b""
        self._head_bytes = 0
        self._is_begun = self._is_head_done = self._is_complete = self._has_excess = False

    def _feed_head(self, data: bytes, events: list[Event]) -> bytes:
        """Parse a part of a head.  Returns the bytes after the head."""
        if self.state is _IDLE:
            self._is_begun = True
            if data[0] != _FIRST:
                # Refuse the bytes here, because llhttp would skip leading line ends, even incomplete ones.
                raise self._broken("not HTTP")
            self.state = _BEGUN
        carried = len(self._tail)
        found = (self._tail + data if carried else data).find(_HEAD_END)
        if found < 0:
            head, rest = data, b""
            self._tail = (self._tail + data)[-3:]
        elif (end := found + len(_HEAD_END) - carried) == len(data):
            head, rest = data, b""
        else:
            head, rest = data[:end], data[end:]
        self._head_bytes += len(head)
        if self._head_bytes > self._most_head:
            raise self._broken("head too long")
        try:
            self._llhttp.feed_data(head)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise self._broken("not HTTP") from error
        if found >= 0:
            return self._take_head(rest, events)
        if not self._fields and self._head_bytes > 2 * self._most_line:
            raise self._broken("line too long")
        return b""

    def _take_head(self, rest: bytes, events: list[Event]) -> bytes:
        if not self._is_head_done:
            raise self._broken("incomplete head")
        status, version, fields = self._llhttp.get_status_code(), self._llhttp.get_http_version(), self._head_fields
        if status < 100 or status == 101 or version not in _VERSIONS or _CONTROL.search(self._reason) is not None:
            raise self._broken("status line not allowed")
        most_line = self._most_line
        if len(fields) > self._most_fields or (self._head_bytes > most_line and self._longest_line() > most_line):
            raise self._broken("too large or too many fields")
        headers = CIMultiDictProxy(
            CIMultiDict(
                [
                    (NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape").strip(" \t"))
                    for name, value in fields
                ]
            )
        )
        if status < 200:
            interim = self._interim = self._interim or InterimRate()
            if not interim.count(self._now):
                self.state = _CLOSED
                raise TooManyInterim("too many interim replies")
            self.state = _IDLE
            self._begin()
            self.interim.append(Interim(status, headers))
            return rest
        self._take_fields(status, self._reason.decode("utf-8", "surrogateescape"), version, headers, events)
        return rest

    def _take_common_head(self, data: bytes, end: int, events: list[Event]) -> bool:
        """Read a complete head without llhttp, by the lines that it shares with earlier heads (`reply_lines`).

        Returns False, without any effect, if the head contains anything unusual.  Then llhttp parses the head.
        """
        if end > MOST_LINE_BYTES:
            return False
        lines = data[:end].split(b"\r\n")
        status_line = status_line_of(lines[0])
        if status_line is None or len(lines) > MOST_FIELDS:
            return False
        del lines[0]
        found = self._read_lines(lines)
        if found is None:
            return False
        shape, own, length = found
        self._keeps_alive = shape.keeps_alive
        if shape.is_chunked:
            self._framing, self._framing_bytes = _CHUNKS, 0
        else:
            self._framing = _CLOSE if length is None else _LENGTH
        self.state = _BEGUN
        status, reason = status_line
        self._take_framing(status, reason, None, length, events, shape, own)
        return True

    def _take_fields(
        self, status: int, reason: str, version: str, headers: CIMultiDictProxy[str], events: list[Event]
    ) -> None:
        """Handle a complete head that llhttp has parsed."""
        stated = headers.get(_CONTENT_LENGTH)
        length = None if stated is None else int(stated)
        self._keeps_alive = keeps_alive(version, headers)
        if _TRANSFER_ENCODING in headers:
            self._framing = self._transfer_framing(headers.getall(_TRANSFER_ENCODING))
            self._framing_bytes = 0
            self._tail = b""
        else:
            self._framing = _CLOSE if length is None else _LENGTH
        self._take_framing(status, reason, headers, length, events)

    def _take_framing(
        self,
        status: int,
        reason: str,
        headers: CIMultiDictProxy[str] | None,
        length: int | None,
        events: list[Event],
        shape: ReplyShape | None = None,
        own: Sequence[FieldLine] = (),
    ) -> None:
        """Handle a complete head whose framing is known: find out whether a body follows."""
        framing = self._framing
        if self._answers_head or status in _NO_BODY or (framing is _LENGTH and not length):
            events.append(Head(status, reason, headers, length, True, shape, own))
            self._end(events, keeps_alive=self._keeps_alive)
        else:
            self._remaining = length or 0
            self.state = _HEAD_DONE
            events.append(Head(status, reason, headers, length, framing is not _CLOSE, shape, own))

    def _longest_line(self) -> int:
        """Return the number of bytes of the head's longest line, not counting separators."""
        return max(len(self._reason), max((len(name) + len(value) for name, value in self._head_fields), default=0))

    def _transfer_framing(self, codings: list[str]) -> Framing:
        """Return the framing that the Transfer-Encoding field selects."""
        match [coding.lower() for coding in codings]:
            case ["chunked"]:
                return _CHUNKS
            case ["identity"]:
                # Accept `identity`, which RFC 9112 no longer defines.  Some old servers send it for bodies that end
                # with the connection.
                return _CLOSE
        raise self._broken("transfer coding that was not asked for")

    # -- bodies

    def _feed_body(self, data: bytes, events: list[Event]) -> bytes:
        """Parse a part of a body.  Returns the bytes after the body."""
        if self._framing is _LENGTH:
            rest = data[self._remaining :] if len(data) > self._remaining else b""
            piece = data[: self._remaining] if rest else data
            self._remaining -= len(piece)
            events.append(piece)
            if not self._remaining:
                self._end(events, keeps_alive=self._keeps_alive)
            return rest
        if self._framing is _CHUNKS:
            if not self._is_begun:
                content, size, has_ended = whole_chunks(data)
                if content:
                    events.append(content)
                if has_ended:
                    self._end(events, keeps_alive=self._keeps_alive)
                    return data[size:]
                if size == len(data):
                    return b""
                data = data[size:]
                # llhttp has not read the reply's head, so it gets another head before the chunks.
                self._is_begun = True
                self._llhttp.feed_data(_CHUNKED)
            self._feed_chunks(data, events)
        else:
            events.append(data)
        return b""

    def _feed_chunks(self, data: bytes, events: list[Event]) -> None:
        try:
            self._llhttp.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._is_complete:
                raise self._broken("invalid chunks") from error
            self._has_excess = True
        tail = self._tail = (self._tail + data)[-5:]
        if self._pieces:
            self._framing_bytes = 0
            events += self._pieces
            self._pieces = []
        else:
            self._framing_bytes += len(data)
        if self._is_complete:
            # llhttp does not report where the reply ends.  The reply ends with one empty line, but llhttp also skips
            # empty lines after it.
            is_exact = not self._has_excess and tail.endswith(_HEAD_END) and tail[:1] not in (b"\r", b"\n")
            self._end(events, keeps_alive=is_exact and self._keeps_alive)
        elif self._framing_bytes > MOST_FRAMING_BYTES:
            raise self._broken("too much chunk framing without data")

    def _end(self, events: list[Event], *, keeps_alive: bool) -> None:
        self.state = _DONE if keeps_alive else _LAST_DONE
        self.is_awaited = False
        if self._is_begun:
            self._begin()
        events.append(END)

    def _broken(self, why: str) -> ReplyBroken:
        self.state = _CLOSED
        return ReplyBroken(why)

    # -- callbacks of llhttp

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_excess = self._is_complete  # If the awaited reply is complete, this is another reply's head.
        self._is_head_done = True
        self._head_fields = self._fields
        # All later fields are trailers.
        self._fields = []

    def on_body(self, piece: bytes) -> None:
        if self._is_complete:
            self._has_excess = True
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = True
