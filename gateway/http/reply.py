"""Replies as an origin sends them: bytes in, events out.

A parser belongs to one connection and reads one reply after the other, each only after `expect` has told that a request
is on its way.  It knows no socket and no time.  What it gives for a reply is a `Head`, the body's bytes as they come,
and `END`; an end of the connection is told to it by `feed_eof`.

The syntax of heads and of chunks is llhttp's to judge, in its strict mode: no bare LF, no folded line, no length that
is said twice or beside chunks. A head that comes whole and has nothing unusual is read line by line instead, and most
of its lines are known from other replies; whatever is not plain there is left to llhttp. Where a body begins and ends
is decided here (RFC 9112 section 6.3), because llhttp cannot be told that the reply to a HEAD has no body, and would
not say where excess bytes begin. Stricter than llhttp, this refuses what nobody here could hand on: versions that are
not HTTP/1, transfer codings beside chunked, statuses below 100, control characters in a reason.

Interim replies (1xx) are skipped, a few of them; 101 is refused, since nobody here asks for another protocol.
Trailers and chunk extensions are dropped.  Everything is bounded: the head's lines and their number, the head as a
whole while it is not complete, and what comes inside a chunked body without being one.

Bytes that nobody asked for cannot be told from the next reply, so a connection that has brought any is not used again.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

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

_IDLE, _BODY, _CLOSED = State.IDLE, State.BODY, State.CLOSED
_BEGUN, _HEAD_DONE, _DONE, _LAST_DONE = Step.BEGUN, Step.HEAD_DONE, Step.DONE, Step.LAST_DONE

_FIRST: Final = ord("H")
_HEAD_END: Final = b"\r\n\r\n"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no reason phrase may hold (RFC 9112 section 4).  llhttp looks for it in fields only."""
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH_FIELD: Final = re.compile(r"[0-9]{1,18}")
_MOST_REMEMBERED_BYTES: Final = 256
_VERSIONS: Final = frozenset({"1.1", "1.0"})
_NO_BODY: Final = frozenset({204, 304})
_CONNECTION: Final = istr("Connection")
_CONTENT_LENGTH: Final = istr("Content-Length")
_TRANSFER_ENCODING: Final = istr("Transfer-Encoding")
_UPGRADE: Final = istr("Upgrade")
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


class Head(NamedTuple):
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


_LENGTH, _CHUNKS, _CLOSE = _Framing.LENGTH, _Framing.CHUNKS, _Framing.CLOSE


