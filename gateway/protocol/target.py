"""The request target in one spelling, so that one stream has one key (RFC 3986 section 6.2.2, RFC 9112 section 3.2).

Two spellings that every origin must take for the same become the same text: unreserved characters are decoded, hex is
upper case, dot segments are gone, other parameters are sorted by name.  Two that an origin may tell apart stay apart:
`%2F` and `/`, `%2B` and `+`, `a` and `a=`, `//` and `/`.  What is no valid target is refused with a line fit for the
client.

`offset`, `live` and `cursor` are taken out of the query, decoded; each may come once.  Names are compared
after decoding, so `%6Fffset` is no way around that rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gateway.protocol.names import QUERY_CURSOR, QUERY_LIVE, QUERY_OFFSET

_PROTOCOL_NAMES: Final = (QUERY_OFFSET, QUERY_LIVE, QUERY_CURSOR)
_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PATH_SAFE: Final = "/!$&'()*+,;=:@"
_QUERY_SAFE: Final = "/?!$'()*+,;:@"

_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9\-_~/!$&'()*+,;=:@]*")
"""A path that is canonical as it stands: nothing encoded, no dot that could be a segment."""
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_CONTROL: Final = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff])")
_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_ABSOLUTE: Final = re.compile(r"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)(.*)", re.DOTALL)
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~]+)(?::[0-9]*)?")


class BadTarget(ValueError):
    """The request target is not one that any stream has; the message is one line fit for the client."""


@dataclass(frozen=True, slots=True)
class Target:
    """A request target in canonical form.

    `path` and `query` (the other parameters, sorted by name) are percent-encoded; `offset`, `live` and `cursor` are
    decoded, None when absent and `""` when sent empty.  `authority` is that of an absolute-form target, lower case,
    which takes the place of the Host header (RFC 9112 section 3.2.2).
    """

    path: str
    query: str
    offset: str | None
    live: str | None
    cursor: str | None
    authority: str | None = None


def parse_target(raw: str) -> Target:
    """Read a request line's target, in origin-form or absolute-form.  Raises `BadTarget`."""
    authority = None
    if not raw.startswith("/"):
        absolute = _ABSOLUTE.fullmatch(raw)
        if absolute is None:
            raise BadTarget("Invalid request target")
        authority = absolute[1].lower()
        if _AUTHORITY.fullmatch(authority) is None:
            raise BadTarget("Invalid host in request target")
        raw = absolute[2]
    path, question_mark, query = raw.partition("?")
    if _PLAIN_PATH.fullmatch(path) is None:
        path = _canonical_path(path)
    if not question_mark:
        return Target(path, "", None, None, None, authority)
    own, others = _split_query(query)
    return Target(path, others, own.get(QUERY_OFFSET), own.get(QUERY_LIVE), own.get(QUERY_CURSOR), authority)


def upstream_query(target: Target, *, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
    """The query to ask the origin with: these protocol parameters and the target's others, sorted by name.

    Sorted because caches between here and the origin key on the text (section 8.1).  None leaves a parameter out.
    """
    own = [
        f"{name}={quote(value, safe='')}"
        for name, value in ((QUERY_CURSOR, cursor), (QUERY_LIVE, live), (QUERY_OFFSET, offset))
        if value is not None
    ]
    if not target.query:
        return "&".join(own)
    return "&".join(sorted(own + target.query.split("&"), key=_name_of))


def _name_of(pair: str) -> str:
    return pair.partition("=")[0]


def _canonical(text: str, safe: str) -> str:
    """One spelling per text: unreserved characters decoded, other escapes in upper case, everything unsafe escaped."""

    def respell(match: re.Match[str]) -> str:
        character = chr(int(match[0][1:], 16))
        return character if character in _UNRESERVED else match[0].upper()

    if "%" in text:
        text = _PERCENT.sub(respell, text)
    # Raw bytes above ASCII are escaped as they came; the server hands undecodable ones over as lone surrogates.
    return quote(text.encode("utf-8", "surrogateescape"), safe=safe + "%")


def _check(text: str) -> None:
    if _CONTROL.search(text):
        raise BadTarget("Control character in request target")
    if "#" in text:
        raise BadTarget("Fragment in request target")
    if _BAD_PERCENT.search(text):
        raise BadTarget("Invalid percent-encoding in request target")


def _canonical_path(path: str) -> str:
    _check(path)
    if _ENCODED_CONTROL.search(path):
        # Legal in a query value, where text with newlines travels; in a path it is only ever an attack on a log or
        # header.
        raise BadTarget("Control character in request target")
    return _without_dot_segments(_canonical(path, _PATH_SAFE)) if path else "/"


def _without_dot_segments(path: str) -> str:
    """RFC 3986 section 5.2.4, for a path that begins with a slash."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _split_query(query: str) -> tuple[dict[str, str], str]:
    """The protocol's parameters, decoded, and the canonical text of the others."""
    _check(query)
    own: dict[str, str] = {}
    others: list[str] = []
    for pair in query.split("&"):
        if not pair:
            continue
        name, equals, value = pair.partition("=")
        if name not in _PROTOCOL_NAMES:
            name = _canonical(name, _QUERY_SAFE)
        if name in _PROTOCOL_NAMES:
            if name in own:
                raise BadTarget(f"Multiple {name} parameters not allowed")
            own[name] = _decoded(name, value)
        else:
            others.append(name + equals + _canonical(value, _QUERY_SAFE + "="))
    if len(others) > 1:
        others.sort(key=_name_of)
    return own, "&".join(others)


def _decoded(name: str, value: str) -> str:
    """A parameter's text.  A plus is a space, as it is to every origin that reads queries the way forms are sent."""
    if "%" not in value and "+" not in value:
        return value
    try:
        return unquote_to_bytes(value.replace("+", " ")).decode("utf-8")
    except UnicodeDecodeError:
        raise BadTarget(f"Parameter {name} is not valid UTF-8") from None


def without_authority(target: str) -> str:
    """A request target as it came, but for scheme and authority, where a password may be (RFC 9112 §3.2.2)."""
    if target.startswith("/") or "://" not in target:
        return target
    return "/" + target.partition("://")[2].partition("/")[2]
