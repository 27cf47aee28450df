"""A route at run time.

A route maps requests to the origin's streams and decides which readers share a stream.  The route also remembers the
behaviour of the origin: which answers may not be shared, and whether the origin answers at all.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from multidict import CIMultiDict
from yarl import URL

from gateway.aio.clock import Clock
from gateway.auth.guard import Guard
from gateway.config.routes import RouteConfig
from gateway.engine.hit_for_miss import ANY_LIVE, DeniedOrigins, Unshared
from gateway.engine.manner import Manners
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings, Coding, negotiate
from gateway.protocol.freshness_headers import requested_max_age
from gateway.protocol.header_forwarding import Headers, joined
from gateway.protocol.sharing import Ground, Group, Partition, StreamKey, allows, cure, rules_of
from gateway.protocol.target import Target, check_path, unescaped_delimiters
from gateway.tuples import make
from gateway.upstream.flight import NotShareable
from gateway.upstream.origin_call import Bounds, Handed, Source
from gateway.upstream.origin_pool import authorities_of, route_url
from gateway.upstream.repeats_and_retries import RetryBudget, RouteRetries
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.sharing")

_LEAST_UNSHARED_S: Final = 10.0
"""After a live answer has proved unshareable, live answers count as unshareable for at least this number of seconds."""


MEANINGLESS: Final = (
    "accept",
    "accept-language",
    "baggage",
    "cookie",
    "dnt",
    "referer",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
)
"""Headers that no answer depends on, unless the route's rules list them as `decisive`."""


class HeaderRules(NamedTuple):
    """The request headers on which a route's shared answers depend."""

    decisive: frozenset[str] = frozenset()
    """Headers on which the answers depend, in addition to the headers that matter on every route."""
    personal: frozenset[str] = frozenset()
    """Credential headers that may differ between the readers of one stream."""
    web_origins: frozenset[str] | None = None
    """The web origins, in lower case, for each of which the gateway sends specific CORS headers.  Answers do not depend
    on other values of Origin.  Empty if the gateway allows all web origins.  None if the gateway adds no CORS headers,
    or if Origin is a credential."""


class SharingFacts(NamedTuple):
    """The values that a route derives from the header section of a request."""

    has_credentials: bool
    partition: Partition
    """Requests in the same partition share tapes (the bytes of streams in memory)."""
    headers: CIMultiDict[str]
    """The request headers of a shared fetch."""
    accepted: AcceptedCodings
    web_origin: str | None
    """The Origin header; None if the gateway itself is responsible for CORS, or if Origin is a credential."""
    max_age_s: float | None
    """The greatest age in seconds of cached bytes that the client accepts; None if the client states no limit."""


