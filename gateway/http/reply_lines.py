"""Lines of an origin's reply head: status line and fields, as strict as llhttp, and cached."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from multidict import istr

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_MOST_REMEMBERED_BYTES: Final = 512
"""Bound on a cached line.  The names that an origin exposes to browsers take 300."""
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


@lru_cache(64)
def status_line_of(line: bytes) -> tuple[int, str] | None:
    """Status and reason of a final reply's first line; None if the line is unusual."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (int(found[1]), found[2].decode("utf-8", "surrogateescape"))


def _field(line: bytes) -> tuple[str, str] | None:
    """Name and value of a field line; None if it is not valid."""
    found = _FIELD_LINE.fullmatch(line)
    if found is None:
        return None
    name, value = found.groups()
    return NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape")


_cached_field: Final = lru_cache(4_096)(_field)


def reply_field(line: bytes) -> tuple[str, str] | None:
    """Name and value of a field line; None if it is not valid.  Cached, because an origin's replies share most of their
    lines."""
    return _cached_field(line) if len(line) <= _MOST_REMEMBERED_BYTES else _field(line)
