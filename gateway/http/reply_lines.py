"""Parses and caches the lines of a reply's head.  The checks are as strict as the checks of the parser llhttp.

The replies of an origin share most of their lines.  The module remembers parsed field lines and the shapes of heads.  A
`ReplyShape` has the lines that several heads have in common, and all values derived from these lines.  The other lines
are the reply's own lines, such as its offset and its date.  They differ from reply to reply, and nothing is derived
from them.  A `Head` has both kinds of lines.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from multidict import CIMultiDict, CIMultiDictProxy, istr

from gateway.protocol.header_forwarding import HOP_BY_HOP

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_MOST_REMEMBERED_BYTES: Final = 512
"""The longest line that is cached.  The list of headers that an origin exposes to browsers takes 300 bytes."""
_MOST_LINES: Final = 4_096
_MOST_SHAPES: Final = 256
_MOST_FACTS: Final = 16
"""The most values derived from one shape, such as a set of fields for each web origin."""
_COMMON_NAMES: Final = """
    Access-Control-Allow-Origin Access-Control-Expose-Headers Age Cache-Control Cache-Status Connection
    Content-Encoding Content-Length Content-Type Cross-Origin-Resource-Policy Date ETag Keep-Alive Location
    Producer-Epoch Producer-Seq Retry-After Server Stream-Closed Stream-Cursor Stream-Expires-At Stream-Next-Offset
    Stream-SSE-Data-Encoding Stream-TTL Stream-Up-To-Date Surrogate-Key Transfer-Encoding Vary Via
    X-Content-Type-Options
"""
NAMES: Final = {
    spelling.encode(): istr(spelling)
    for name in _COMMON_NAMES.split()
    for spelling in (name, name.lower(), name.title())
}
"""Interned names of common fields, so that replies do not allocate them."""

Kinds = int
"""Flags for a field's role."""
PLAIN: Final[Kinds] = 0
HAS_LENGTH: Final[Kinds] = 1
HAS_DATE: Final[Kinds] = 2
FOR_CONNECTION: Final[Kinds] = 4
"""The field is Connection."""
UNUSUAL: Final[Kinds] = 8
"""llhttp has to check the framing, because the field is Upgrade, or an unusual Content-Length or Transfer-Encoding."""
CHUNKED: Final[Kinds] = 16
SHARED: Final[Kinds] = 32
"""Other values are derived from the field, so its line belongs to the shape."""
NOT_ALIKE: Final[Kinds] = 64
"""If a reply has this field, the fields for its client are made for this reply alone, not once for all replies of its
shape.  Location depends on the request, and Connection may contain the name of any other field.
"""
_KINDS: Final = {
    **dict.fromkeys(
        (*HOP_BY_HOP, "cache-status", "content-type", "server", "vary", "via", "x-accel-buffering"), SHARED
    ),
    "connection": FOR_CONNECTION | SHARED,
    "date": HAS_DATE,
    "location": NOT_ALIKE | SHARED,
    "transfer-encoding": UNUSUAL,
    "upgrade": UNUSUAL,
}
_OWN_KINDS: Final = HAS_LENGTH | HAS_DATE
"""The flags that a reply's own lines may have."""
_CONNECTION_OPTIONS: Final = frozenset({"close", "keep-alive"})
_CORS: Final = "access-control-"

_READ_NAMES: Final = frozenset({*_KINDS, "content-length"})
_PLAIN_NAMES: Final = {
    spelling: name
    for spelling, name in NAMES.items()
    if name.lower() not in _READ_NAMES and not name.lower().startswith(_CORS)
}
"""Names of fields from which nothing is derived."""
_OWN_NAMES: Final = frozenset({"content-length", "date", "etag", "producer-seq", "stream-cursor", "stream-next-offset"})
"""Lower-case names of fields whose values differ from reply to reply.  Their lines are not remembered."""


