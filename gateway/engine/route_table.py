"""The table of routes, which can be replaced while requests are under way.  `gateway.engine.route` decides whether a
route covers a path."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from weakref import WeakSet

from yarl import URL

from gateway.aio.clock import Clock
from gateway.auth.guard import Guard
from gateway.auth.remembered_verdicts import Verdicts
from gateway.auth.rules import Rules
from gateway.config.routes import RouteConfig
from gateway.engine.route import Route
from gateway.protocol.sharing import Partition
from gateway.upstream.origin_pool import origin_names
from gateway.upstream.repeats_and_retries import RetryBudget


def _sharing(config: RouteConfig, origin: str) -> tuple[object, ...]:
    """Return the settings on which a tape (a stream's bytes in memory) depends: the origin of the bytes, and the
    readers that may use them."""
    path = URL(config.members[0].url).raw_path
    whose: tuple[object, ...] = (origin, path, config.strip_prefix, config.cache, config.protocol, config.present)
    if config.is_bridged:
        whose += (config.bridging.basin, config.bridging.records, config.bridging.content_type)
    # Unless the gateway sets the CORS headers, the origin's answer to a request from one web origin may not be given to
    # another web origin.
    whose += (bool(config.auth), config.client_credentials, config.store_private)
    return (*whose, config.credentials, config.credential_headers, config.ignore_set_cookie, config.cors is None)


class RouteTable:
    """The routes in effect.  `replace` changes the set between two requests.

    An unchanged route keeps its object and its state.  If a change affects who may read which bytes, the route starts
    with empty tapes.  New readers cannot reach its old tapes.  An old tape disappears with the last reader that still
    uses it.
    """

    def __init__(
        self, configs: Sequence[RouteConfig], node: str, clock: Clock, rules: Mapping[str, Rules] | None = None
    ) -> None:
        """`rules` are the authorisation rules of the routes with `[[route.auth]]`, by route name."""
        self._node = node
        self._clock = clock
        self.verdicts = Verdicts(clock.wall, clock.now)
        self._rules: Mapping[str, Rules] = rules or {}
        self._begun = 0
        self._guards: WeakSet[Guard] = WeakSet()
        """The guards (which authorise requests) of the routes, and of earlier routes that waiting requests refer to."""
        self._budgets: dict[str, RetryBudget] = {}
        names = self._named(configs)
        self.routes: tuple[Route, ...] = tuple(
            Route(config, node, clock, None, self._budgets[names[config.name]], names[config.name], self._guard(config))
            for config in configs
        )

    def _guard(self, config: RouteConfig) -> Guard | None:
        # Fail closed: a route whose rules were not loaded must not be open.
        if not config.auth:
            return None
        guard = Guard(config, self._rules[config.name], self.verdicts)
        self._guards.add(guard)
        return guard

    def _named(self, configs: Sequence[RouteConfig]) -> dict[str, str]:
        """Return the origin's name for each route, and give each origin a retry budget."""
        names = origin_names(configs)
        self._budgets = {name: self._budgets.get(name) or RetryBudget() for name in names.values()}
        return names

    def __repr__(self) -> str:
        return f"<RouteTable {len(self.routes)} routes, {len(self._budgets)} origins>"

    @property
    def public_partitions(self) -> frozenset[Partition]:
        """For each route in effect, the partition of readers without credentials (`Route.public`).  Every other
        partition that requests can reach adds a digest of credentials to one of these partitions."""
        return frozenset(route.public for route in self.routes)

    def replace(self, configs: Sequence[RouteConfig], rules: Mapping[str, Rules] | None = None) -> bool:
        """Replace the routes and their rules; return whether any route has changed."""
        self._rules = rules or {}
        before = self.routes
        self._replace_routes(configs)
        kept = _kept(before, self.routes)
        guards = {route.name: route.guard for route in self.routes if route.guard is not None}
        for guard in tuple(self._guards):
            successor = guards.get(guard.realm)
            if successor is guard:
                # A key file may have changed although the configuration has not.
                guard.replace(self._rules[guard.realm])
            else:
                # Requests that wait for a service or a key set still refer to the guard of an earlier route.
                guard.follow(successor if guard.realm in kept else None)
        self.verdicts.end_reads_without_grounds({name: one.rules for name, one in guards.items() if name in kept})
        return self.routes is not before

    def _replace_routes(self, configs: Sequence[RouteConfig]) -> None:
        if [route.config for route in self.routes] == list(configs):
            return
        by_name = {route.config.name: route for route in self.routes}
        self._begun += 1
        names = self._named(configs)
        self.routes = tuple(self._successor(by_name.get(config.name), config, names[config.name]) for config in configs)
        self.verdicts.begin_edition()

    def sharing(self, *, with_credentials: bool) -> dict[Partition, str]:
        """Return a digest of the settings on which the tapes of each route depend, by the route's partition of readers
        without credentials.  The digest is the same after a restart.

        `with_credentials` includes the routes where this partition has the tapes of readers with credentials, too."""
        found = {}
        for route in self.routes:
            if not with_credentials and (route.is_shared or route.config.auth):
                continue
            settings = repr(_sharing(route.config, route.authority)).encode()
            found[route.public] = hashlib.blake2b(settings, digest_size=8).hexdigest()
        return found

    def _successor(self, route: Route | None, config: RouteConfig, origin: str) -> Route:
        if route is not None and route.config == config and route.authority == origin:
            return route
        public = Partition(config.name, self._begun)
        if route is not None and _sharing(route.config, route.authority) == _sharing(config, origin):
            public = route.public
        return Route(config, self._node, self._clock, public, self._budgets[origin], origin, self._guard(config))


def newly_guarded(before: Sequence[Route], after: Sequence[Route]) -> list[Route]:
    """Return the earlier routes without rules whose reads may now be subject to the rules of a present route."""
    if before is after:
        return []
    kept = _kept(before, after)
    guarded = [route for route in after if route.guard is not None]
    still_open = {route.name for route in after if route.guard is None and route.name in kept}
    return [
        route
        for route in before
        if route.guard is None and route.name not in still_open and any(_overlap(route, one) for one in guarded)
    ]


def _kept(before: Sequence[Route], after: Sequence[Route]) -> frozenset[str]:
    """Return the names of the routes that serve the same requests as before the change.

    A read that any other route has admitted may now be subject to the rules of a different route.
    """
    earlier = _served(before)
    return frozenset(name for name, served in _served(after).items() if served == earlier.get(name))


def _served(routes: Sequence[Route]) -> dict[str, set[tuple[str, str]]]:
    """Return, for each route's name, the places (host and prefix) that determine which requests the route serves.

    These are the route's own place, and the places of overlapping routes with higher precedence.  There may be hundreds
    of routes, so a route is compared only with the routes above it in the tree of prefixes.
    """
    found = {route.name: {(route.config.host, route.config.prefix)} for route in routes}
    by_prefix: dict[str, list[Route]] = {}
    for route in routes:
        by_prefix.setdefault(route.config.prefix.rstrip("/"), []).append(route)
    for route in routes:
        above, rank = route.config.prefix.rstrip("/"), route.precedence
        while True:
            for other in by_prefix.get(above, ()):
                if other.precedence > rank:
                    found[route.name].add((other.config.host, other.config.prefix))
                elif other.precedence < rank:
                    found[other.name].add((route.config.host, route.config.prefix))
            if not above:
                break
            above = above.rpartition("/")[0]
    return found


def _overlap(one: Route, other: Route) -> bool:
    """Return whether the prefixes of two routes have paths in common."""
    return one.covers(other.config.prefix) or other.covers(one.config.prefix)
