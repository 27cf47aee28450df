"""A parser for requests (RFC 9112), without I/O: bytes in, events out.

llhttp parses the grammar in strict mode.  This module bounds the size of heads.  It refuses unknown versions.  It also
refuses lengths and codings that leave the end of a body ambiguous.  After a syntax error, the module parses nothing
more.  Trailers are dropped (RFC 9110 section 6.5.1), and requests to upgrade are ignored (section 7.8).

Between two messages a parser has no state, so another connection may use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from multidict import CIMultiDict

from gateway.http.framing import TRANSITIONS, State, Step

MOST_FIELDS: Final = 128
"""The most fields in a head and its trailers together."""
LONGEST_LINE: Final = 8_190
"""The most bytes of one field, and of a request target."""
_FIELD_COST: Final = 180
"""Bytes that a parsed field takes in addition to its characters."""
LONGEST_HEAD: Final = 1 << 15
"""The most bytes of a head (target, names and values), and of incomplete body framing."""


class Fields:
    """A request's header section.  Immutable, and shared by requests with equal sections."""

    __slots__ = ("common", "facts", "headers", "is_plain", "keeps_alive", "length", "varied")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and (self.headers, self.keeps_alive, self.length) == (
            other.headers,
            other.keeps_alive,
            other.length,
        )

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, headers: CIMultiDict[str], keeps_alive: bool, length: int | None, *, is_plain: bool | None = None
    ) -> None:
        self.headers = headers
        self.keeps_alive = keeps_alive
        """Whether another request may follow (RFC 9112 section 9.3)."""
        self.length = length
        """Bytes of the body; None if it is chunked."""
        self.is_plain = not any(name in headers for name in _SPECIAL) if is_plain is None else is_plain
        """Whether the section has no body framing, no Upgrade and no Expect."""
        self.facts: dict[Hashable, Any] = {}
        """Values that other components have derived from `common`.  The key is the component."""
        self.common = headers
        """The headers without the headers in `varied`."""
        self.varied: Sequence[tuple[str, str]] = ()
        """The headers whose numbers differ between sections with the same `facts`."""

    def varied_by(self, varied: Sequence[tuple[str, str]], length: int) -> Fields:
        """Make this section with further headers, for a request whose body has `length` bytes."""
        headers = self.headers.copy()
        headers.extend(varied)
        fields = Fields(headers, self.keeps_alive, length, is_plain=False)
        fields.facts, fields.common, fields.varied = self.facts, self.headers, varied
        return fields


