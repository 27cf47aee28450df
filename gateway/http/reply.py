"""Replies as an origin sends them: bytes in, events out.

A parser belongs to one connection and reads one reply after the other, each only after `expect` has told that a request
is on its way.  It knows no socket and no time.  What it gives for a reply is a `Head`, the body's bytes as they come,
and `END`; an end of the connection is told to it by `feed_eof`.

The syntax of heads and of chunks is llhttp's to judge, in its strict mode: no bare LF, no folded line, no length that
is said twice or beside chunks.  Where a body begins and ends is decided here (RFC 9112 section 6.3), because llhttp
cannot be told that the reply to a HEAD has no body, and would not say where excess bytes begin.  Stricter than llhttp,
this refuses what nobody here could hand on: versions that are not HTTP/1, transfer codings beside chunked, statuses
below 100, control characters in a reason.

Interim replies (1xx) are skipped, a few of them; 101 is refused, since nobody here asks for another protocol.
Trailers and chunk extensions are dropped.  Everything is bounded: the head's lines and their number, the head as a
whole while it is not complete, and what comes inside a chunked body without being one.

Bytes that nobody asked for cannot be told from the next reply, so a connection that has brought any is not used again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, CIMultiDictProxy, istr

from gateway.http.state import TRANSITIONS, State, Step

MOST_LINE_BYTES: Final = 16_384
"""Of a status line, and of a field's name and value together."""
MOST_FIELDS: Final = 128
MOST_HEAD_BYTES: Final = 65_536
MOST_INTERIM: Final = 16
"""Interim replies before one final reply."""
MOST_FRAMING_BYTES: Final = 65_536
"""Of chunk extensions and trailers, one after the other, without a byte of a body between them."""

_HEAD_END: Final = b"\r\n\r\n"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no reason phrase may hold (RFC 9112 section 4).  llhttp looks for it in fields only."""
_VERSIONS: Final = frozenset({"1.1", "1.0"})
_NO_BODY: Final = frozenset({204, 304})
_USUAL: Final = """
    Access-Control-Allow-Origin Access-Control-Expose-Headers Age Cache-Control Cache-Status Connection
    Content-Encoding Content-Length Content-Type Cross-Origin-Resource-Policy Date ETag Keep-Alive Location
    Producer-Epoch Producer-Seq Retry-After Server Stream-Closed Stream-Cursor Stream-Expires-At Stream-Next-Offset
    Stream-SSE-Data-Encoding Stream-TTL Stream-Up-To-Date Surrogate-Key Transfer-Encoding Vary Via
    X-Content-Type-Options
"""
_NAMES: Final = {spelt.encode(): istr(spelt) for name in _USUAL.split() for spelt in (name, name.lower(), name.title())}
"""Names that need not be made anew for each reply."""


class ReplyBroken(Exception):
    """What came is no reply, none that may be handed on, or none that anybody asked for."""


@dataclass(frozen=True, slots=True)
class Head:
    """A final reply's head."""

    status: int
    """200 to 999."""
    reason: str
    headers: CIMultiDictProxy[str]
    content_length: int | None
    """As it was announced, be it of a body that does not come; None where it was not."""
    is_delimited: bool
    """Whether the body's end can be told from a lost connection (RFC 9112 section 6.3, all cases but the last)."""


class End(Enum):
    """The end of a reply."""

    END = auto()


END: Final = End.END

Event = Head | bytes | End


