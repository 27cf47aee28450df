"""A route at run time: where its streams are, which readers share them, its retry budget, and what proved unshareable;
and the table of routes, which can be replaced while requests are under way."""

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
from gateway.auth.rules import Rules
from gateway.auth.verdicts import Verdicts
from gateway.config.routes import RouteConfig
from gateway.engine.hit_for_miss import ANY_LIVE, DeniedOrigins, Unshared
from gateway.engine.manner import Manners
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings, Coding, negotiate
from gateway.protocol.forwarded_headers import Headers, joined
from gateway.protocol.freshness import requested_max_age
from gateway.protocol.sharing import Ground, Group, Partition, StreamKey, allows, cure, rules_of
from gateway.protocol.target import Target, check_path, unescaped_delimiters
from gateway.upstream.breaker import RetryBudget, RouteRetries
from gateway.upstream.call import Bounds, Source
from gateway.upstream.flight import NotShareable
from gateway.upstream.origin_pool import authorities_of, origin_names, route_url
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.sharing")

_LEAST_UNSHARED_S: Final = 10.0
"""The least time for which live answers are not expected to be shareable after one has proved not to be, in seconds."""


class HeaderRules(NamedTuple):
    """Which request headers a route's shared answers depend on."""

    decisive: frozenset[str] = frozenset()
    """Headers on which the route's answers depend, although the answers of most routes do not."""
    personal: frozenset[str] = frozenset()
    """Credential headers that may differ between readers of one stream."""
    web_origins: frozenset[str] | None = None
    """The web origins, in lower case, whose names the gateway puts into answers; no answer depends on any other Origin
    header.  None if the gateway does not answer for CORS, or if the header is a credential."""


class SharingFacts(NamedTuple):
    """The meaning of a header section to one route."""

    has_credentials: bool
    partition: Partition
    """The partition: requests share tapes with others of the same partition."""
    headers: CIMultiDict[str]
    """The headers of a shared fetch."""
    accepted: AcceptedCodings
    web_origin: str | None
    """The Origin header; None if the gateway answers for CORS itself, or if the header is a part of the partition."""
    max_age_s: float | None
    """The age up to which the client accepts bytes in memory, in seconds; None if it states none."""


