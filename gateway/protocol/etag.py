"""Entity tags: the gateway's own tags, and the stream identity in an origin's tags (sections 5.6, 8.1; RFC 9110 section
8.8.3).

Origins differ: some leave the stream's identity out of their ETags, some leave out whether the stream is closed.  The
gateway therefore makes its own tags, `"<incarnation>:<start>:<end>[:c]"`.  The incarnation identifies one life of the
stream.  A re-created stream therefore has other tags for the same URL, offsets and length.  Closing a stream changes
the tag although it adds no bytes.  For a read from the start sentinel, the start in the tag includes the size of the
body, which a trim changes (`gateway.engine.response_heads`).

A compressed body is another representation, and its tag ends in the coding: `"<incarnation>:<start>:<end>[:c]:gzip"`.
`without_codings` removes the codings from a client's If-None-Match, so that tags can be compared without regard to
codings.

An answer is a 304 if `matches` returns that the client has the representation already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDict

from gateway.protocol.coding import AcceptedCodings, Coding

_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\U0010ffff]*")')
_SEPARATOR: Final = re.compile(r"[ \t]*(?:,[ \t]*)+")
_UNSAFE: Final = str.maketrans({"%": "%25", '"': "%22", ":": "%3A"})
_PLAIN: Final = re.compile(r'[^%":]*')
"""Text that needs no escaping."""


LONGEST_LIST: Final = 1_024
"""The longest If-None-Match with several tags that is read, in characters.  Caches list the tags of a few variants."""


def readable(if_none_match: str | None) -> str | None:
    """Return the field, or None if it is a list longer than `LONGEST_LIST`.

    The bound is needed because a header section has room for 10,000 tags.  If the field is ignored, the client gets the
    bytes, which is always correct (RFC 9110 section 13.1.2).
    """
    is_long = if_none_match is not None and len(if_none_match) > LONGEST_LIST and "," in if_none_match
    return None if is_long else if_none_match


def mint(incarnation: str, start: str, end: str, is_closed: bool) -> str:
    """Return the quoted strong tag for the bytes from `start` to `end`.

    `is_closed` states that the stream is closed and ends at `end`.  Quotes and colons in the parts are percent-encoded:
    a quote would end the tag, and a colon could make two positions look alike.  Clients compare tags and never parse
    them.
    """
    mark = ":c" if is_closed else ""
    if _PLAIN.fullmatch(f"{incarnation}{start}{end}") is None:
        incarnation, start, end = (part.translate(_UNSAFE) for part in (incarnation, start, end))
    return f'"{incarnation}:{start}:{end}{mark}"'


def names(etag: str, incarnation: str) -> bool:
    """Return whether this tag was made for this incarnation."""
    return etag.removeprefix("W/").startswith(f'"{incarnation.translate(_UNSAFE)}:')


def not_modified(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Turn the headers of a 200 into the headers of a 304.  Changes and returns `headers`."""
    headers.popall("Content-Type", None)
    return headers


def matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether If-None-Match contains `etag` or `*`, compared weakly (RFC 9110 section 13.1.2).

    A malformed field matches nothing, so the client gets the bytes.  The caller must join several field lines by
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


def of_coding(etag: str, coding: Coding) -> str:
    """Return the tag of the same bytes in this content coding."""
    return f'{etag[:-1]}:{coding.value}"'


def without_codings(if_none_match: str | None, accepted: AcceptedCodings) -> str | None:
    """Return the field with each coding's tag replaced by the tag of the uncompressed bytes.

    Tags of codings that the client does not accept are dropped.  For example, a cache may list the tags of all its
    variants in a request for a client without gzip.  A 304 for the gzip tag would then make the cache serve gzip to
    that client.
    """
    if if_none_match is None or not accepted.codings:
        return if_none_match
    kept: list[str] = []
    text = if_none_match.strip(" \t,")
    position = 0
    while position < len(text):
        tag = _TAG.match(text, position)
        if tag is None:
            return if_none_match
        position = tag.end()
        if (separator := _SEPARATOR.match(text, position)) is not None:
            position = separator.end()
        elif position < len(text):
            return if_none_match
        coding = _coding_of(tag[1])
        if coding is not None and coding in accepted.codings:
            kept.append(f'{tag[1][: -len(coding.value) - 2]}"')
        elif coding is None and accepted.accepts_identity:
            kept.append(tag[1])
    return ", ".join(kept) or None


def _coding_of(tag: str) -> Coding | None:
    mark = tag.rpartition(":")[2][:-1]
    return next((coding for coding in Coding if mark == coding.value), None)


def matched_coding(if_none_match: str | None, etag: str, accepted: AcceptedCodings) -> Coding | None:
    """Return the coding of a tag in If-None-Match that belongs to the bytes of `etag`.  If there are several such tags,
    the client's best coding is preferred.  None if only the plain tag or `*` matches.
    """
    if if_none_match is None or if_none_match.strip(" \t,") == "*":
        return None
    ranked = sorted(accepted.codings, key=lambda coding: (coding is not accepted.best, coding.value))
    return next((coding for coding in ranked if matches(if_none_match, of_coding(etag, coding))), None)


def stream_identity(headers: Mapping[str, str], start: str, end: str) -> str | None:
    """Return the `<id>` of an ETag of the form `"<id>:<start>:<end>[:c]"` with exactly these offsets; None for other
    ETags.

    Two different ids prove two streams.  Equal ids prove nothing, because some origins use the path.  A reply with
    Cache-Status (RFC 9211) comes from a cache.  The id in such a reply may be the cache's own id, and may change when
    the cache drops the stream.
    """
    origin_etag = headers.get("ETag")
    if origin_etag is None or "Cache-Status" in headers:
        return None
    tag = origin_etag.strip().removeprefix("W/")
    position = f":{start}:{end}"
    for ending in (f'{position}"', f'{position}:c"'):
        if tag.endswith(ending) and tag.startswith('"'):
            return tag[1 : -len(ending)] or None
    return None
