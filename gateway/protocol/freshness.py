"""Whether and how long an origin's reply may be kept: Cache-Control, and the stream's own lifetime.

Pure header parsing; the module makes no decision about a tape.  Ambiguous headers get the cautious reading: a
directive that is present in any form forbids.  No header, however malformed, raises.

Surrogate keys are an origin's names for groups of content that are purged together.  Keys are separated by spaces in
`Surrogate-Key` (Fastly, Varnish's xkey) and by commas in `Cache-Tag` (Cloudflare, Akamai).  They are compared byte for
byte.
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
"""The largest TTL, 285 million years; longer ones are clamped to it."""

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
"""The most characters of a Cache-Control that is read."""
_UNREAD: Final[CacheControl] = MappingProxyType({"no-store": None, "private": None, "no-transform": None})
"""The directives that a longer Cache-Control counts as."""


def parse_cache_control(values: str | None) -> CacheControl:
    """The directives of a Cache-Control field (several lines joined by commas), read-only.

    A field longer than `LONGEST_CACHE_CONTROL` is not read, and counts as one that forbids everything.
    """
    return _UNREAD if len(values or "") > LONGEST_CACHE_CONTROL else _parse_cache_control(values)


@lru_cache(maxsize=256)
def _parse_cache_control(values: str | None) -> CacheControl:
    """The directives of a field of any length.

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
    """Whether a shared cache must not store the reply: `no-store` or `private`, even if it names fields."""
    if cache_control is None or isinstance(cache_control, str):
        return _forbids_storing(cache_control)
    return _forbidding(cache_control)


@lru_cache(maxsize=256)
def _forbids_storing(cache_control: str | None) -> bool:
    return _forbidding(parse_cache_control(cache_control))


def _forbidding(directives: CacheControl) -> bool:
    return "no-store" in directives or "private" in directives


class Freshness(NamedTuple):
    """How long a reply may be reused, in seconds: first without asking the origin, then stale while it revalidates."""

    fresh_s: float = 0.0
    stale_s: float = 0.0


def freshness_from_headers(headers: Mapping[str, str]) -> Freshness:
    """The reuse that a reply's Cache-Control and Age allow a shared cache (RFC 9111 section 4.2, RFC 5861 section 3).

    Zero if the reply states no freshness: heuristics (RFC 9111 section 4.2.2) do not suit content that may change at
    any time.  `headers` is case-insensitive.
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
    """How long a shared cache may reuse a reply with these directives, in seconds (RFC 9111 section 4.2.1).

    0 if it has to be revalidated each time, inf if they do not say.
    """
    if "no-cache" in directives:
        return 0.0
    if not _is_stated(directives):
        return math.inf
    return _seconds(directives.get("s-maxage" if "s-maxage" in directives else "max-age"))


def forbids_stale(directives: CacheControl) -> bool:
    """Whether a shared cache must not reuse the reply once it is stale (RFC 9111 section 4.2.4)."""
    return not {"must-revalidate", "proxy-revalidate", "s-maxage"}.isdisjoint(directives)


def stated_stale(directives: CacheControl) -> float:
    """For how many seconds after its lifetime a reply may be reused while it is revalidated (RFC 5861 section 3)."""
    return 0.0 if forbids_stale(directives) else _seconds(directives.get("stale-while-revalidate"))


class Reuse(NamedTuple):
    """The reuse of a reply's bytes that its Cache-Control allows."""

    lifetime_s: float
    """As `stated_lifetime`."""
    stale_s: float
    """As `stated_stale`."""
    forbids_stale: bool
    is_verbatim: bool
    """Whether the bytes must not be coded (`no-transform`, RFC 9111 section 5.2.2.6)."""


def stated_reuse(directives: CacheControl) -> Reuse:
    """The reuse of a reply's bytes that these directives allow."""
    return Reuse(
        stated_lifetime(directives), stated_stale(directives), forbids_stale(directives), "no-transform" in directives
    )


def age_from_headers(headers: Mapping[str, str]) -> float:
    """Seconds that a reply has spent in caches, by its Age (RFC 9111 section 5.1); 0 if it does not say."""
    age = headers.get("Age")
    return _seconds(age) if age is not None else 0.0


