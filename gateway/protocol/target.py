"""Canonical request targets and host names, so that each stream has one key (RFC 3986 section 6.2.2, RFC 9112
section 3.2).

Spellings that every origin must treat alike become equal: unreserved characters are decoded, hex digits become upper
case, dot segments are removed, and query parameters are sorted by name.  Spellings that an origin may distinguish stay
different: `%2F` and `/`, `%2B` and `+`, `a` and `a=`, `//` and `/`.  An invalid target is refused with a one-line
message for the client.

A path that begins with `//` is refused.  This includes a path that begins with `//` only after dot segments or a prefix
have been removed.  An origin that resolves targets as URL references (the WHATWG's `new URL()`, RFC 3986 section 4.2)
reads `//x/s` as `/s` on the host `x`.  Such an origin would serve a stream that the gateway handles under another path,
so a client could bypass routes and rate limits.

The parameters `offset`, `live` and `cursor` are decoded and removed from the query, and each may appear once.  Names
are compared after decoding, so `%6Fffset` does not evade this rule.

Host names come from Host, `:authority`, absolute-form targets and SNI (RFC 3986 section 3.2.2).  The canonical name is
in lower case, without a port and without the trailing dot of a fully qualified name.  IPv6 addresses are in their
shortest form.  The canonical name selects routes and certificates.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from gateway.protocol.names import QUERY_CURSOR, QUERY_LIVE, QUERY_OFFSET
from gateway.tuples import make

_AUTHORITY: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_~.-]+))(?::[0-9]{0,5})?")
_LONGEST: Final = 255
"""The longest DNS name, in characters."""


class BadHost(ValueError):
    """The text is not a valid host.  The message is one line for the client."""


@lru_cache(maxsize=1_024)
def host_of(authority: str) -> str:
    """Return the canonical host of `host`, `host:port`, `[v6]` or `[v6]:port`, with brackets for IPv6.  Raises
    BadHost."""
    found = _AUTHORITY.fullmatch(authority) if len(authority) <= _LONGEST + 7 else None
    if found is None:
        raise BadHost("Invalid host")
    if (address := found["address"]) is not None:
        try:
            return f"[{ipaddress.IPv6Address(address)}]"
        except ValueError:
            raise BadHost("Invalid host") from None
    name = canonical_name(found["name"])
    if not name or name.startswith(".") or ".." in name or name.endswith("."):
        raise BadHost("Invalid host")
    return name


def canonical_name(name: str) -> str:
    """Return the canonical spelling of a host name."""
    return name.lower().removesuffix(".")


_PROTOCOL_NAMES: Final = (QUERY_OFFSET, QUERY_LIVE, QUERY_CURSOR)
_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
SEGMENT_SAFE: Final = "!$&'()*+,;=:@"
"""The delimiters that a path segment may contain unescaped (RFC 3986 section 3.3)."""

_PATH_SAFE: Final = "/" + SEGMENT_SAFE
_QUERY_SAFE: Final = "/?!$'()*+,;:@"

_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9\-_~/!$&'()*+,;=:@]*")
"""Matches a path that is already canonical: without escapes, and without dots that could form a dot segment."""
_PLAIN_OFFSET: Final = re.compile(rf"{QUERY_OFFSET}=([A-Za-z0-9\-_.~]*)")
"""Matches the query of most catch-up reads: only an offset, without escapes."""
_UNRESERVED_TEXT: Final = re.compile(r"[A-Za-z0-9\-_.~]*")
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_CONTROL: Final = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff])")
_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_ABSOLUTE: Final = re.compile(r"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)(.*)", re.DOTALL)


_DELIMITER: Final = re.compile("%(?:2[146-9A-C]|3[ABD]|40)")
"""Matches an escaped character of `SEGMENT_SAFE`."""


_RESERVED: Final = re.compile("(?:/|%2F|%5C)__ds(?:[/;]|%(?:2F|5C|3B)|$)")
"""Matches the path that the protocol reserves for its subscriptions.  Some origins read escaped slashes, and
backslashes, as slashes, and ignore what follows a semicolon."""


class BadTarget(ValueError):
    """The request target is invalid.  The message is one line for the client."""


class Target(NamedTuple):
    """A request target in canonical form.

    `path` and `query` (the other parameters, sorted by name) are percent-encoded.  `offset`, `live` and `cursor` are
    decoded.  Each of them is None if absent, and `""` if empty.  `authority` is the authority of an absolute-form
    target, in lower case.  It replaces the Host header (RFC 9112 section 3.2.2).
    """

    path: str
    query: str
    offset: str | None
    live: str | None
    cursor: str | None
    authority: str | None = None


def parse_target(raw: str) -> Target:
    """Parse the target of a request line, in origin-form or absolute-form.  Raises `BadTarget`."""
    authority = None
    if not raw.startswith("/"):
        absolute = _ABSOLUTE.fullmatch(raw)
        if absolute is None:
            raise BadTarget("Invalid request target")
        try:
            host_of(absolute[1])
        except BadHost:
            raise BadTarget("Invalid host in request target") from None
        authority = absolute[1].lower()
        raw = absolute[2]
    path, question_mark, query = raw.partition("?")
    if _PLAIN_PATH.fullmatch(path) is None:
        path = _canonical_path(path)
    if path.startswith("//"):
        check_path(path)
    if not question_mark:
        return Target(path, "", None, None, None, authority)
    if (plain := _PLAIN_OFFSET.fullmatch(query)) is not None:
        return make(Target, (path, "", plain[1], None, None, authority))
    parameters, others = _split_query(query)
    return Target(
        path, others, parameters.get(QUERY_OFFSET), parameters.get(QUERY_LIVE), parameters.get(QUERY_CURSOR), authority
    )


def check_path(path: str) -> None:
    """Raise `BadTarget` if some origins would read the beginning of this canonical path as an authority."""
    if path.startswith("//"):
        raise BadTarget("The path of a request must not begin with two slashes")


def is_reserved(path: str) -> bool:
    """Return whether some origins may read this canonical path as one that the protocol reserves (`__ds`).  No path
    under it is a stream."""
    return "__ds" in path and _RESERVED.search(path) is not None


def unescaped_delimiters(path: str) -> str:
    """Return a canonical path without unnecessary escapes, for origins that treat both spellings alike."""
    return _DELIMITER.sub(lambda found: chr(int(found[0][1:], 16)), path) if "%" in path else path


def upstream_query(target: Target, *, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
    """Return the query for a request to the origin: these protocol parameters and the target's other parameters, sorted
    by name.

    A parameter that is None is left out.  The parameters are sorted, because caches between gateway and origin use the
    query as key (section 8.1).
    """
    if offset is not None and live is None and cursor is None and not target.query:
        return f"{QUERY_OFFSET}={_escaped(offset)}"
    parameters = [
        f"{name}={_escaped(value)}"
        for name, value in ((QUERY_CURSOR, cursor), (QUERY_LIVE, live), (QUERY_OFFSET, offset))
        if value is not None
    ]
    if not target.query:
        return "&".join(parameters)
    return "&".join(sorted(parameters + target.query.split("&"), key=_name_of))


def _escaped(value: str) -> str:
    return value if _UNRESERVED_TEXT.fullmatch(value) else quote(value, safe="")


def _name_of(pair: str) -> str:
    return pair.partition("=")[0]


def _canonical(text: str, safe: str) -> str:
    """Return the text with unreserved characters decoded, other escapes in upper case and unsafe characters escaped."""

    def respell(match: re.Match[str]) -> str:
        character = chr(int(match[0][1:], 16))
        return character if character in _UNRESERVED else match[0].upper()

    if "%" in text:
        text = _PERCENT.sub(respell, text)
    # Raw bytes above ASCII are escaped as received.  The server represents undecodable bytes as lone surrogates.
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
        # Encoded control characters are legal in a query value, where text with newlines is common.  In a path, they
        # are only used for attacks on logs or headers.
        raise BadTarget("Control character in request target")
    return _without_dot_segments(_canonical(path, _PATH_SAFE)) if path else "/"


def _without_dot_segments(path: str) -> str:
    """Remove dot segments (RFC 3986 section 5.2.4) from a path that begins with a slash."""
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
    """Return the protocol's parameters, decoded, and the other parameters in canonical form."""
    _check(query)
    parameters: dict[str, str] = {}
    others: list[str] = []
    # Canonicalise the query as a whole, because it may have thousands of parameters.  Escaped delimiters stay escaped.
    for pair in _canonical(query, _QUERY_SAFE + "&=").split("&"):
        name, _, value = pair.partition("=")
        if not pair:
            continue
        if name in _PROTOCOL_NAMES:
            if name in parameters:
                raise BadTarget(f"Multiple {name} parameters not allowed")
            parameters[name] = _decoded(name, value)
        else:
            others.append(pair)
    if len(others) > 1:
        others.sort(key=_name_of)
    return parameters, "&".join(others)


def _decoded(name: str, value: str) -> str:
    """Decode a parameter.  A plus is a space, as in all origins that parse queries as form data."""
    if "%" not in value and "+" not in value and value.isascii():
        return value
    try:
        return unquote_to_bytes(value.replace("+", " ").encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise BadTarget(f"Parameter {name} is not valid UTF-8") from None


def authority_of(target: str) -> str | None:
    """Return the authority of an absolute-form target, as received but in lower case.  Returns None for other forms."""
    found = _ABSOLUTE.fullmatch(target)
    return found[1].lower() if found is not None else None


def without_authority(target: str) -> str:
    """Return the target as received, without scheme and authority (RFC 9112 section 3.2.2).

    The authority is removed because it may contain a password.
    """
    if target.startswith("/") or "://" not in target:
        return target
    return "/" + target.partition("://")[2].partition("/")[2]
