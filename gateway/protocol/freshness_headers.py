"""Header parsing for freshness: Cache-Control, a stream's lifetime, dates, and surrogate keys.

The module only parses, and makes no decisions about streams.  Ambiguous headers are interpreted cautiously: a directive
that forbids something takes effect if it is present in any form.  No header raises an exception, however malformed.

A surrogate key is a tag for a group of content that is purged together.  Keys are separated by spaces in
`Surrogate-Key` (Fastly, Varnish's xkey) and by commas in `Cache-Tag` (Cloudflare, Akamai), and compared byte for byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy, MultiMapping

from gateway.protocol.names import STREAM_EXPIRES_AT, STREAM_TTL

_MAX_DELTA_S: Final = 31_536_000

MAX_TTL_S: Final = 2**53 - 1
"""The largest TTL in seconds, 285 million years.  Longer TTLs are clamped to it."""

_DIRECTIVE: Final = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"
    r'(?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,;"]*)))?'
)
_TTL: Final = re.compile(r"0|[1-9][0-9]*")
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)

CacheControl = Mapping[str, str | None]
"""Directive names in lower case with their values; None for a directive without a value."""


_LONGEST_DATE: Final = 64

LONGEST_CACHE_CONTROL: Final = 4_096
"""The longest Cache-Control that is parsed, in characters."""
_UNREAD: Final[CacheControl] = MappingProxyType({"no-store": None, "private": None, "no-transform": None})
"""The directives assumed for a Cache-Control that is too long to be parsed."""


def parse_cache_control(values: str | None) -> CacheControl:
    """Parse a Cache-Control field (several lines joined by commas) into a read-only mapping.

    A field longer than `LONGEST_CACHE_CONTROL` is not parsed, and has the effect of a field that forbids everything.
    """
    return _UNREAD if len(values or "") > LONGEST_CACHE_CONTROL else _parse_cache_control(values)


@lru_cache(maxsize=256)
def _parse_cache_control(values: str | None) -> CacheControl:
    """Parse a field of any length.

    The first of two equal directives counts (RFC 9111 section 4.2.1).  Text that does not parse is skipped up to the
    next comma.
    """
    directives: dict[str, str | None] = {}
    text = values or ""
    position = 0
    while position < len(text):
        found = _DIRECTIVE.match(text, position)
        if found is not None:
            value = found["quoted"] if found["quoted"] is not None else found["bare"]
            directives.setdefault(found["name"].lower(), value)
            position = found.end()
        comma = text.find(",", position)
        if comma < 0:
            break
        position = comma + 1
    return MappingProxyType(directives)


def forbids_storing(cache_control: CacheControl | str | None) -> bool:
    """Return whether a shared cache must not store the reply, because of `no-store` or `private` (with or without field
    names).
    """
    if cache_control is None or isinstance(cache_control, str):
        return _forbids_storing(cache_control)
    return _forbidding(cache_control)


@lru_cache(maxsize=256)
def _forbids_storing(cache_control: str | None) -> bool:
    return _forbidding(parse_cache_control(cache_control))


def _forbidding(directives: CacheControl) -> bool:
    return "no-store" in directives or "private" in directives


class Freshness(NamedTuple):
    """The seconds for which a reply may be reused: `fresh_s` without a request to the origin, then `stale_s` while it
    is revalidated."""

    fresh_s: float = 0.0
    stale_s: float = 0.0


def freshness_from_headers(headers: Mapping[str, str]) -> Freshness:
    """Return how long a shared cache may reuse a reply, by Cache-Control and Age (RFC 9111 section 4.2, RFC 5861
    section 3).

    Zero if the reply states no freshness.  Heuristic freshness (RFC 9111 section 4.2.2) does not suit content that may
    change at any time.  `headers` is case-insensitive.
    """
    text = (
        ", ".join(headers.getall("Cache-Control", ()))
        if isinstance(headers, MultiMapping)
        else headers.get("Cache-Control")
    )
    directives = parse_cache_control(text or None)
    if forbids_storing(directives) or "no-cache" in directives:
        return Freshness()
    lifetime_s = stated_lifetime(directives) if _is_stated(directives) else 0.0
    age_s = age_from_headers(headers)
    stale_s = stated_stale(directives)
    return Freshness(max(0.0, lifetime_s - age_s), max(0.0, stale_s - max(0.0, age_s - lifetime_s)))


def _is_stated(directives: CacheControl) -> bool:
    return "s-maxage" in directives or "max-age" in directives


def stated_lifetime(directives: CacheControl) -> float:
    """Return how long a shared cache may reuse a reply with these directives, in seconds (RFC 9111 section 4.2.1).

    0 if the reply must be revalidated each time.  inf if the directives do not state a lifetime.
    """
    if "no-cache" in directives:
        return 0.0
    if not _is_stated(directives):
        return math.inf
    return _seconds(directives.get("s-maxage" if "s-maxage" in directives else "max-age"))


def forbids_stale(directives: CacheControl) -> bool:
    """Return whether a shared cache must not reuse a stale reply (RFC 9111 section 4.2.4)."""
    return not {"must-revalidate", "proxy-revalidate", "s-maxage"}.isdisjoint(directives)


def stated_stale(directives: CacheControl) -> float:
    """Return the seconds for which a stale reply may be reused while it is revalidated (RFC 5861 section 3)."""
    return 0.0 if forbids_stale(directives) else _seconds(directives.get("stale-while-revalidate"))


class Reuse(NamedTuple):
    """How a reply's bytes may be reused, by its Cache-Control."""

    lifetime_s: float
    """The seconds for which the reply may be reused (`stated_lifetime`)."""
    stale_s: float
    """The seconds for which a stale reply may be reused while it is revalidated (`stated_stale`)."""
    forbids_stale: bool
    is_verbatim: bool
    """Whether the bytes must not be compressed (`no-transform`, RFC 9111 section 5.2.2.6)."""


