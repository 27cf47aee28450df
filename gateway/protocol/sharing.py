"""Which readers share a tape (a stream's bytes in memory), and which of the origin's replies they may share.  All read
modes use the same rules.

The reply to a catch-up read is stored, so it may be shared only if a shared cache may store it (RFC 9111 section 3).
Other replies (live, `offset=now`, HEAD) go to several readers without being stored.  They may have `no-store`.  The
other conditions are the same.

A shared request carries its readers' credentials, and none of their other headers.  A reply that varies on a header
other than a credential is therefore only for the reader that sent the request.  The header Origin is a special case.  A
shared reply is valid for readers without an Origin header.  It is valid for all readers if it allows any web origin
(`*`).  A reply without Access-Control-Allow-Origin is not valid for readers with an Origin header, even if it has no
Vary.  The reason is that common middleware adds these two fields only to replies to requests with Origin.  If no shared
reply is valid for a read with an Origin header, the read is relayed.  The reply to the relayed read shows whether the
origin allows the reader's web origin.

This module judges header fields.  `gateway.engine.reply_classifier` judges status, length, coding and offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.config.routes import RouteConfig
from gateway.protocol.freshness_headers import forbids_storing, parse_cache_control
from gateway.protocol.header_forwarding import Headers


class Group(NamedTuple):
    """All streams that a write to one URL path of an origin affects.  They all have this path.  Their queries,
    partitions (sets of readers) and routes may differ.
    """

    origin: str
    path: str
    """The path as requested from the origin."""


class Partition(NamedTuple):
    """The readers that share a tape.  Their requests have the same route and credentials, and have passed the same
    gateways.
    """

    route: str
    """The route's name."""
    generation: int = 0
    """Incremented when a new configuration changes which readers may share the route's tapes.  The tapes are then empty
    at first.
    """
    readers: str = ""
    """A digest of the credentials and of the gateways that the requests have passed; empty without either."""

    @property
    def public(self) -> Partition:
        """The route's partition for readers without credentials."""
        return self if not self.readers else Partition(self.route, self.generation)

    def __str__(self) -> str:
        generation = f" ~{self.generation}" if self.generation else ""
        return f"{self.route}{generation} {self.readers}".rstrip()


class StreamKey(NamedTuple):
    """Identifies one tape.

    Two requests share a tape if the origin must answer both alike: same origin and path, same query, same partition.
    """

    group: Group
    query: str
    partition: Partition

    @property
    def route(self) -> str:
        """The name of the route."""
        return self.partition.route


ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"


class Ground(StrEnum):
    """The reason why a reply may not be shared.  Cache-Status, metrics and logs use these names."""

    COOKIE = "Set-Cookie"
    CACHE_CONTROL = "Cache-Control"
    VARY = "Vary"
    ORIGIN = "Vary: Origin"
    """The reply is valid only for requests without an Origin header."""