@lru_cache(64)
def status_line_of(line: bytes) -> tuple[int, str] | None:
    """Return the status and the reason in a final reply's first line.  None for an unusual line."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (int(found[1]), found[2].decode("utf-8", "surrogateescape"))


class FieldLine:
    """A valid field line.  Immutable."""

    __slots__ = ("kinds", "length", "name", "rendered", "value")

    def __init__(self, name: str, value: str, rendered: bytes, kinds: Kinds = PLAIN, length: int | None = None) -> None:
        self.name = name
        self.value = value
        self.rendered = rendered
        """The line as written, with its line end."""
        self.kinds = kinds
        self.length = length
        """The value of a Content-Length; None for other fields."""


def _field_line(line: bytes) -> FieldLine | None:
    raw_name, colon, raw_value = line.partition(b": ")
    plain = _PLAIN_NAMES.get(raw_name) if colon else None
    if plain is not None and raw_value.isascii():
        value = raw_value.decode()
        if value.isprintable() and value.strip(" ") == value:
            return FieldLine(plain, value, line + b"\r\n")
    found = _FIELD_LINE.fullmatch(line)
    if found is None:
        return None
    raw_name, raw_value = found.groups()
    name, value = NAMES.get(raw_name) or raw_name.decode(), raw_value.decode("utf-8", "surrogateescape")
    rendered, lower = b"%b: %b\r\n" % (raw_name, raw_value), name.lower()
    if lower == "content-length":
        if _LENGTH.fullmatch(value) is None:
            return FieldLine(name, value, rendered, UNUSUAL)
        return FieldLine(name, value, rendered, HAS_LENGTH, int(value))
    if lower == "connection" and value.lower() not in _CONNECTION_OPTIONS:
        return FieldLine(name, value, rendered, FOR_CONNECTION | NOT_ALIKE | SHARED)
    if lower == "transfer-encoding" and value.lower() == "chunked":
        return FieldLine(name, value, rendered, CHUNKED | SHARED)
    return FieldLine(name, value, rendered, _KINDS.get(lower, SHARED if lower.startswith(_CORS) else PLAIN))


_own_line: Final = lru_cache(256)(_field_line)
"""Parse one of a reply's own lines.  The small cache helps with lines such as Date, which all replies of one second
share.
"""


class ReplyShape:
    """The lines that several heads have in common, with values derived from them.  The lines are immutable."""

    __slots__ = ("facts", "headers", "is_chunked", "keeps_alive", "kinds", "own_at")

    def __init__(self, lines: tuple[FieldLine | None, ...]) -> None:
        shared = [line for line in lines if line is not None]
        self.headers = CIMultiDict([(line.name, line.value) for line in shared])
        """The fields of the shared lines.  Must not be changed."""
        self.own_at = tuple([at for at, line in enumerate(lines) if line is None])
        """The positions of a reply's own lines in its head."""
        self.kinds: Kinds = PLAIN
        for line in shared:
            self.kinds |= line.kinds
        self.is_chunked = bool(self.kinds & CHUNKED)
        self.keeps_alive = not self.kinds & FOR_CONNECTION or keeps_alive("1.1", self.headers)
        """Whether the connection stays open after the reply."""
        self.facts: dict[Hashable, Any] = {}
        """Values that other modules have derived from the shared fields."""

    def derived(self, key: Hashable, value: Any) -> None:
        """Keep a value derived from the shared fields.  The value must not depend on a reply's own lines."""
        if len(self.facts) >= _MOST_FACTS:
            self.facts.clear()
        self.facts[key] = value


class Head:
    """The head of a final reply.  Immutable."""

    __slots__ = ("_headers", "content_length", "is_delimited", "own", "reason", "shape", "status")

    def __init__(
        self,
        status: int,
        reason: str,
        headers: CIMultiDictProxy[str] | None,
        content_length: int | None,
        is_delimited: bool,
        shape: ReplyShape | None = None,
        own: Sequence[FieldLine] = (),
    ) -> None:
        """`headers` may be None if there is a shape."""
        self.status = status
        """The status, from 200 to 999."""
        self.reason = reason
        self._headers = headers
        self.content_length = content_length
        """The Content-Length, which may state the length of an omitted body (HEAD, 304).  None without the field."""
        self.is_delimited = is_delimited
        """Whether the end of the body can be distinguished from a lost connection.  True for all cases of RFC 9112
        section 6.3 except the last.
        """
        self.shape = shape
        """The lines shared with other heads.  None if llhttp has parsed the head."""
        self.own = own
        """The lines that are not among the shared lines."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """All fields.  The table is made at the first access, because most relayed replies need only the lines."""
        if self._headers is None:
            assert self.shape is not None
            headers = self.shape.headers.copy()
            for line in self.own:
                headers.add(line.name, line.value)
            self._headers = CIMultiDictProxy(headers)
        return self._headers

    def get(self, name: str) -> str | None:
        """Return the first value of a field, without making the table."""
        if self._headers is not None or self.shape is None:
            return self.headers.get(name)
        found = self.shape.headers.get(name)
        return found if found is not None else next((line.value for line in self.own if line.name == name), None)

    def __repr__(self) -> str:
        return f"<Head {self.status} {self.reason}, {len(self.headers)} fields>"


_lines: Final[dict[bytes, FieldLine]] = {}
"""Remembered field lines.  The oldest are dropped first."""
_shapes: Final[dict[tuple[FieldLine | None, ...], ReplyShape]] = {}
"""Shapes by the lines of their heads.  In the key, None replaces each line that is not remembered."""


ReadLines: TypeAlias = tuple[ReplyShape, list[FieldLine], int | None]
"""A head's shape, its own lines, and its Content-Length."""