class Route:
    """One configured route and what it has learned.

    `retries` is the retry budget of the origin, which all routes to that origin share.  `origin` names the origin in
    tape keys.  Of several equivalent origins one name stands for all, so that tapes, and the groups that writes affect,
    do not depend on which origin answers.
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
        """Judges requests by the route's rules; None if it has none."""
        self.node = node
        self.public = public or Partition(config.name)
        """The partition of readers without credentials, with which all partitions of the route's tapes start.  Two
        routes, before and after a change, share it only if they may share tapes."""
        self.retries = RouteRetries(retries or RetryBudget(), config.retry_budget)
        self._base_path = URL(config.members[0].url).raw_path.rstrip("/")
        if config.is_bridged and config.bridging.basin:
            # The bridge finds the basin in the path; so do the keys of tapes.
            self._base_path += "/" + config.bridging.basin
        self._authorities = authorities_of(config)
        self.authority = origin or self._authorities[0]
        """Scheme, host and port of the origin, or of the one that stands for all: the origin in a stream's `Group`."""
        self.sse_lifetime_s = config.sse_lifetime_s
        self.url = route_url(config.name)
        """The URL to which a path at the origin is appended.  The upstream client sends the request to one of the
        route's origins."""
        self._prefix = config.prefix.rstrip("/")
        self.is_bridged = config.is_bridged
        """Whether the route's S2 streams are presented as Durable Streams.  Copied here, because the fields of a
        pydantic model are slow to reach."""
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
        """Whether clients speak S2."""
        self.unshared = Unshared(config.hit_for_miss_s, clock.now)
        self.denied_origins = DeniedOrigins(config.hit_for_miss_s, clock.now)
        """Web origins whose reads may share replies without Access-Control-Allow-Origin."""
        self._now = clock.now
        self.answers = 0
        """Requests of the route that an origin has answered."""
        self.is_silent = False
        """Whether a read has waited for too long and no request has been answered since then."""
        self._has_shared_live = False
        self._shares_live_from = -math.inf
        is_asked = config.tail == "asked"
        self.heard_s = 0.0 if is_asked else config.tail_heard_s
        """How long the tail is trusted after the live request was last heard from, in seconds; 0 means never."""
        self.absent_s = 0.0 if is_asked else config.absent_s
        """How long a 404 or 410 of the origin is repeated, in seconds."""
        relayed = "|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in config.relayed_offsets)
        self._relayed_offset = re.compile(relayed) if relayed else None
        self.bounds = Bounds(
            config.connect_timeout_s, config.first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s
        )
        self.live_bounds = Bounds(
            config.connect_timeout_s, config.live_first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s
        )
        self.codings = tuple(Coding(name) for name in config.compression)
        """The codings offered to clients, in order of preference."""
        self.levels = {
            Coding.ZSTD: config.zstd_level,
            Coding.BR: config.brotli_level,
            Coding.GZIP: config.gzip_level,
        }
        self.credential_names = tuple(name.lower() for name in config.credential_headers)
        self.heeds_origin = config.cors is None and "origin" not in self.credential_names
        """Whether requests that share a tape may have different Origin headers that the gateway does not answer for."""
        self.sharing = rules_of(config)
        """Which of the origin's replies may be shared."""
        self.manners = Manners(self.sharing)
        self._noticed: set[str] = set()
        """The grounds that have been logged for the operator."""
        is_shared = config.credentials == "shared" and not self.is_s2
        personal = frozenset(filter(_is_personal, self.credential_names) if is_shared else ())
        decisive = (*self.credential_names, "accept") if self.is_s2 else self.credential_names
        self.header_rules = HeaderRules(frozenset(decisive) - personal, personal, self._web_origins())
        """Which request headers the route's shared answers depend on."""
        self._host = config.host.lower()
        self._is_path_kept = not (config.strip_prefix and self._prefix)

    def _web_origins(self) -> frozenset[str] | None:
        cors = self.config.cors
        if cors is None or "origin" in self.credential_names:
            return None
        return frozenset(map(str.lower, cors.allow_origins) if "*" not in cors.allow_origins else ())

    def judge_live(self, key: StreamKey, why: NotShareable | None) -> None:
        """Record whether a live answer of the origin for this stream may be shared; `why` is None if it may."""
        if why is None:
            self._has_shared_live = True
        else:
            self.unshared.remember(key, ANY_LIVE, why.reason)
            # The next reader must be relayed, so do not expect shareable answers before it comes.
            self._shares_live_from = self._now() + max(self.config.hit_for_miss_s, _LEAST_UNSHARED_S)

    def why_alone(self, headers: Headers, *, is_stored: bool) -> NotShareable | None:
        """Why a reply with these headers is for its requester alone; None if it may be shared (`SharingRules`)."""
        ground = self.sharing.why_alone(headers, is_stored=is_stored)
        if ground is None:
            return None
        self.notice(ground, headers)
        return NotShareable(ground, is_personal=True)

    def why_refusal_alone(self, status: int, headers: Headers) -> NotShareable | None:
        """Why a reply with an error status is for its requester alone; None if it may be shared.  Changes nothing.

        Only Vary counts: readers that share have equal credentials, cookies are not repeated, and a failure of the
        origin concerns all readers.
        """
        if status >= 500 or status == 429 or not self.sharing.varies(headers):
            return None
        return NotShareable(Ground.VARY, is_personal=True)

    def varies_by_origin(self, headers: Headers) -> bool:
        """Whether a shared reply is no answer to requests with an Origin header."""
        varies = self.sharing.varies_by_origin(headers)
        if varies:
            self.notice(Ground.ORIGIN, headers)
        return varies

    def judge_web_origin(self, group: Group, web_origin: str, reply: Reply, shared: Headers | None) -> None:
        """Record the reply to a relayed read of a path with this Origin header.  `shared` are the headers of the
        stream's latest shared reply; None if there was none.

        Only a success can show that a web origin is not allowed, because servers leave CORS out of errors.
        """
        if allows(reply.headers, web_origin):
            self.denied_origins.discard(group, web_origin)
            if shared is not None and not allows(shared, web_origin):
                self.notice(Ground.ORIGIN, reply.headers)
        elif reply.status in (200, 204) and not self.sharing.varies_by_origin(reply.headers):
            self.denied_origins.remember(group, web_origin)

    def is_denial_recent(self, seen_at: float) -> bool:
        """Whether shared answers did not suit a web origin so recently that they need not be checked again yet.
        `seen_at` is the time at which they did not (monotonic seconds)."""
        return self._now() < seen_at + self.config.hit_for_miss_s

    def notice(self, ground: Ground, headers: Headers) -> None:
        """Log, once for each ground, why replies of this route are not shared, and what to do about it."""
        if ground not in self._noticed:
            self._noticed.add(ground)
            _log.warning("route %s: the origin %s", self.config.name, cure(ground, headers, self.sharing))

    @property
    def shares_live(self) -> bool:
        """Whether some live answer of the origin has proved to be shareable, and none has recently proved not to be."""
        return self._has_shared_live and self._now() >= self._shares_live_from

    def heard(self) -> None:
        """Record that an origin has answered a request of the route."""
        self.answers += 1
        self.is_silent = False

    def serves(self, host: str, path: str) -> bool:
        """Whether this route serves the host (lower case, no port) and canonical path."""
        wanted, prefix = self._host, self._prefix
        if wanted != "*":
            if wanted.startswith("*."):
                if not host.endswith(wanted[1:]):
                    return False
            elif wanted != host:
                return False
        # The same test as in `covers`, without the call, which every request would make for each route.
        return not prefix or path == prefix or path.startswith(prefix + "/")

    def label(self, host: str) -> str | None:
        """The part of a host, which this route serves, that stands for the `*` of `*.example.org`; None if the route's
        host does not begin with `*.`."""
        return host[: 1 - len(self._host)] if self._host.startswith("*.") else None

    def covers(self, path: str) -> bool:
        """Whether a canonical path is below the route's prefix."""
        return not self._prefix or path == self._prefix or path.startswith(self._prefix + "/")

    @property
    def precedence(self) -> tuple[int, int]:
        """Exact hosts before wildcards before any host; among equals the longest prefix wins."""
        host = self.config.host
        rank = 0 if host == "*" else 1 if host.startswith("*.") else 2
        return rank, len(self._prefix)

    def relays(self, offset: str) -> bool:
        """Whether reads from this offset are relayed, because it names no position of a stream."""
        return self._relayed_offset is not None and self._relayed_offset.fullmatch(offset) is not None

    def upstream_path(self, path: str) -> str:
        """The path at the origin for a canonical request path.

        S2 decodes the name of a stream, and each of its SDKs escapes the name in its own way.  So all spellings get one
        path: otherwise a write in one spelling would not be noticed by readers that use another.

        Raises BadTarget if the path at the origin would begin with two slashes, because the route strips its prefix.
        """
        below = path if self._is_path_kept else path[len(self._prefix) :] or "/"
        asked = self._base_path + (unescaped_delimiters(below) if self._has_s2_names else below)
        if asked.startswith("//"):
            check_path(asked)
        return asked

    def public_location(self, location: str, public: str) -> str:
        """The origin's Location as clients reach it; `public` is scheme and authority as the client named them.

        A Location elsewhere is left alone (compare nginx's `proxy_redirect default`).
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
        """The meaning of a header section to this route; `nodes` are the gateways that the request has passed."""
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
        """The request's credential headers, with all values of each."""
        found: CIMultiDict[str] = CIMultiDict()
        for name in self.credential_names:
            if name in headers:
                values = headers.getall(name) if hasattr(headers, "getall") else [headers[name]]
                for value in values:
                    found.add(name, value)
        return found

    def partition(self, credentials: CIMultiDict[str], passed_nodes: Sequence[str] = ()) -> Partition:
        """The partition of a request with these credentials; `passed_nodes` as in `source_headers`."""
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
        """The key of the tape that the readers of a partition share."""
        return StreamKey(Group(self.authority, self.upstream_path(target.path)), target.query, partition)

    def source_headers(self, credentials: CIMultiDict[str], passed_nodes: Sequence[str] = ()) -> CIMultiDict[str]:
        """The headers of a shared fetch.

        `passed_nodes` are the gateways that the request has passed.  A loop over several gateways is detected only if
        each of them forwards the names of the earlier ones (RFC 8586 §2).  The names are a part of the key, because
        otherwise those in one reader's request could make the origin refuse the fetch for all other readers.
        """
        headers = CIMultiDict(credentials if self.guard is None or not self.guard.drops_credentials else ())
        headers["Accept-Encoding"] = "identity"
        headers["Via"] = f"1.1 {self.node}"
        headers["CDN-Loop"] = ", ".join([*passed_nodes, self.node])
        return RenderedHeaders.of(headers)

    def source(self, target: Target, headers: CIMultiDict[str], client: str = "", group: Group | None = None) -> Source:
        """Where the target's bytes come from, for readers whose fetches carry these headers.

        `client` is the net of the reader that causes a fetch; `group` is the target's, if it is known already.
        """
        path = group.path if group is not None else self.upstream_path(target.path)
        return Source(self.url + path, target, headers, self.bounds, self.live_bounds, client)