class SharingRules(NamedTuple):
    """A route's rules that decide which replies may be shared."""

    credential_headers: frozenset[str]
    """Request headers that distinguish readers, in lower case.  Each set of values has its own tape."""
    ignored_cookies: frozenset[str] = frozenset()
    """Names of cookies that do not prevent a reply from being shared."""
    has_cors: bool = False
    """Whether the gateway answers for CORS itself."""
    stores_private: bool = False
    """Whether `private` replies may be shared, because the gateway authorises each reader."""

    def why_alone(self, headers: Headers, *, is_stored: bool) -> Ground | None:
        """Return why a reply is only for the reader that sent the request; None if readers without an Origin header may
        share it.

        `is_stored` states that the reply would be stored, which `no-store` forbids.
        """
        if self.cookies(headers):
            return Ground.COOKIE
        cache_control = ", ".join(headers.getall("Cache-Control", ())) or None
        if self.stores_private:
            directives = parse_cache_control(cache_control)
            # `private="field"` still forbids sharing, because other readers must not receive the fields in this list.
            if (is_stored and "no-store" in directives) or directives.get("private") is not None:
                return Ground.CACHE_CONTROL
        elif forbids_storing(cache_control) if is_stored else "private" in parse_cache_control(cache_control):
            return Ground.CACHE_CONTROL
        return Ground.VARY if self.varies(headers) else None

    def cookies(self, headers: Headers) -> list[str]:
        """Return the names of the cookies that a reply sets, except for ignored cookies."""
        lines = headers.getall("Set-Cookie", ())
        names = [line.partition(";")[0].partition("=")[0].strip() for line in lines]
        return [name for name in names if name not in self.ignored_cookies]

    def varies(self, headers: Headers) -> bool:
        """Return whether a reply's Vary contains `*`, or a request header that is not a credential.

        Two headers do not count: Accept-Encoding, because shared requests always ask for `identity`, and Origin,
        because `varies_by_origin` judges it."""
        if "Vary" not in headers:
            return False
        fine = self.credential_headers
        return any(name not in fine and name not in ("accept-encoding", "origin") for name in _varied(headers))

    def varies_by_origin(self, headers: Headers) -> bool:
        """Return whether Vary makes a reply invalid for requests with an Origin header."""
        if self.has_cors or "Vary" not in headers or headers.get(ALLOW_ORIGIN, "").strip() == "*":
            return False
        return "origin" not in self.credential_headers and "origin" in _varied(headers)


def allows(headers: Headers, web_origin: str) -> bool:
    """Return whether these reply headers allow the pages of a web origin to read the reply (Fetch standard, CORS
    check)."""
    return headers.get(ALLOW_ORIGIN, "").strip() in ("*", web_origin)


def rules_of(config: RouteConfig) -> SharingRules:
    """Return a route's rules."""
    return SharingRules(
        frozenset(map(str.lower, config.credential_headers)),
        frozenset(config.ignore_set_cookie),
        config.cors is not None,
        config.store_private,
    )


def _varied(headers: Headers) -> Iterator[str]:
    """Yield the names in a reply's Vary, in lower case."""
    return (name for line in headers.getall("Vary", ()) for part in line.split(",") if (name := part.strip().lower()))


def cure(ground: str, headers: Headers, rules: SharingRules) -> str | None:
    """Describe for the operator why a reply is not shared, and how to make it shareable, by a setting or at the origin.

    Returns None if `ground` is not a value of `Ground`."""
    match ground:
        case Ground.COOKIE:
            names = sorted(set(rules.cookies(headers)))[:_MOST_NAMES]
            return (
                f"sets cookies ({', '.join(names)}); if readers do not need them, such as those of a load balancer, "
                f"set route.ignore_set_cookie = [{_quoted(names)}]"
            )
        case Ground.CACHE_CONTROL:
            said = ", ".join(headers.getall("Cache-Control", ()))[:_MOST_CHARS]
            cure = "remove this header at the origin if all readers may see the same bytes"
            if "no-store" not in said:
                cure += ", or set route.store_private if [[route.auth]] decides who may read"
            return f'says "Cache-Control: {said}"; {cure}'
        case Ground.VARY:
            names = sorted({name for name in _varied(headers) if name not in rules.credential_headers})
            names = [name for name in names if name not in ("accept-encoding", "origin")][:_MOST_NAMES]
            if "*" in names:
                return 'says "Vary: *"; have the origin name the headers that its replies depend on'
            return (
                f"varies on {', '.join(names)}; add these names to route.credential_headers, so that readers with "
                "equal values share"
            )
        case Ground.ORIGIN:
            return (
                "may answer by the request's Origin, so reads by browsers are not shared; set [route.cors], so that "
                "the gateway answers for CORS itself"
            )
        case _:
            return None


_MOST_NAMES: Final = 8
"""The most names shown in one log line."""
_MOST_CHARS: Final = 120


def _quoted(names: Collection[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