def read_lines(lines: list[bytes]) -> ReadLines | None:
    """Read the field lines of a head.  Returns None if a line is invalid or unusual."""
    shape = _shapes.get(tuple(map(_lines.get, lines)))
    if shape is None:
        return _learn(lines)
    own: list[FieldLine] = []
    length: int | None = None
    for at in shape.own_at:
        line = _own_line(lines[at])
        if line is None or line.kinds > _OWN_KINDS or line.name in shape.headers:
            return _learn(lines)
        own.append(line)
        if line.length is not None:
            if length is not None or shape.is_chunked:
                return None
            length = line.length
    return shape, own, length


def read_with_own(lines: list[bytes], prefixes: tuple[bytes, ...]) -> ReadLines | None:
    """Read the field lines of a head like `read_lines`.  The first line that begins with one of these prefixes becomes
    the last of the reply's own lines.  This holds even if a line of this name usually belongs to the shape."""
    for at, raw in enumerate(lines):
        if raw.startswith(prefixes) and (line := _field_line(raw)) is not None:
            if (found := read_lines([*lines[:at], *lines[at + 1 :]])) is not None:
                shape, own, length = found
                return shape, [*own, FieldLine(line.name, line.value, line.rendered)], length
            return None
    return read_lines(lines)


def _learn(lines: list[bytes]) -> ReadLines | None:
    """Read the field lines of a head with an unknown shape, and remember the shape."""
    parsed: list[FieldLine] = []
    for raw in lines:
        line = _lines.get(raw) or _field_line(raw)
        if line is None or line.kinds & UNUSUAL or (line.kinds & SHARED and len(raw) > _MOST_REMEMBERED_BYTES):
            return None
        parsed.append(line)
    if sum(bool(line.kinds & CHUNKED) for line in parsed) > 1:
        return None
    for raw, line in zip(lines, parsed, strict=True):
        if line.kinds & SHARED:
            _remember(raw, line)
    # A new line becomes part of a shape only when it occurs again, because it may differ in each reply.  SHARED lines
    # always belong to the shape, even if a later line of this head has just displaced such a line from the cache.
    key = tuple(
        [
            line if line.kinds & SHARED or _lines.get(raw) is line else None
            for raw, line in zip(lines, parsed, strict=True)
        ]
    )
    shape = _shapes.get(key)
    if shape is None:
        if len(_shapes) >= _MOST_SHAPES:
            del _shapes[next(iter(_shapes))]
        shape = _shapes[key] = ReplyShape(key)
    for raw, line in zip(lines, parsed, strict=True):
        if len(raw) <= _MOST_REMEMBERED_BYTES and line.name.lower() not in _OWN_NAMES:
            _remember(raw, line)
    own = [parsed[at] for at in shape.own_at]
    lengths = [line.length for line in own if line.length is not None]
    # Leave the head to llhttp if an own line has the name of a shared line.  The order of lines with one name matters
    # (RFC 9110 section 5.3), but own lines are moved to the end.
    if len(lengths) + shape.is_chunked > 1 or any(line.name in shape.headers for line in own):
        return None
    return shape, own, lengths[0] if lengths else None


def _remember(raw: bytes, line: FieldLine) -> None:
    if raw not in _lines:
        if len(_lines) >= _MOST_LINES:
            del _lines[next(iter(_lines))]
        _lines[raw] = line


def keeps_alive(version: str, headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> bool:
    """Return whether the connection stays open after a reply (RFC 9112 section 9.3)."""
    options = {word.strip().lower() for line in headers.getall("Connection", ()) for word in line.split(",")}
    return "close" not in options and (version == "1.1" or "keep-alive" in options)