def stated_reuse(directives: CacheControl) -> Reuse:
    """Return how a reply's bytes may be reused under these directives."""
    return Reuse(
        stated_lifetime(directives), stated_stale(directives), forbids_stale(directives), "no-transform" in directives
    )


def age_from_headers(headers: Mapping[str, str]) -> float:
    """Return the seconds that a reply has spent in caches, by its Age (RFC 9111 section 5.1); 0 if there is none."""
    age = headers.get("Age")
    return _seconds(age) if age is not None else 0.0


def requested_max_age(cache_control: str | None) -> float | None:
    """Return the greatest age, in seconds, of a cached answer that a client accepts (RFC 9111 section 5.2.1).

    0 for `no-cache`; None if the client states no age, or if the directive is malformed.
    """
    directives = parse_cache_control(cache_control)
    if directives is _UNREAD:
        return None
    if "no-cache" in directives:
        return 0.0
    value = directives.get("max-age")
    return _seconds(value) if value is not None and value.isascii() and value.isdigit() else None


def _seconds(text: str | None) -> float:
    """Parse delta-seconds (RFC 9111 section 1.2.2), at most a year; 0 if absent or malformed."""
    if text is None or not text.isascii() or not text.isdigit():
        return 0.0
    return float(min(int(text[:9]), _MAX_DELTA_S))


def parse_ttl(header: str | None) -> int | None:
    """Parse Stream-TTL in seconds, by the grammar of Durable Streams section 5.1: decimal, no sign, no leading zero.
    Returns None if the value is invalid."""
    if header is None:
        return None
    text = header.strip(" \t")
    if _TTL.fullmatch(text) is None:
        return None
    return MAX_TTL_S if len(text) > 16 else min(int(text), MAX_TTL_S)


def parse_expires_at(header: str | None) -> float | None:
    """Parse Stream-Expires-At, an RFC 3339 date-time, into Unix seconds; None if it is absent or invalid."""
    if header is None:
        return None
    found = _RFC3339.fullmatch(header.strip(" \t"))
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = found.groups()[6:]
    zone = UTC
    if sign is not None:
        if int(offset_hours) > 23 or int(offset_minutes) > 59:
            return None
        offset = timedelta(hours=int(offset_hours), minutes=int(offset_minutes))
        zone = timezone(-offset if sign == "-" else offset)
    # RFC 3339 allows leap seconds.  Unix time has none, so a leap second counts as the second after :59.
    is_leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, 59 if is_leap else second, tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None
    return moment + (1.0 if is_leap else 0.0) + (float(f"0{fraction}") if fraction else 0.0)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A stream's lifetime from its headers: a TTL in seconds, an expiry in Unix seconds, both or neither."""

    ttl_s: int | None
    expires_at: float | None


