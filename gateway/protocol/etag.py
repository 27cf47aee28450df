"""Entity tags: the gateway's own, and what an origin's can tell (sections 5.6, 8.1; RFC 9110 section 8.8.3).

Origins differ: one leaves the stream's identity out of its ETag, another the closure mark.  So the gateway mints
`"<incarnation>:<start>:<end>[:c]"` itself, where the incarnation names one life of one stream: the same URL, offsets
and length after delete and re-create give another tag, and closing changes the tag although it adds no bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\U0010ffff]*")')
_SEPARATOR: Final = re.compile(r"[ \t]*(?:,[ \t]*)+")
_UNSAFE: Final = str.maketrans({"%": "%25", '"': "%22", ":": "%3A"})


def mint(incarnation: str, start: str, end: str, is_closed: bool) -> str:
    """The quoted strong tag for the bytes from `start` to `end`.

    `is_closed` says that the stream is closed and ends at `end`.  A quote in an offset would end the tag and a colon
    would make two positions look like one, so both are percent-encoded; clients compare tags and never read them.
    """
    mark = ":c" if is_closed else ""
    return f'"{incarnation.translate(_UNSAFE)}:{start.translate(_UNSAFE)}:{end.translate(_UNSAFE)}{mark}"'


def matches(if_none_match: str | None, etag: str) -> bool:
    """Whether an If-None-Match names `etag`: a list compared weakly, or `*` (RFC 9110 section 13.1.2).

    A malformed field matches nothing, so that the client gets the bytes.  For several field lines, pass them joined by
    commas.
    """
    if if_none_match is None:
        return False
    if if_none_match == etag:
        return True
    text = if_none_match.strip(" \t,")
    if text == "*":
        return True
    wanted = etag.removeprefix("W/")
    is_named = False
    position = 0
    while tag := _TAG.match(text, position):
        is_named = is_named or tag[1] == wanted
        position = tag.end()
        if position == len(text):
            return is_named
        if (separator := _SEPARATOR.match(text, position)) is None:
            return False
        position = separator.end()
    return False


def stream_identity(headers: Mapping[str, str], start: str, end: str) -> str | None:
    """The `<id>` of a reply's tag of the form `"<id>:<start>:<end>[:c]"` for exactly these offsets, else None.

    Two ids that differ prove two streams; equal ids prove nothing, because some origins use the path.  A reply with
    Cache-Status (RFC 9211) comes from a cache: the id may be the cache's own, as it is here, and change with what it
    remembers.
    """
    origin_etag = headers.get("ETag")
    if origin_etag is None or "Cache-Status" in headers:
        return None
    opaque = origin_etag.strip().removeprefix("W/")
    if len(opaque) < 2 or opaque[0] != '"' or opaque[-1] != '"':
        return None
    opaque = opaque[1:-1]
    position = f":{start}:{end}"
    for ending in (position, position + ":c"):
        if opaque.endswith(ending):
            return opaque[: -len(ending)] or None
    return None
