"""Requests as they are read from a connection (RFC 9112), sans-I/O: bytes in, events out.

The grammar is llhttp's, in its strict mode; what that leaves open is closed here: bounds on heads, versions that do not
exist, lengths and codings that leave the end of a body in doubt.  After a syntax error nothing more is read.  Trailer
fields are dropped (RFC 9110 section 6.5.1), and so is a wish to speak another protocol (section 7.8).

A parser between two messages has no memory of the first: it may be used for another connection.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from multidict import CIMultiDict

from gateway.http.state import TRANSITIONS, State, Step

MOST_FIELDS: Final = 128
"""In a head, and again in a trailer section."""
LONGEST_LINE: Final = 8_190
"""Bytes of one field, and of a request target."""
LONGEST_HEAD: Final = 1 << 16
"""Bytes of a head, or of what frames a body, that come after the first read of it."""


class Fields:
    """The header section of a request, which others may have in common with it.  Nobody changes it."""

    __slots__ = ("facts", "headers", "is_plain", "keeps_alive", "length")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and (self.headers, self.keeps_alive, self.length) == (
            other.headers,
            other.keeps_alive,
            other.length,
        )

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, headers: CIMultiDict[str], keeps_alive: bool, length: int | None) -> None:
        self.headers = headers
        self.keeps_alive = keeps_alive
        """Whether another request may follow (RFC 9112 section 9.3)."""
        self.length = length
        """Bytes of the body; None where it is chunked."""
        self.is_plain = not any(name in headers for name in _UNPLAIN)
        """Whether it says nothing of a body, of another protocol, or of waiting for an answer before the body."""
        self.facts: dict[Hashable, Any] = {}
        """What others have read from it, by who they are."""


@dataclass(slots=True)
class RequestHead:
    """A request without its body.  Text that is no UTF-8 is held by lone surrogates."""

    method: str
    target: str
    version: str
    """As in `1.1`."""
    fields: Fields

    @property
    def headers(self) -> CIMultiDict[str]:
        return self.fields.headers

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow (RFC 9112 section 9.3)."""
        return self.fields.keeps_alive

    @property
    def length(self) -> int | None:
        """Bytes of the body; None where it is chunked."""
        return self.fields.length


class Mark(Enum):
    """What needs no more words."""

    END = "end"
    """The request is whole."""
    BROKEN = "broken"
    """What came is no request, or no body; nothing after it is read."""


Event = RequestHead | bytes | Mark
"""A head, a piece of its body, or a mark."""

_UNPLAIN: Final = ("Content-Length", "Transfer-Encoding", "Upgrade", "Expect")


# Looked up once: these moves are made for every request.
_BEGUN: Final = TRANSITIONS[State.IDLE, Step.BEGUN]
_HEAD_DONE: Final = TRANSITIONS[State.HEAD, Step.HEAD_DONE]
_DONE: Final = TRANSITIONS[State.BODY, Step.DONE]
_LAST_DONE: Final = TRANSITIONS[State.BODY, Step.LAST_DONE]


_BODY_OF_SIZE: Final = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
_BODY_OF_UNKNOWN_SIZE: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Refused(Exception):
    """A bound is exceeded."""


class RequestParser:
    """Reads what one client sends."""

    __slots__ = (
        "_events",
        "_fields",
        "_framing",
        "_keeps_alive",
        "_parser",
        "_silent_bytes",
        "_target",
        "_trailers",
        "state",
    )

    def __init__(self) -> None:
        self.state = State.IDLE
        self._begin_anew()
        self._events: list[Event] = []
        self._fields: list[tuple[str, str]] = []
        self._trailers = 0
        self._target = b""
        self._silent_bytes = 0
        """What has come since something was made of it."""
        self._keeps_alive = True
        self._framing = b""
        """A head like the one that was read, where its body has to be read by another parser."""

    def _begin_anew(self) -> None:
        self._parser = HttpRequestParser(self)

    def __repr__(self) -> str:
        return f"<RequestParser {self.state}>"

    def close(self) -> None:
        """Read nothing more.  Owed to a parser that nobody uses again: llhttp and it hold each other."""
        self.state = State.CLOSED
        del self._parser

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes bring, in order."""
        events = self._events = []
        began = self.state
        self._silent_bytes += len(data)
        while data and self.state is not State.CLOSED:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # The protocol that is spoken stays: what follows is the body, where there is one, or the next request.
                data = self._framing + data[upgrade.args[0] :]
                self._framing = b""
                self._begin_anew()
            except HttpParserError:
                self._break()
        if events or self.state is not began:
            self._silent_bytes = 0
        elif self._silent_bytes > LONGEST_HEAD and began is not State.CLOSED:
            # llhttp holds fields, extensions and trailers that do not come to their end.
            self._break()
        self._events = []
        return events

    def _break(self) -> None:
        if self.state is State.CLOSED:
            # After a last message nothing that a client sends counts.
            return
        self.state = State.CLOSED
        self._events.append(Mark.BROKEN)

    # -- what llhttp calls, in the order in which it is called for one request

    def on_message_begin(self) -> None:
        if self.state is _HEAD_DONE:
            return
        if self.state is State.CLOSED:
            # llhttp may go on where this side does not.
            raise _Refused
        self.state = _BEGUN
        self._fields = []
        self._target = b""

    def on_url(self, part: bytes) -> None:
        if self.state is _HEAD_DONE:
            return
        self._target += part
        if len(self._target) > LONGEST_LINE:
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        if len(name) + len(value) > LONGEST_LINE or len(fields) + self._trailers >= MOST_FIELDS:
            raise _Refused
        if self.state is _BEGUN:
            # llhttp leaves the blanks behind a value, which are no part of it (RFC 9112 section 5.1).
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
            # Whoever wrote it into a 1.0 may not have known what it says (RFC 9112 section 6.1).
            if version == "1.0" or codings[-1].rpartition(",")[2].strip(" \t").lower() != "chunked":
                raise _Refused
            length = None
        elif (announced := headers.get("Content-Length")) is not None:
            length = int(announced)
        if version == "0.9" or method == "CONNECT":
            raise _Refused
        if length != 0 and parser.should_upgrade():
            # llhttp takes what follows for the other protocol; a parser of its own reads it as the body that it is.
            self._framing = _BODY_OF_UNKNOWN_SIZE if length is None else _BODY_OF_SIZE % length
        self._keeps_alive = version == "1.1" and parser.should_keep_alive()
        self._fields = []
        self._trailers = 0
        self.state = _HEAD_DONE
        target = self._target.decode("utf-8", "surrogateescape")
        self._events.append(RequestHead(method, target, version, Fields(headers, self._keeps_alive, length)))

    def on_body(self, part: bytes) -> None:
        self._events.append(part)

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self.state = _DONE if self._keeps_alive else _LAST_DONE
        self._events.append(Mark.END)