@dataclass(slots=True)
class RequestHead:
    """A request without its body.  Bytes that are not UTF-8 become lone surrogates."""

    method: str
    target: str
    version: str
    """The version of HTTP, in the form `1.1`."""
    fields: Fields
    known: tuple[Any, ...] | None = field(default=None, compare=False, repr=False)
    """A value that another component has derived from the whole head, and the conditions under which the value is
    valid.
    """

    @property
    def headers(self) -> CIMultiDict[str]:
        return self.fields.headers

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow (RFC 9112 section 9.3)."""
        return self.fields.keeps_alive

    @property
    def length(self) -> int | None:
        """Bytes of the body; None if it is chunked."""
        return self.fields.length


class Mark(Enum):
    """Events without data."""

    END = "end"
    """The request is complete."""
    BROKEN = "broken"
    """The bytes are not a valid request or body.  Nothing after them is parsed."""
    TARGET_TOO_LONG = "target too long"
    """The target is longer than allowed (RFC 9112 section 3).  Nothing after it is parsed."""
    HEAD_TOO_LARGE = "head too large"
    """A field, the number of fields, or the whole head is larger than allowed (RFC 6585 section 5).  Nothing after it
    is parsed."""


Event = RequestHead | bytes | Mark
"""A head, a piece of its body, or a mark."""

_SPECIAL: Final = ("Content-Length", "Transfer-Encoding", "Upgrade", "Expect")


# Looked up once, because every request makes these transitions.
_BEGUN: Final = TRANSITIONS[State.IDLE, Step.BEGUN]
_HEAD_DONE: Final = TRANSITIONS[State.HEAD, Step.HEAD_DONE]
_DONE: Final = TRANSITIONS[State.BODY, Step.DONE]
_LAST_DONE: Final = TRANSITIONS[State.BODY, Step.LAST_DONE]


_BODY_OF_SIZE: Final = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
_BODY_OF_UNKNOWN_SIZE: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Rejected(Exception):
    """A bound is exceeded, or the request is not acceptable."""


class RequestParser:
    """Parses the requests of one connection."""

    __slots__ = (
        "_events",
        "_fields",
        "_framing",
        "_head_bytes",
        "_keeps_alive",
        "_most_fields",
        "_most_head",
        "_most_line",
        "_parser",
        "_parts",
        "_pending_bytes",
        "_refusal",
        "_target",
        "_trailers",
        "state",
    )

    def __init__(self, times: int = 1) -> None:
        """`times` multiplies the bounds of heads."""
        self._most_head, self._most_line, self._most_fields = (
            times * bound for bound in (LONGEST_HEAD, LONGEST_LINE, MOST_FIELDS)
        )
        self.state = State.IDLE
        self._reset_parser()
        self._events: list[Event] = []
        self._parts: list[bytes] = []
        """Pieces of the body within the bytes being parsed.  They become one event, whatever the number of chunks."""
        self._fields: list[tuple[str, str]] = []
        self._trailers = 0
        self._target = b""
        self._head_bytes = 0
        """Bytes of the head's names and values so far."""
        self._refusal = Mark.BROKEN
        """The mark to end with if parsing fails."""
        self._pending_bytes = 0
        """Bytes received since the last event or change of state.  Messages with too many of these bytes are refused,
        because llhttp buffers them."""
        self._keeps_alive = True
        self._framing = b""
        """A substitute head with the same framing, for a body that a second llhttp parser has to read."""

    def _reset_parser(self) -> None:
        self._parser = HttpRequestParser(self)

    def __repr__(self) -> str:
        return f"<RequestParser {self.state}>"

    def close(self) -> None:
        """Parse nothing more.  Every parser must be closed, because it forms a reference cycle with llhttp."""
        self.state = State.CLOSED
        del self._parser

    @property
    def held_bytes(self) -> int:
        """About how many bytes of memory an unfinished head takes."""
        return self._pending_bytes + sum(_FIELD_COST + len(name) + len(value) for name, value in self._fields)

    def feed(self, data: bytes) -> list[Event]:
        """Parse bytes, and return their events in order."""
        events = self._events = []
        began = self.state
        self._pending_bytes += len(data)
        while data and self.state is not State.CLOSED:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # The upgrade is ignored: the next bytes are the body or the next request.
                data = self._framing + data[upgrade.args[0] :]
                self._framing = b""
                self._reset_parser()
            except HttpParserError:
                self._break()
        if self._parts:
            self._end_parts()
        if events or self.state is not began:
            self._pending_bytes = 0
        elif self._pending_bytes > self._most_head and began is not State.CLOSED:
            # Refuse the message, because llhttp buffers incomplete fields, chunk extensions and trailers without a
            # bound.
            if self.state is State.HEAD:
                self._refusal = Mark.HEAD_TOO_LARGE
            self._break()
        self._events = []
        return events

    def _break(self) -> None:
        if self.state is State.CLOSED:
            # Bytes after the last message are ignored.
            return
        self.state = State.CLOSED
        if self._parts:
            self._end_parts()
        self._events.append(self._refusal)

    def _end_parts(self) -> None:
        self._events.append(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
        self._parts = []

    # -- callbacks of llhttp, in the order of their calls for one request

    def on_message_begin(self) -> None:
        if self.state is _HEAD_DONE:
            return
        if self.state is State.CLOSED:
            # Refuse the message, which llhttp has begun after the connection's last message.
            raise _Rejected
        self.state = _BEGUN
        self._fields = []
        self._head_bytes = 0
        self._target = b""

    def on_url(self, part: bytes) -> None:
        if self.state is _HEAD_DONE:
            return
        self._target += part
        if len(self._target) > self._most_line:
            self._refusal = Mark.TARGET_TOO_LONG
            raise _Rejected

    def on_header(self, name: bytes, value: bytes) -> None:
        fields, size = self._fields, len(name) + len(value)
        self._head_bytes += size
        if (
            size > self._most_line
            or len(fields) + self._trailers >= self._most_fields
            or self._head_bytes + len(self._target) > self._most_head
        ):
            if self.state is _BEGUN:
                self._refusal = Mark.HEAD_TOO_LARGE
            raise _Rejected
        if self.state is _BEGUN:
            # Remove trailing whitespace, which llhttp keeps, but which is not part of the value (RFC 9112 section 5.1).
            fields.append((name.decode(), value.rstrip(b" \t").decode("utf-8", "surrogateescape")))
        else:
            self._trailers += 1

    def on_headers_complete(self) -> None:
        if self.state is _HEAD_DONE:
            return
        parser, headers = self._parser, CIMultiDict(self._fields)
        version, method = parser.get_http_version(), parser.get_method().decode()
        length: int | None = 0
        if (codings := headers.getall("Transfer-Encoding", None)) is not None:
            # Refuse Transfer-Encoding in HTTP/1.0, because senders of HTTP/1.0 may not know this field (RFC 9112
            # section 6.1).
            if version == "1.0" or codings[-1].rpartition(",")[2].strip(" \t").lower() != "chunked":
                raise _Rejected
            length = None
        elif (announced := headers.get("Content-Length")) is not None:
            length = int(announced)
        if version == "0.9" or method == "CONNECT":
            raise _Rejected
        if length != 0 and parser.should_upgrade():
            # llhttp treats the body as data of the upgraded protocol, so a second parser has to read the body.
            self._framing = _BODY_OF_UNKNOWN_SIZE if length is None else _BODY_OF_SIZE % length
        self._keeps_alive = version == "1.1" and parser.should_keep_alive()
        self._fields = []
        self._trailers = 0
        self.state = _HEAD_DONE
        target = self._target.decode("utf-8", "surrogateescape")
        self._events.append(RequestHead(method, target, version, Fields(headers, self._keeps_alive, length)))

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._framing:
            return
        if self._parts:
            self._end_parts()
        self.state = _DONE if self._keeps_alive else _LAST_DONE
        self._events.append(Mark.END)
