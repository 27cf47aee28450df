"""Writes the heads of requests to origins and of responses to clients (RFC 9112 section 4).

A request's head must not contain bytes that an origin could read as another line or another request.  The complete head
is therefore checked once, whatever the source of its parts (RFC 9112 section 11.1).  The framing fields follow from the
body, and the caller cannot set them.

`PassedFields` are a reply's fields together with their bytes.  Rendering many fields takes longer than parsing them.
Lines that many replies have in common are therefore rendered once (`gateway.http.reply_lines.ReplyShape`), and each
reply's own lines are appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeAlias

from multidict import CIMultiDict, CIMultiDictProxy, istr

from gateway.errors import UpstreamBroken
from gateway.http.reply_lines import HAS_DATE, HAS_LENGTH, PLAIN, FieldLine, Kinds

_HEAD: Final = re.compile(
    r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [^\x00-\x20\x7f]+ HTTP/1\.1\r\n"
    r"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n"
)
_HOST: Final = istr("Host")
_TARGET: Final = re.compile(r"/[!-~]*")
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
_OPTIONAL_LENGTH: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that need no Content-Length without a body (RFC 9110 section 8.6)."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_COMMON_NAMES: Final = """
    Accept Accept-Encoding Accept-Language Authorization Cache-Control CDN-Loop Connection Content-Length Content-Type
    Cookie Forwarded Host If-Match If-None-Match Origin Pragma Producer-Epoch Producer-Id Producer-Seq Range Referer
    Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Stream-Closed Stream-Cursor Stream-Expires-At Stream-Seq Stream-TTL
    Traceparent Tracestate User-Agent Via X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Request-Id
"""
_KNOWN_TOKENS: Final = frozenset(
    spelling for name in _COMMON_NAMES.split() for spelling in (name, name.lower(), name.title())
)
"""Field names that are valid tokens, in their usual spellings."""


class RenderedHeaders(CIMultiDict[str]):
    """Immutable headers with their rendered lines.  A copy is mutable and has no rendered lines."""

    __slots__ = ("_latest", "lines")

    lines: str | None
    """The field lines without framing fields.  None if the lines have to be checked together with the rest of the head.
    """

    @classmethod
    def of(cls, headers: CIMultiDict[str]) -> RenderedHeaders:
        """Make the rendered form of these headers."""
        rendered = cls(headers)
        fields = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _FRAMING]
        is_known_valid = _KNOWN_TOKENS.issuperset(headers) and "".join(fields).isprintable()
        rendered.lines = "".join([f"{field}\r\n" for field in fields]) if is_known_valid else None
        return rendered

    def varied_by(self, varied: Iterable[tuple[str, str]]) -> RenderedHeaders:
        """Return these headers with further headers, whose values are numbers."""
        changed = RenderedHeaders(self)
        changed.lines = self.lines
        for name, value in varied:
            if name in self:
                changed.lines = None
            elif changed.lines is not None and name.lower() not in _FRAMING:
                changed.lines += f"{name}: {value}\r\n"
            changed[name] = value
        return changed

    def with_field(self, name: str, value: str) -> RenderedHeaders:
        """Return these headers with a further field, whose value has no control characters."""
        # Keep the latest result, because requests with equal headers mostly have equal further fields.
        latest: tuple[str, str, RenderedHeaders] | None = getattr(self, "_latest", None)
        if latest is not None and latest[:2] == (name, value):
            return latest[2]
        changed = RenderedHeaders(self)
        changed[name] = value
        changed.lines = None if self.lines is None else f"{self.lines}{name}: {value}\r\n"
        self._latest = name, value, changed
        return changed

    def copy(self) -> RenderedHeaders:
        """Make a mutable copy without rendered lines."""
        copied = RenderedHeaders(self)
        copied.lines = None
        return copied


class InvalidRequest(ValueError):
    """A request that must not be sent, because an origin could misread it."""


def request_head(
    method: str,
    target: str,
    host: str,
    headers: CIMultiDict[str] | CIMultiDictProxy[str],
    length: int | None,
    *,
    is_chunked: bool = False,
) -> bytes:
    """Make the head of a request for a target in origin form.  The body has `length` bytes or is chunked.  Without both
    arguments, the request has no body.

    `host` becomes the Host field unless the headers have one.  Raises InvalidRequest if a part is not a valid token or
    contains control characters.
    """
    if (
        type(headers) is RenderedHeaders
        and headers.lines is not None
        and method in _METHODS
        and _TARGET.fullmatch(target)
    ):
        if is_chunked:
            framing = "Transfer-Encoding: chunked\r\n"
        elif length is not None:
            framing = f"Content-Length: {length}\r\n"
        else:
            framing = "" if method in _OPTIONAL_LENGTH else "Content-Length: 0\r\n"
        host_line = "" if _HOST in headers else f"Host: {host}\r\n"
        return f"{method} {target} HTTP/1.1\r\n{host_line}{headers.lines}{framing}\r\n".encode(
            "utf-8", "surrogateescape"
        )
    lines = [f"{method} {target} HTTP/1.1"]
    if "Host" not in headers:
        lines.append(f"Host: {host}")
    if "Content-Length" in headers or "Transfer-Encoding" in headers:
        lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _FRAMING]
    else:
        lines += [f"{name}: {value}" for name, value in headers.items()]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    elif length is not None:
        lines.append(f"Content-Length: {length}")
    elif method not in _OPTIONAL_LENGTH:
        lines.append("Content-Length: 0")
    lines += ("", "")
    text = "\r\n".join(lines)
    # The fast path: all names are known tokens, and there are no control characters.
    is_known_valid = method in _METHODS and target and " " not in target and _KNOWN_TOKENS.issuperset(headers)
    is_known_valid = is_known_valid and "".join(lines).isprintable()
    # A value with a line end looks like two fields to the pattern.  The number of lines is therefore compared too.
    if not is_known_valid and (_HEAD.fullmatch(text) is None or text.count("\n") != len(lines) - 1):
        raise InvalidRequest("a request that could be read as another one")
    return text.encode("utf-8", "surrogateescape")


class PassedFields:
    """The fields of a reply for a client: lines that the reply shares with others, and its own lines.

    `PassedFields` keeps the bytes of all lines, so that most replies are passed on without a table of their fields.
    """

    __slots__ = ("_fields", "_own", "_shared", "kinds", "lines")

    def __init__(self, shared: CIMultiDict[str], lines: bytes, own: Sequence[FieldLine]) -> None:
        """`shared` are valid fields, which must not be changed, and `lines` are the bytes of these fields.  Neither
        `shared` nor `lines` includes a length or a date.  The fields in `own` follow the shared fields.
        """
        kinds = PLAIN
        for line in own:
            lines += line.rendered
            kinds |= line.kinds
        self._shared = shared
        self._own = own
        self._fields: CIMultiDict[str] | None = None
        self.lines: bytes | None = lines
        """The field lines, each with its line end.  None if the lines have to be rendered and checked."""
        self.kinds: Kinds = kinds
        """The flags (`Kinds`) of the lines after the shared lines.  Valid while `lines` is not None."""

    def table(self) -> CIMultiDict[str]:
        """Return all fields as a table, which is made at the first call."""
        if self._fields is None:
            fields = self._fields = self._shared.copy()
            for line in self._own:
                fields.add(line.name, line.value)
        return self._fields

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of a field, or `default`."""
        if self._fields is not None:
            return self._fields.get(name, default)
        found = self._shared.get(name)
        if found is None:
            name = name.lower()
            for line in self._own:
                if line.name.lower() == name:
                    return line.value
            return default
        return found

    def add(self, name: str, value: str) -> None:
        """Append a field."""
        self.table().add(name, value)
        self.kinds |= _MARKED.get(name.lower(), PLAIN)
        if self.lines is not None:
            line = _line(name, value)
            self.lines = None if line is None else self.lines + line

    def __setitem__(self, name: str, value: str) -> None:
        self.table()[name] = value
        self.lines = None

    def __delitem__(self, name: str) -> None:
        del self.table()[name]
        self.lines = None