class Route:
    """One configured route, with the remembered behaviour of its origin.

    `retries` is the retry budget of the origin.  All routes to this origin share the budget.  `origin` is the name of
    the origin in tape keys.  Equivalent origins have one name.  The choice of the origin for a request therefore does
    not affect the tape of a read, or the streams that a write affects.
    """

    def __init__(
        self,
        config: RouteConfig,
        node: str,
        clock: Clock,
        public: Partition | None = None,
        retries: RetryBudget | None = None,
        origin: str | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.config = config
        self.guard = guard
        """Authorises requests by the route's rules; None if the route has no rules."""
        self.node = node
        self.public = public or Partition(config.name)
        """The partition of readers without credentials, and the base of the route's other partitions.  After a change
        of the configuration, a new object replaces this object.  The new object gets the same partition only if it may
        use the same tapes."""
        self.retries = RouteRetries(retries or RetryBudget(), config.retry_budget)
        self._base_path = URL(config.members[0].url).raw_path.rstrip("/")
        if config.is_bridged and config.bridging.basin:
            # Tape keys include the basin, because the bridge reads it from the path.
            self._base_path += "/" + config.bridging.basin
        self._authorities = authorities_of(config)
        self.authority = origin or self._authorities[0]
        """Scheme, host and port of the origin.  This names the origin in each stream's `Group`."""
        self.sse_lifetime_s = config.sse_lifetime_s
        self.url = route_url(config.name)
        """The base URL for paths at the origin.  The upstream client maps it to one of the route's origins."""
        self._prefix = config.prefix.rstrip("/")
        self.is_bridged = config.is_bridged
        """Whether the route's S2 streams are presented as Durable Streams.  Copied, because reading a field of a
        pydantic model is slow."""
        self.name = config.name
        self.trust_s = config.trust_s
        self.retry_attempts = config.retry_attempts
        self.absent_per_s = config.absent_per_s
        self.cors = config.cors
        self.is_cached = config.cache
        self.is_bypassed = config.credentials == "bypass"
        """Whether requests with credentials are relayed."""
        self.is_shared = config.credentials == "shared"
        """Whether readers with different credentials share answers."""
        self.is_s2 = config.protocol == "s2" and not config.is_bridged
        self._has_s2_names = config.protocol == "s2"
        """Whether the origin's streams have S2 names."""
        self.unshared = Unshared(config.hit_for_miss_s, clock.now)
        self.denied_origins = DeniedOrigins(config.hit_for_miss_s, clock.now)
        """For each path, web origins that may not read the path by a decision of the origin.  Reads of these web
        origins may share replies without Access-Control-Allow-Origin."""
        self._now = clock.now
        self.answers = 0
        """The number of requests of the route that an origin has answered.  A waiting read compares this number with an
        earlier value, to find out whether the origin answers at all."""
        self.silent_at: float | None = None
        """The time at which a read had waited too long while the origin answered no request of the route (monotonic
        seconds).  None if the origin has answered since then."""
        self.ends_live_in_s: float | None = None
        """Set when a reload has added authorisation rules to the route; otherwise None.  A read in progress was not
        checked by these rules.  If such a read begins its live answer after the reload, the answer ends after this
        number of seconds."""
        self._has_shared_live = False
        self._shares_live_from = -math.inf
        is_asked = config.tail == "asked"
        self.heard_s = 0.0 if is_asked else config.tail_heard_s
        """How long the tail is trusted after the last sign of life on the live request, in seconds; 0 means never."""
        self.absent_s = 0.0 if is_asked else config.absent_s
        """How long a 404 or 410 is cached, in seconds."""
        relayed = "|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in config.relayed_offsets)
        self._relayed_offset = re.compile(relayed) if relayed else None
        self.bounds = Bounds(
            config.connect_timeout_s, config.first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s
        )
        self.live_bounds = Bounds(
            config.connect_timeout_s, config.live_first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s
        )
        self.codings = tuple(Coding(name) for name in config.compression)
        """The codings offered to clients.  The most preferred coding is first."""
        self.levels = {Coding.ZSTD: config.zstd_level, Coding.BR: config.brotli_level, Coding.GZIP: config.gzip_level}
        self.credential_names = tuple(name.lower() for name in config.credential_headers)
        self.heeds_origin = config.cors is None and "origin" not in self.credential_names
        """Whether answers can depend on the Origin header.  They can if the origin is responsible for CORS, and Origin
        is not a credential."""
        self.sharing = rules_of(config)
        """Decides which of the origin's replies may be shared."""
        self.manners = Manners(self.sharing)
        self._noticed: set[str] = set()
        """The grounds (reasons not to share a reply) that have been logged."""
        is_shared = config.credentials == "shared" and not self.is_s2
        personal = frozenset(filter(_is_personal, self.credential_names) if is_shared else ())
        decisive = (*self.credential_names, "accept") if self.is_s2 else self.credential_names
        self.header_rules = HeaderRules(frozenset(decisive) - personal, personal, self._web_origins())
        self._host = config.host.lower()
        self._is_path_kept = not (config.strip_prefix and self._prefix)

    def _web_origins(self) -> frozenset[str] | None:
        cors = self.config.cors
        if cors is None or "origin" in self.credential_names:
            return None
        return frozenset(map(str.lower, cors.allow_origins) if "*" not in cors.allow_origins else ())

    def judge_live(self, key: StreamKey, why: NotShareable | None) -> None:
        """Record whether a live answer of the origin for this stream may be shared.  `why` is None if it may be
        shared."""
        if why is None:
            self._has_shared_live = True
        else:
            self.unshared.remember(key, ANY_LIVE, why.reason)
            # The next readers are relayed, so their answers cannot show that live answers have become shareable.
            # Therefore assume after a while that live answers have become shareable.
            self._shares_live_from = self._now() + max(self.config.hit_for_miss_s, _LEAST_UNSHARED_S)

    def why_alone(self, headers: Headers, *, is_stored: bool) -> NotShareable | None:
        """Return the reason why a reply with these headers may not be shared, according to the route's `SharingRules`;
        None if it may be shared."""
        ground = self.sharing.why_alone(headers, is_stored=is_stored)
        if ground is None:
            return None
        self.notice(ground, headers)
        return NotShareable(ground, is_personal=True)

    def why_refusal_alone(self, status: int, headers: Headers) -> NotShareable | None:
        """Return the reason why a reply with this error status may not be shared; None if it may be shared.  Changes
        nothing.

        Only the header Vary is checked, because the readers of a shared reply have equal credentials, and cookies are
        not repeated.  Failures of the origin (5xx, 429) are always shared.
        """
        if status >= 500 or status == 429 or not self.sharing.varies(headers):
            return None
        return NotShareable(Ground.VARY, is_personal=True)

    def varies_by_origin(self, headers: Headers) -> bool:
        """Return whether the reply may not be used for requests with an Origin header.  Log the first such reply."""
        varies = self.sharing.varies_by_origin(headers)
        if varies:
            self.notice(Ground.ORIGIN, headers)
        return varies

    def judge_web_origin(self, group: Group, web_origin: str, reply: Reply, shared: Headers | None) -> None:
        """Record whether the origin allows `web_origin` to read a path, from the reply to a relayed read.

        `shared` has the headers of the stream's latest shared reply; None if there is none.  Only a successful reply
        can prove a denial, because servers omit CORS headers from error replies.
        """
        if allows(reply.headers, web_origin):
            self.denied_origins.discard(group, web_origin)
            if shared is not None and not allows(shared, web_origin):
                self.notice(Ground.ORIGIN, reply.headers)
        elif reply.status in (200, 204) and not self.sharing.varies_by_origin(reply.headers):
            self.denied_origins.remember(group, web_origin)

    def is_denial_recent(self, seen_at: float) -> bool:
        """Return whether a denial at `seen_at` (monotonic seconds) is too recent for a new check."""
        return self._now() < seen_at + self.config.hit_for_miss_s

    def notice(self, ground: Ground, headers: Headers) -> None:
        """Log why replies of this route are not shared, and how to make them shareable.  Log each ground only once."""
        if ground not in self._noticed:
            self._noticed.add(ground)
            _log.warning("route %s: the origin %s", self.config.name, cure(ground, headers, self.sharing))

    @property
    def shares_live(self) -> bool:
        """Whether a live answer of the origin has proved shareable, and no live answer has recently proved
        unshareable."""
        return self._has_shared_live and self._now() >= self._shares_live_from

    @property
    def is_silent(self) -> bool:
        """Whether a read has waited too long, and the origin has answered no request of the route since then."""
        return self.silent_at is not None

    def heard(self) -> None:
        """Record that an origin has answered a request of the route."""
        self.answers += 1
        self.silent_at = None

    def heard_elsewhere(self, at: float) -> None:
        """Record that the origin has answered another process at this time (monotonic seconds).  The time may be long
        ago."""
        if self.silent_at is not None and at > self.silent_at:
            self.silent_at = None

    def fell_silent(self) -> None:
        """Record that a read has waited too long.  The silence began with the first such read."""
        if self.silent_at is None:
            self.silent_at = self._now()

    def serves(self, host: str, path: str) -> bool:
        """Return whether this route serves the host (lower case, no port) and canonical path."""
        wanted, prefix = self._host, self._prefix
        if wanted != "*":
            if wanted.startswith("*."):
                if not host.endswith(wanted[1:]):
                    return False
            elif wanted != host:
                return False
        # A copy of `covers`, to save a call: every request makes this check for each route.
        return not prefix or path == prefix or path.startswith(prefix + "/")

    def label(self, host: str) -> str | None:
        """For a route with a host such as `*.example.org`, return the part of `host` that matches the `*`.  Return None
        for other routes."""
        return host[: 1 - len(self._host)] if self._host.startswith("*.") else None

    def covers(self, path: str) -> bool:
        """Return whether a canonical path is under the route's prefix."""
        return not self._prefix or path == self._prefix or path.startswith(self._prefix + "/")

    def below_prefix(self, path: str) -> str:
        """Return the rest of a canonical path of the route, after the route's prefix."""
        return path[len(self._prefix) :]

    @property
    def precedence(self) -> tuple[int, int]:
        """The sort key of routes.  Exact hosts come first, then wildcards, then routes for any host.  Within each of
        these groups, longer prefixes come first."""
        host = self.config.host
        rank = 0 if host == "*" else 1 if host.startswith("*.") else 2
        return rank, len(self._prefix)

    def relays(self, offset: str) -> bool:
        """Return whether reads from this offset must be relayed, according to the route's `relayed_offsets`."""
        return self._relayed_offset is not None and self._relayed_offset.fullmatch(offset) is not None

    def upstream_path(self, path: str) -> str:
        """Return the path at the origin for a canonical request path.

        S2 stream names are normalised.  Each S2 SDK escapes names in its own way, and all spellings must lead to one
        tape.  Otherwise a write with one spelling would not be seen by readers with another spelling.

        Raises BadTarget if the result would begin with two slashes.  Removing the prefix can lead to such a result.
        """
        below = path if self._is_path_kept else path[len(self._prefix) :] or "/"
        asked = self._base_path + (unescaped_delimiters(below) if self._has_s2_names else below)
        if asked.startswith("//"):
            check_path(asked)
        return asked

    def public_location(self, location: str, public: str) -> str:
        """Translate the origin's Location to the URL that clients use.  `public` is the scheme and authority in the URL
        that the client used.

        A Location that is not below the route's URL is returned unchanged (compare nginx's `proxy_redirect default`).
        """
        for authority in self._authorities:
            own = authority + self._base_path
            if location == own or location.startswith(own + "/"):
                break
        else:
            return location
        path = location[len(own) :]
        return public + (self._prefix + path if self.config.strip_prefix else path)

    def sharing_of(self, headers: CIMultiDict[str], nodes: Sequence[str]) -> SharingFacts:
        """Return the values derived from a header section.  `nodes` are the gateways that the request has already
        passed."""
        credentials, cache_control = self.credentials(headers), joined(headers, "Cache-Control")
        return SharingFacts(
            bool(credentials),
            self.partition(credentials, nodes),
            self.source_headers(credentials, nodes),
            negotiate(joined(headers, "Accept-Encoding"), cache_control, self.codings),
            joined(headers, "Origin") if self.heeds_origin else None,
            requested_max_age(cache_control),
        )

    def credentials(self, headers: Mapping[str, str]) -> CIMultiDict[str]:
        """Return the request's credential headers, with all values of each header."""
        found: CIMultiDict[str] = CIMultiDict()
        for name in self.credential_names:
            if name in headers:
                values = headers.getall(name) if hasattr(headers, "getall") else [headers[name]]
                for value in values:
                    found.add(name, value)
        return found

    def partition(self, credentials: CIMultiDict[str], passed_nodes: Sequence[str] = ()) -> Partition:
        """Return the partition of a request with these credentials.  `source_headers` explains `passed_nodes`."""
        parts = []
        if credentials and self.config.credentials == "partition":
            parts = [f"{name.lower()}:{value}" for name, value in credentials.items()]
        if passed_nodes:
            parts.append(f"cdn-loop:{', '.join(passed_nodes)}")
        if not parts:
            return self.public
        digest = hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return self.public._replace(readers=digest)

    def key(self, target: Target, partition: Partition) -> StreamKey:
        """Return the key of the tape that the readers of a partition share."""
        group = make(Group, (self.authority, self.upstream_path(target.path)))
        return make(StreamKey, (group, target.query, partition))

    def source_headers(self, credentials: CIMultiDict[str], passed_nodes: Sequence[str] = ()) -> CIMultiDict[str]:
        """Return the request headers of a shared fetch.

        `passed_nodes` are the gateways that the request has passed.  A loop over several gateways is detected only if
        each gateway forwards the names of the preceding gateways (RFC 8586 section 2).  The names are part of the
        tape's key.  Otherwise the names in one reader's request could cause a refusal of a fetch that other readers
        share.
        """
        headers = CIMultiDict(credentials if self.guard is None or not self.guard.drops_credentials else ())
        headers["Accept-Encoding"] = "identity"
        headers["Via"] = f"1.1 {self.node}"
        headers["CDN-Loop"] = ", ".join([*passed_nodes, self.node])
        return RenderedHeaders.of(headers)

    def source(self, target: Target, headers: CIMultiDict[str], client: str = "", group: Group | None = None) -> Source:
        """Return the upstream source of the target's bytes, for fetches with these headers.

        `client` is the network of the reader that causes the fetch.  `group` is the target's group, if the caller has
        computed it already.
        """
        path = group.path if group is not None else self.upstream_path(target.path)
        return make(Source, (self.url + path, target, headers, self.bounds, self.live_bounds, client, Handed.NO))


def _is_personal(name: str) -> bool:
    """Return whether the gateway uses headers of this name only as credentials."""
    return name in ("authorization", "cookie") or (name.startswith("x-") and not name.startswith("x-forwarded-"))


def route_for(routes: Sequence[Route], host: str, path: str) -> Route | None:
    """Return the route that serves `host` and `path`; None if there is none.  `routes` are in the order of
    `Route.precedence`."""
    for route in routes:
        if route.serves(host, path):
            return route
    return None