class ReplyParser:
    """The replies of one connection.  A plain object of one thread; after ReplyBroken it reads nothing more."""

    __slots__ = (
        "_answers_head",
        "_behind",
        "_fields",
        "_framing",
        "_head_bytes",
        "_head_fields",
        "_interim",
        "_is_begun",
        "_is_complete",
        "_is_head_done",
        "_is_overrun",
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
        self.state = _IDLE
        self.is_awaited = False
        """Whether a request is on its way whose reply has not ended."""
        self._answers_head = False
        self._framing = _LENGTH
        self._keeps = False
        self._left = 0
        """Bytes of the body that are still to come."""
        self._quiet_bytes = 0
        """What has come of chunks since a byte of the body did."""
        self._pieces: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]]
        self._head_fields: list[tuple[bytes, bytes]]
        self._behind: bytes
        """The last bytes that came, up to as many as tell an end."""
        self._begin()

    def __repr__(self) -> str:
        return f"<ReplyParser {self.state}{', awaited' if self.is_awaited else ''}>"

    def close(self) -> None:
        """Read nothing more.  Owed to a parser that is used no more: llhttp and it hold each other."""
        self.state = _CLOSED
        del self._llhttp

    @property
    def may_go_on(self) -> bool:
        """Whether another request may be sent on this connection, once the reply that is awaited has ended."""
        return self.state is not _CLOSED

    def expect(self, *, is_head: bool) -> None:
        """A request has been sent, a HEAD or another; only one at a time."""
        self.is_awaited = True
        self._answers_head = is_head
        self._interim = 0

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes bring.  ReplyBroken where they break the syntax, or nobody asked for them."""
        events: list[Event] = []
        while data:
            if self.state is _BODY:
                data = self._feed_body(data, events)
            elif self.is_awaited and self.state is not _CLOSED:
                data = self._feed_head(data, events)
            elif events:
                # Bytes behind a whole reply: that is as good as it was, and the last one.
                self.state = _CLOSED
                break
            else:
                self.state = _CLOSED
                raise ReplyBroken("bytes that nobody asked for")
        return events

    def feed_eof(self) -> list[Event]:
        """What the end of the connection brings; ReplyBroken where it comes in the middle of a reply."""
        if self.state is _BODY and self._framing is _CLOSE:
            events: list[Event] = []
            self._end(events, keeps=False)
            return events
        is_broken = self.is_awaited
        self.state = _CLOSED
        if is_broken:
            raise ReplyBroken("an end in the middle of a reply")
        return []

    # -- heads

    def _begin(self) -> None:
        """Be ready for the first byte of a head."""
        self._llhttp = HttpResponseParser(self)
        self._fields = self._head_fields = []
        self._reason = self._behind = b""
        self._head_bytes = self._interim = 0
        self._is_begun = self._is_head_done = self._is_complete = self._is_overrun = False

    def _feed_head(self, data: bytes, events: list[Event]) -> bytes:
        """Read on in a head; what lies behind it."""
        if self.state is _IDLE:
            if not self._is_begun and (end := data.find(_HEAD_END)) >= 0 and self._take_plain(data, end, events):
                return data[end + len(_HEAD_END) :]
            self._is_begun = True
            if data[0] != _FIRST:
                # llhttp would skip line ends, and half ones.
                raise self._broken("no HTTP")
            self.state = TRANSITIONS[_IDLE, _BEGUN]
        known = len(self._behind)
        found = (self._behind + data if known else data).find(_HEAD_END)
        if found < 0:
            head, rest = data, b""
            self._behind = (self._behind + data)[-3:]
        elif (end := found + len(_HEAD_END) - known) == len(data):
            head, rest = data, b""
        else:
            head, rest = data[:end], data[end:]
        self._head_bytes += len(head)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise self._broken("a head that is too long")
        try:
            self._llhttp.feed_data(head)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise self._broken("no HTTP") from error
        if found >= 0:
            return self._take_head(rest, events)
        if not self._fields and self._head_bytes > 2 * MOST_LINE_BYTES:
            raise self._broken("a line that is too long")
        return b""

    def _take_head(self, rest: bytes, events: list[Event]) -> bytes:
        if not self._is_head_done:
            raise self._broken("no head")
        status, version, fields = self._llhttp.get_status_code(), self._llhttp.get_http_version(), self._head_fields
        if status < 100 or status == 101 or version not in _VERSIONS or _CONTROL.search(self._reason) is not None:
            raise self._broken("a status line that is not for here")
        if len(fields) > MOST_FIELDS or (self._head_bytes > MOST_LINE_BYTES and self._longest() > MOST_LINE_BYTES):
            raise self._broken("too large or too many fields")
        if status < 200:
            interim = self._interim + 1
            if interim > MOST_INTERIM:
                raise self._broken("too many interim replies")
            self.state = _IDLE
            self._begin()
            self._interim = interim
            return rest
        headers = CIMultiDictProxy(
            CIMultiDict(
                [
                    (_NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape").strip(" \t"))
                    for name, value in fields
                ]
            )
        )
        self._take_fields(status, self._reason.decode("utf-8", "surrogateescape"), version, headers, events)
        return rest

    def _take_plain(self, data: bytes, end: int, events: list[Event]) -> bool:
        """Take a head that is here as a whole, where nothing in it is unusual: its lines are read one by one, and those
        that were read before are known.  False, and nothing has happened, where it is llhttp's to judge."""
        if end > MOST_LINE_BYTES:
            return False
        first, *lines = data[:end].split(b"\r\n")
        status_line = _status_line(first)
        if status_line is None or len(lines) > MOST_FIELDS:
            return False
        fields: list[tuple[str, str]] = []
        for line in lines:
            field = _known_field(line) if len(line) <= _MOST_REMEMBERED_BYTES else _field(line)
            if field is None:
                return False
            fields.append(field)
        headers = CIMultiDictProxy(CIMultiDict(fields))
        if _TRANSFER_ENCODING in headers or _UPGRADE in headers:
            return False
        lengths = headers.getall(_CONTENT_LENGTH, ())
        if len(lengths) > 1 or (lengths and _LENGTH_FIELD.fullmatch(lengths[0]) is None):
            return False
        self.state = TRANSITIONS[_IDLE, _BEGUN]
        self._take_fields(*status_line, "1.1", headers, events)
        return True

    def _take_fields(
        self, status: int, reason: str, version: str, headers: CIMultiDictProxy[str], events: list[Event]
    ) -> None:
        """The head is whole: find the framing of what follows."""
        length = headers.get(_CONTENT_LENGTH)
        content_length = None if length is None else int(length)
        has_body = not self._answers_head and status not in _NO_BODY
        self._keeps = version == "1.1" if _CONNECTION not in headers else _keeps(version, headers)
        if _TRANSFER_ENCODING in headers:
            self._framing = self._coded(headers.getall(_TRANSFER_ENCODING))
            self._quiet_bytes = 0
            self._behind = b""
        elif content_length is not None:
            self._framing = _LENGTH
            self._left = content_length
            has_body = has_body and content_length > 0
        else:
            self._framing = _CLOSE
        is_delimited = not has_body or self._framing is not _CLOSE
        events.append(Head(status, reason, headers, content_length, is_delimited))
        self.state = TRANSITIONS[self.state, _HEAD_DONE]
        if not has_body:
            self._end(events, keeps=self._keeps)

    def _longest(self) -> int:
        """Bytes of the longest line of the head, but for what is the same in all."""
        return max(len(self._reason), max((len(name) + len(value) for name, value in self._head_fields), default=0))

    def _coded(self, codings: list[str]) -> _Framing:
        """The framing that Transfer-Encoding asks for."""
        match [coding.lower() for coding in codings]:
            case ["chunked"]:
                return _CHUNKS
            case ["identity"]:
                # Servers of the nineties say so of what they end by closing; RFC 9112 knows it no more.
                return _CLOSE
        raise self._broken("a transfer coding that nobody asked for")

    # -- bodies

    def _feed_body(self, data: bytes, events: list[Event]) -> bytes:
        """Read on in a body; what lies behind it."""
        if self._framing is _LENGTH:
            rest = data[self._left :] if len(data) > self._left else b""
            piece = data[: self._left] if rest else data
            self._left -= len(piece)
            events.append(piece)
            if not self._left:
                self._end(events, keeps=self._keeps)
            return rest
        if self._framing is _CHUNKS:
            self._feed_chunks(data, events)
        else:
            events.append(data)
        return b""

    def _feed_chunks(self, data: bytes, events: list[Event]) -> None:
        try:
            self._llhttp.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._is_complete:
                raise self._broken("no chunks") from error
            self._is_overrun = True
        tail = self._behind = (self._behind + data)[-5:]
        if self._pieces:
            self._quiet_bytes = 0
            events += self._pieces
            self._pieces = []
        else:
            self._quiet_bytes += len(data)
        if self._is_complete:
            # Nobody says where in these bytes the reply ended: it has one empty line, and llhttp skips further ones.
            is_exact = not self._is_overrun and tail.endswith(_HEAD_END) and tail[:1] not in (b"\r", b"\n")
            self._end(events, keeps=is_exact and self._keeps)
        elif self._quiet_bytes > MOST_FRAMING_BYTES:
            raise self._broken("chunks of nothing")

    def _end(self, events: list[Event], *, keeps: bool) -> None:
        self.state = TRANSITIONS[self.state, _DONE if keeps else _LAST_DONE]
        self.is_awaited = False
        if self._is_begun:
            self._begin()
        events.append(END)

    def _broken(self, why: str) -> ReplyBroken:
        self.state = _CLOSED
        return ReplyBroken(why)

    # -- what llhttp has found

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._is_overrun = self._is_complete  # another head behind what was awaited
        self._is_head_done = True
        self._head_fields = self._fields
        # Of trailers from here on.
        self._fields = []

    def on_body(self, piece: bytes) -> None:
        if self._is_complete:
            self._is_overrun = True
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = True


@lru_cache(64)
def _status_line(line: bytes) -> tuple[int, str] | None:
    """Status and reason of a final reply's first line, None where it is not a usual one."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (int(found[1]), found[2].decode("utf-8", "surrogateescape"))


def _field(line: bytes) -> tuple[str, str] | None:
    """Name and value of a field line, None where it is none."""
    found = _FIELD_LINE.fullmatch(line)
    if found is None:
        return None
    name, value = found.groups()
    return _NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape")


_known_field: Final = lru_cache(4_096)(_field)
"""Most lines of an origin's replies are the same in all of them."""


def _keeps(version: str, headers: CIMultiDictProxy[str]) -> bool:
    """Whether the connection goes on behind a reply (RFC 9112 section 9.3); llhttp goes by bodies that do not come."""
    said = {word.strip().lower() for line in headers.getall(_CONNECTION) for word in line.split(",")}
    return "close" not in said and (version == "1.1" or "keep-alive" in said)