def lifetime_from_headers(headers: Mapping[str, str]) -> Lifetime:
    """Parse the lifetime in the headers of a PUT or HEAD; `headers` is case-insensitive or spelled as in the
    protocol."""
    return Lifetime(parse_ttl(headers.get(STREAM_TTL)), parse_expires_at(headers.get(STREAM_EXPIRES_AT)))


def lifetime_here(lifetime: Lifetime, answer: Mapping[str, str], asked_at: float, answered_at: float) -> Lifetime:
    """Return the lifetime by this machine's clock, which may differ from the origin's clock.

    `answer` is the header section with the origin's Date.  Its request was sent at `asked_at` and answered at
    `answered_at` (Unix seconds by this machine's clock).

    The lifetime is corrected only by the clock difference that the exchange proves (RFC 9111 section 4.2.3).  The
    resulting expiry is never too late.  It may be too early by up to a second plus the duration of the exchange.

    An expiry before the request (by the origin's clock) cannot be right, because the origin still serves the stream.
    Such an expiry is interpreted by this machine's clock.  If the expiry is also in the past by this clock, it counts
    as unknown.
    """
    expires_at = lifetime.expires_at
    if expires_at is None:
        return lifetime
    date = date_from_headers(answer)
    if date is not None:
        date += age_from_headers(answer)
        # The origin wrote its Date, truncated to whole seconds, during the exchange.
        least_ahead_s, most_ahead_s = date - answered_at, date + 1 - asked_at
        if not least_ahead_s <= 0 <= most_ahead_s and expires_at - least_ahead_s > asked_at:
            return Lifetime(lifetime.ttl_s, max(asked_at, expires_at - most_ahead_s))
    return lifetime if expires_at > asked_at else Lifetime(lifetime.ttl_s, None)


def date_from_headers(headers: Mapping[str, str]) -> float | None:
    """Parse Date (RFC 9110 section 6.6.1) into Unix seconds; None if it is absent or malformed."""
    text = headers.get("Date", "")
    if not 0 < len(text) <= _LONGEST_DATE:
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


SURROGATE_KEY: Final = "Surrogate-Key"
CACHE_TAG: Final = "Cache-Tag"
_NO_KEYS: Final[frozenset[str]] = frozenset()


def surrogate_keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> frozenset[str]:
    """Return all surrogate keys in a reply's headers."""
    if SURROGATE_KEY not in headers and CACHE_TAG not in headers:
        return _NO_KEYS
    return frozenset(_keys(headers))


def _keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> Iterator[str]:
    for line in headers.getall(SURROGATE_KEY, ()):
        yield from line.split()
    for line in headers.getall(CACHE_TAG, ()):
        for tag in line.split(","):
            if tag := tag.strip():
                yield tag


_FOR_SHARED: Final = ("public", "s-maxage", "proxy-revalidate", "private")
_TARGETED: Final = (
    "CDN-Cache-Control",
    "Surrogate-Control",
    "Cloudflare-CDN-Cache-Control",
    "Netlify-CDN-Cache-Control",
    "Vercel-CDN-Cache-Control",
    "Edge-Control",
    "X-Accel-Expires",
    "Expires",
)
"""Fields that some caches use instead of Cache-Control."""


def keep_private(headers: CIMultiDict[str], varied: Sequence[str]) -> None:
    """Change an answer's headers so that only private caches may store it, because it depends on a credential.

    A private cache may repeat the answer only for equal values of the `varied` request headers (RFC 9111 sections 4.1
    and 5.2.2.7, RFC 9213).
    """
    said = ", ".join(headers.popall("Cache-Control", ()))
    directives = parse_cache_control(said)
    if "no-store" in directives:
        kept = [said] if len(said) <= LONGEST_CACHE_CONTROL else ["no-store"]
    else:
        others = ((name, value) for name, value in directives.items() if name not in _FOR_SHARED)
        kept = ["private", *(name if value is None else f"{name}={_value(value)}" for name, value in others)]
    headers["Cache-Control"] = ", ".join(kept)
    for name in _TARGETED:
        headers.popall(name, None)
    named = {name.strip().lower() for line in headers.getall("Vary", ()) for name in line.split(",")}
    if "*" not in named:
        for name in varied:
            if name.lower() not in named:
                headers.add("Vary", name)


def _value(text: str) -> str:
    return text if text.isalnum() else f'"{text}"'