def _is_personal(name: str) -> bool:
    """Whether the gateway itself reads a header of this name only as a credential."""
    return name in ("authorization", "cookie") or (name.startswith("x-") and not name.startswith("x-forwarded-"))


def _sharing(config: RouteConfig, origin: str) -> tuple[object, ...]:
    """The settings that determine which origin's bytes a tape holds and which readers may use it."""
    path = URL(config.members[0].url).raw_path
    whose: tuple[object, ...] = (origin, path, config.strip_prefix, config.cache, config.protocol, config.present)
    if config.is_bridged:
        whose += (config.bridging.basin, config.bridging.records, config.bridging.content_type)
    # Unless the route sets CORS headers itself, the origin's answer to one web origin is not valid for another.
    whose += (bool(config.auth), config.client_credentials, config.store_private)
    return (*whose, config.credentials, config.credential_headers, config.ignore_set_cookie, config.cors is None)


class RouteTable:
    """The routes in effect.  Owner of the set; `replace` changes it between two requests.

    An unchanged route keeps its object and what it has learned.  A route that changes which readers may share gets new
    tapes.  Its readers cannot reach the tapes started under the old rule, which end with the readers that still use
    them.
    """

    def __init__(
        self, configs: Sequence[RouteConfig], node: str, clock: Clock, rules: Mapping[str, Rules] | None = None
    ) -> None:
        """`rules` has the authorisation rules by the names of the routes with `[[route.auth]]`."""
        self._node = node
        self._clock = clock
        self.verdicts = Verdicts(clock.wall, clock.now)
        self._rules: Mapping[str, Rules] = rules or {}
        self._begun = 0
        self._budgets: dict[str, RetryBudget] = {}
        names = self._named(configs)
        self.routes: tuple[Route, ...] = tuple(
            Route(config, node, clock, None, self._budgets[names[config.name]], names[config.name], self._guard(config))
            for config in configs
        )

    def _guard(self, config: RouteConfig) -> Guard | None:
        # A route whose rules were not loaded must not be open.
        return Guard(config, self._rules[config.name], self.verdicts) if config.auth else None

    def _named(self, configs: Sequence[RouteConfig]) -> dict[str, str]:
        """The origin names of the routes; gives each origin its retry budget."""
        names = origin_names(configs)
        self._budgets = {name: self._budgets.get(name) or RetryBudget() for name in names.values()}
        return names

    def __repr__(self) -> str:
        return f"<RouteTable {len(self.routes)} routes, {len(self._budgets)} origins>"

    @property
    def public_partitions(self) -> frozenset[Partition]:
        """The partitions whose tapes requests may still reach, without readers' digests."""
        return frozenset(route.public for route in self.routes)

    def replace(self, configs: Sequence[RouteConfig], rules: Mapping[str, Rules] | None = None) -> bool:
        """Replace the routes and their rules; return whether any route has changed."""
        self._rules = rules or {}
        for route in self.routes:
            if route.guard is not None and (anew := self._rules.get(route.name)) is not None:
                # A file may hold other keys while the configuration stays the same.
                route.guard.replace(anew)
        if [route.config for route in self.routes] == list(configs):
            return False
        by_name = {route.config.name: route for route in self.routes}
        self._begun += 1
        names = self._named(configs)
        self.routes = tuple(self._successor(by_name.get(config.name), config, names[config.name]) for config in configs)
        return True

    def _successor(self, route: Route | None, config: RouteConfig, origin: str) -> Route:
        if route is not None and route.config == config and route.authority == origin:
            return route
        public = Partition(config.name, self._begun)
        if route is not None and _sharing(route.config, route.authority) == _sharing(config, origin):
            public = route.public
        return Route(config, self._node, self._clock, public, self._budgets[origin], origin, self._guard(config))