class _Framing(Enum):
    """How a body's end is found."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()


class ReplyParser:
    """The replies of one connection.  A plain object of one thread; after ReplyBroken it reads nothing more."""

    __slots__ = (
        "_answers_head",
        "_behind",
        "_fields",
        "_framing",
        "_head_bytes",
        "_interim",
        "_is_complete",
        "_is_head_done",
        "_keeps",
        "_left",
        "_llhttp",
        "_pieces",
        "_quiet_bytes",
        "_reason",
        "is_awaited",
        "state",
    )

    def __init__(self) -> None:
        self.state = State.IDLE
        self.is_awaited = False
        """Whether a request is on its way whose reply has not ended."""
        self._answers_head = False
        self._begin()

    def __repr__(self) -> str:
        return f"<ReplyParser {self.state}{', awaited' if self.is_awaited else ''}>"

    @property
    def may_go_on(self) -> bool:
        """Whether another request may be sent on this connection, once the reply that is awaited has ended."""
        return self.state is not State.CLOSED

    @property
    def has_begun(self) -> bool:
        """Whether a byte of the awaited reply has come, be it of an interim one."""
        return self.state is not State.IDLE or self._interim > 0

    def expect(self, *, is_head: bool) -> None:
        """A request has been sent, a HEAD or another; only one at a time."""
        self.is_awaited = True
        self._answers_head = is_head
        self._interim = 0

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes bring.  ReplyBroken where they break the syntax, or nobody asked for them."""
        events: list[Event] = []
        while data:
            if self.state is State.BODY:
                data = self._feed_body(data, events)
            elif self.is_awaited and self.state is not State.CLOSED:
                data = self._feed_head(data, events)
            elif events:
                # Bytes behind a whole reply: that is as good as it was, and the last one.
                self.state = State.CLOSED
                break
            else:
                self.state = State.CLOSED
                raise ReplyBroken("bytes that nobody asked for")
        return events

    def feed_eof(self) -> list[Event]:
        """What the end of the connection brings; ReplyBroken where it comes in the middle of a reply."""
        if self.state is State.BODY and self._framing is _Framing.CLOSE:
            return [self._end(Step.LAST_DONE)]
        is_broken = self.is_awaited
        self.state = State.CLOSED
        if is_broken:
            raise ReplyBroken("an end in the middle of a reply")
        return []

    # -- heads

    def _begin(self) -> None:
        self._llhttp = HttpResponseParser(self)
        self._fields: list[tuple[str, str]] = []
        self._reason = b""
        self._head_bytes = 0
        self._behind = b""
        """The last bytes that came, up to as many as a head's end has."""
        self._interim = 0
        self._is_head_done = False
        self._is_complete = False
        self._keeps = False
        self._framing = _Framing.LENGTH
        self._left = 0
        self._pieces: list[bytes] = []
        self._quiet_bytes = 0

    def _feed_head(self, data: bytes, events: list[Event]) -> bytes:
        """Read on in a head; what lies behind it."""
        if self.state is State.IDLE:
            self.state = TRANSITIONS[self.state, Step.BEGUN]
        known = len(self._behind)
        found = (self._behind + data if known else data).find(_HEAD_END)
        if found < 0:
            rest = b""
            self._behind = (self._behind + data)[-3:]
        else:
            end = found + len(_HEAD_END) - known
            data, rest = data[:end], data[end:]
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise self._broken("a head that is too long")
        self._run(data)
        if found < 0:
            if not self._fields and not self._is_head_done and self._head_bytes > 2 * MOST_LINE_BYTES:
                raise self._broken("a line that is too long")
            return b""
        if not self._is_head_done or self._pieces:
            raise self._broken("no head")
        return self._take_head(rest, events)

    def _take_head(self, rest: bytes, events: list[Event]) -> bytes:
        parser = self._llhttp
        status = parser.get_status_code()
        version = parser.get_http_version()
        if status < 100 or status == 101 or version not in _VERSIONS or _CONTROL.search(self._reason) is not None:
            raise self._broken("a status line that is not for here")
        if status < 200:
            interim = self._interim + 1
            if interim > MOST_INTERIM:
                raise self._broken("too many interim replies")
            self.state = State.IDLE
            self._begin()
            self._interim = interim
            return rest
        headers = CIMultiDictProxy(CIMultiDict(self._fields))
        length = headers.get("Content-Length")
        content_length = None if length is None else int(length)
        has_body = not self._answers_head and status not in _NO_BODY
        if "Transfer-Encoding" in headers:
            self._framing = self._coded(headers.getall("Transfer-Encoding"))
        elif content_length is not None:
            self._left = content_length
        elif has_body:
            self._framing = _Framing.CLOSE
        self._keeps = _keeps(version, headers)
        is_delimited = not has_body or self._framing is not _Framing.CLOSE
        events.append(
            Head(status, self._reason.decode("utf-8", "surrogateescape"), headers, content_length, is_delimited)
        )
        self.state = TRANSITIONS[self.state, Step.HEAD_DONE]
        if not has_body or (self._framing is _Framing.LENGTH and not self._left):
            events.append(self._end(Step.DONE if self._keeps else Step.LAST_DONE))
        return rest

    def _coded(self, codings: list[str]) -> _Framing:
        """The framing that Transfer-Encoding asks for."""
        match [coding.lower() for coding in codings]:
            case ["chunked"]:
                return _Framing.CHUNKS
            case ["identity"]:
                # Servers of the nineties say so of what they end by closing; RFC 9112 knows it no more.
                return _Framing.CLOSE
        raise self._broken("a transfer coding that nobody asked for")

    # -- bodies

    def _feed_body(self, data: bytes, events: list[Event]) -> bytes:
        """Read on in a body; what lies behind it."""
        match self._framing:
            case _Framing.CLOSE:
                events.append(data)
                return b""
            case _Framing.LENGTH:
                rest = data[self._left :] if len(data) > self._left else b""
                piece = data[: self._left] if rest else data
                self._left -= len(piece)
                events.append(piece)
                if self._left:
                    return b""
                events.append(self._end(Step.DONE if self._keeps else Step.LAST_DONE))
                return rest
        return self._feed_chunks(data, events)

    def _feed_chunks(self, data: bytes, events: list[Event]) -> bytes:
        self._quiet_bytes += len(data)
        try:
            self._run(data)
        except ReplyBroken:
            if not self._is_complete:
                raise
        if self._pieces:
            self._quiet_bytes = 0
            events += self._pieces
            self._pieces = []
        if self._is_complete:
            # Nobody says where in these bytes the reply ended: it has one empty line, and llhttp skips further ones.
            tail = (self._behind + data)[-5:]
            is_exact = self.state is State.BODY and tail.endswith(_HEAD_END) and tail[:1] not in (b"\r", b"\n")
            events.append(self._end(Step.DONE if is_exact and self._keeps else Step.LAST_DONE))
        elif self._quiet_bytes > MOST_FRAMING_BYTES:
            raise self._broken("chunks of nothing")
        else:
            self._behind = (self._behind + data)[-5:]
        return b""

    def _end(self, step: Step) -> End:
        self.state = TRANSITIONS[self.state, step] if self.state is State.BODY else State.CLOSED
        self.is_awaited = False
        self._begin()
        return END

    def _broken(self, why: str) -> ReplyBroken:
        self.state = State.CLOSED
        return ReplyBroken(why)

    # -- what llhttp has found

    def _run(self, data: bytes) -> None:
        try:
            self._llhttp.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, ReplyBroken):
                raise self._broken(str(error.__context__)) from None
            raise self._broken("no HTTP") from error

    def on_message_begin(self) -> None:
        if self._is_complete:
            self.state = State.CLOSED
            raise ReplyBroken("bytes that nobody asked for")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_head_done:
            return  # of a trailer
        if len(name) + len(value) > MOST_LINE_BYTES or len(self._fields) >= MOST_FIELDS:
            raise ReplyBroken("too large or too many fields")
        self._fields.append((_NAMES.get(name) or name.decode(), value.strip(b" \t").decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        if len(self._reason) > MOST_LINE_BYTES:
            raise ReplyBroken("a status line that is too long")
        self._is_head_done = True

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = True


def _keeps(version: str, headers: CIMultiDictProxy[str]) -> bool:
    """Whether the connection goes on behind a reply (RFC 9112 section 9.3); llhttp goes by bodies that do not come."""
    if "Connection" not in headers:
        return version == "1.1"
    said = {word.strip().lower() for line in headers.getall("Connection") for word in line.split(",")}
    return "close" not in said and (version == "1.1" or "keep-alive" in said)