@lru_cache(256)
def _line(name: str, value: str) -> bytes | None:
    """Return a field line; None if the name or the value contains a line break."""
    line = f"{name}: {value}"
    return None if "\n" in line or "\r" in line else f"{line}\r\n".encode("utf-8", "surrogateescape")


_CONTENT_LENGTH: Final = istr("Content-Length")
_DATE: Final = istr("Date")
_MARKED: Final = {"content-length": HAS_LENGTH, "date": HAS_DATE}
"""The flag that `PassedFields.kinds` gets for each of these fields, by lower-case name."""
_FIELD: Final = ": ".join
"""Joins a field's name and value without a Python call for each field."""

JOINED_BYTES: Final = 1 << 14
"""The largest body that is joined with its head for one write."""


@lru_cache(maxsize=128)
def status_line(status: int, reason: str | None = None) -> bytes:
    """Make the status line.  `reason` defaults to the standard phrase, or to an empty phrase for an unknown status."""
    if reason is None:
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason.encode("utf-8", "surrogateescape"))


Fields: TypeAlias = CIMultiDict[str] | PassedFields
"""The fields of an answer to a client."""


def field_lines(headers: Fields) -> bytes:
    """Return the field lines of a head, each with its line end, without the empty line.

    Raises UpstreamBroken for a value with a line break.  Only an origin can have sent such a value, which must not be
    passed on.
    """
    if type(headers) is PassedFields:
        if headers.lines is not None:
            return headers.lines
        headers = headers.table()
    assert isinstance(headers, CIMultiDict)
    if not headers:
        return b""
    lines = "\r\n".join([*map(_FIELD, headers.items()), ""])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise UpstreamBroken
    return lines.encode("utf-8", "surrogateescape")


def states_length(headers: Fields) -> bool:
    """Return whether the fields include a Content-Length."""
    if type(headers) is PassedFields and headers.lines is not None:
        return bool(headers.kinds & HAS_LENGTH)
    return _CONTENT_LENGTH in headers


def state_length(headers: Fields, size: int) -> None:
    """Set Content-Length to this size."""
    length, stated = str(size), headers.get(_CONTENT_LENGTH)
    if stated is None:
        headers.add(_CONTENT_LENGTH, length)
    elif stated != length:
        headers[_CONTENT_LENGTH] = length


@lru_cache(maxsize=4)
def date_line(second: int) -> bytes:
    """Make the Date field of a response made in this Unix second (RFC 9110 §6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()


def interim_head(status: int, headers: CIMultiDict[str]) -> bytes:
    """Make the whole head of an interim reply.  Raises UpstreamBroken for a header that must not be sent."""
    return status_line(status) + field_lines(headers) + b"\r\n"


def response_head(status: int, headers: Fields, wall: float, *, keeps: bool, reason: str | None = None) -> bytes:
    """Make the whole head of a response.  Raises UpstreamBroken for a header that must not be sent.

    `wall` is the Unix time for a Date field if `headers` has none.  `keeps` means that the connection stays open.
    """
    close = b"" if keeps else b"Connection: close\r\n"
    if type(headers) is PassedFields and headers.lines is not None:
        lines, has_date = headers.lines, headers.kinds & HAS_DATE
    else:
        lines, has_date = field_lines(headers), _DATE in headers
    date = b"" if has_date else date_line(int(wall))
    return status_line(status, reason) + lines + close + date + b"\r\n"
