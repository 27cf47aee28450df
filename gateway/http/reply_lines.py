"""The lines of a reply's head, one by one: status line and fields, as strict as llhttp, and cached.

An origin's replies share most of their lines, so a parsed line is remembered with its meaning.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from multidict import istr

from gateway.protocol.forwarded_headers import HOP_BY_HOP
from gateway.protocol.names import SSE_TYPE, media_type

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_MOST_REMEMBERED_BYTES: Final = 512
"""Bound on a cached line.  The names that an origin exposes to browsers take 300."""
_MOST_LINES: Final = 4_096
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
"""Interned names of common fields, so that a reply does not allocate them."""

Kinds = int
"""The meaning of a head's fields for its connection: a sum of bits."""
PLAIN: Final[Kinds] = 0
HAS_LENGTH: Final[Kinds] = 1
FOR_CONNECTION: Final[Kinds] = 2
"""It has Connection."""
UNUSUAL: Final[Kinds] = 4
"""Its framing is not a length that llhttp need not look at: Transfer-Encoding, Upgrade, or an unusual length."""
NOT_AS_IS: Final[Kinds] = 8
"""It has a field that is not passed on to a client in the same line."""
_KINDS: Final = {
    **dict.fromkeys((*HOP_BY_HOP, "cache-status", "location", "via"), NOT_AS_IS),
    "connection": FOR_CONNECTION | NOT_AS_IS,
    "transfer-encoding": UNUSUAL,
    "upgrade": UNUSUAL,
}


FieldLine = tuple[tuple[str, str], Kinds, int | None]
"""A field, its meaning for the connection, and the value of a Content-Length."""

_READ_NAMES: Final = frozenset({*_KINDS, "content-length", "content-type"})
_PLAIN_NAMES: Final = {spelling: name for spelling, name in NAMES.items() if name.lower() not in _READ_NAMES}
"""Names of fields whose values mean nothing to the connection."""
_UNIQUE_NAMES: Final = frozenset({"Stream-Next-Offset"})
"""Names of fields whose values differ from reply to reply: their lines are not worth remembering."""


@lru_cache(64)
def status_line_of(line: bytes) -> tuple[int, str] | None:
    """Status and reason of a final reply's first line; None if the line is unusual."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (int(found[1]), found[2].decode("utf-8", "surrogateescape"))


def _field_line(line: bytes) -> FieldLine | None:
    raw_name, colon, raw_value = line.partition(b": ")
    plain = _PLAIN_NAMES.get(raw_name) if colon else None
    if plain is not None and raw_value.isascii():
        value = raw_value.decode()
        if value.isprintable() and value.strip(" ") == value:
            return (plain, value), PLAIN, None
    found = _FIELD_LINE.fullmatch(line)
    if found is None:
        return None
    raw_name, raw_value = found.groups()
    name, value = NAMES.get(raw_name) or raw_name.decode(), raw_value.decode("utf-8", "surrogateescape")
    lower = name.lower()
    kinds = _KINDS.get(lower, PLAIN)
    if line != b"%b: %b" % (raw_name, raw_value) or (lower == "content-type" and media_type(value) == SSE_TYPE):
        kinds |= NOT_AS_IS
    if lower != "content-length":
        return (name, value), kinds, None
    if _LENGTH.fullmatch(value) is None:
        return (name, value), UNUSUAL, None
    return (name, value), kinds | HAS_LENGTH, int(value)


LINES: Final[dict[bytes, FieldLine]] = {}
"""Field lines that were parsed lately, for a look before `field_line` is called; the oldest of many is dropped."""


def field_line(line: bytes) -> FieldLine | None:
    """Parse a field line, and remember it; None if it is not valid."""
    parsed = _field_line(line)
    if parsed is not None and len(line) <= _MOST_REMEMBERED_BYTES and parsed[0][0] not in _UNIQUE_NAMES:
        if len(LINES) >= _MOST_LINES:
            del LINES[next(iter(LINES))]
        LINES[line] = parsed
    return parsed