def requested_max_age(cache_control: str | None) -> float | None:
    """The age in seconds up to which a client accepts a cached answer (RFC 9111 section 5.2.1): 0 for `no-cache`.

    None if the client does not say, or if the directive cannot be read.
    """
    directives = parse_cache_control(cache_control)
    if directives is _UNREAD:
        return None
    if "no-cache" in directives:
        return 0.0
    value = directives.get("max-age")
    return _seconds(value) if value is not None and value.isascii() and value.isdigit() else None


def _seconds(text: str | None) -> float:
    """Delta-seconds (RFC 9111 section 1.2.2), at most a year; 0 if absent or malformed."""
    if text is None or not text.isascii() or not text.isdigit():
        return 0.0
    return float(min(int(text[:9]), _MAX_DELTA_S))


def parse_ttl(header: str | None) -> int | None:
    """Seconds from Stream-TTL by the grammar of section 5.1 (decimal, no sign, no leading zero); else None."""
    if header is None:
        return None
    text = header.strip(" \t")
    if _TTL.fullmatch(text) is None:
        return None
    return MAX_TTL_S if len(text) > 16 else min(int(text), MAX_TTL_S)


def parse_expires_at(header: str | None) -> float | None:
    """Unix seconds from Stream-Expires-At, an RFC 3339 date-time with any fraction and offset; else None."""
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
    # RFC 3339 allows a leap second.  Unix time has none: it counts as the second after :59.
    is_leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, 59 if is_leap else second, tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None
    return moment + (1.0 if is_leap else 0.0) + (float(f"0{fraction}") if fraction else 0.0)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A stream's lifetime by its headers: a window in seconds, an absolute Unix time, both or neither."""

    ttl_s: int | None
    expires_at: float | None


def lifetime_from_headers(headers: Mapping[str, str]) -> Lifetime:
    """The lifetime in the headers of a PUT or HEAD; `headers` is case-insensitive or spelled as in the protocol."""
    return Lifetime(parse_ttl(headers.get(STREAM_TTL)), parse_expires_at(headers.get(STREAM_EXPIRES_AT)))


def lifetime_here(lifetime: Lifetime, answer: Mapping[str, str], asked_at: float, answered_at: float) -> Lifetime:
    """The lifetime by this machine's clock, which may differ from the origin's.

    `answer` is the header section with the origin's Date.  Its request was sent at `asked_at` and answered at
    `answered_at` (Unix seconds by this machine's clock).  The difference of the clocks counts only as far as the
    exchange proves it (RFC 9111 section 4.2.3), so nothing changes if the clocks may agree.  The result may be early by
    up to a second and the time of the exchange, and is not late.  An expiry that had passed by the origin's clock
    before the request cannot be right, because the origin still shows the stream.  It is then read by this machine's
    clock if it is in the future there, and is unknown otherwise.
    """
    expires_at = lifetime.expires_at
    if expires_at is None:
        return lifetime
    date = date_from_headers(answer)
    if date is not None:
        date += age_from_headers(answer)
        # The origin wrote its Date, cut to whole seconds, during the exchange.
        least_ahead_s, most_ahead_s = date - answered_at, date + 1 - asked_at
        if not least_ahead_s <= 0 <= most_ahead_s and expires_at - least_ahead_s > asked_at:
            return Lifetime(lifetime.ttl_s, max(asked_at, expires_at - most_ahead_s))
    return lifetime if expires_at > asked_at else Lifetime(lifetime.ttl_s, None)


def date_from_headers(headers: Mapping[str, str]) -> float | None:
    """Unix seconds from Date (RFC 9110 section 6.6.1); None if it is absent or malformed."""
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
    """All keys in a reply's head: both fields, all their lines."""
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
"""Fields that some caches obey instead of Cache-Control."""


def keep_private(headers: CIMultiDict[str], varied: Sequence[str]) -> None:
    """Keep an answer that depends on a credential out of shared caches.  Private caches may replay it only for equal
    values of the `varied` request headers (RFC 9111 sections 4.1 and 5.2.2.7, RFC 9213)."""
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
