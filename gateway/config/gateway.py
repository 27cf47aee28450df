"""The models of the configuration: frozen, with a default, bounds and a description for each field.

`gateway.config.file` fills the models from files, environment variables and flags.  The models are strict: a number in
quotes is an error.  Unknown keys are errors too, because an ignored misspelt limit would be noticed only when it is
needed.  The suffix of a name is the unit: `_s` for seconds, `_bytes` for bytes.  Sizes can also be written `"256MiB"`.
The description of a field is its documentation.  `config/gateway.toml` has all fields.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Self

from pydantic import Field, model_validator

from gateway.config.cache import CacheConfig, CachePlanConfig
from gateway.config.fleet import FleetConfig
from gateway.config.limits import LimitsConfig
from gateway.config.listener import ListenerConfig, check_addresses
from gateway.config.model import MisfitError, Model
from gateway.config.origins import (
    OriginsConfig,
)
from gateway.config.rate_limits import RateLimitConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.config.sizes import MIB
from gateway.config.store import LEAST_STORE_BYTES, StoreConfig
from gateway.config.telemetry import LogConfig, TracingConfig
from gateway.config.values import MOST_WORKERS
from gateway.container import container_limit_bytes, usable_processors

_WORKER_BYTES: Final = 1 << 28
"""The least memory for each worker that `auto` starts.  A worker takes some 70 MiB without streams and clients."""
_WORKER_CACHE_BYTES: Final = 1 << 25
"""The least part of `limits.cache_bytes` for each worker that `auto` starts.  A stream that is larger than its owner's
part is not kept whole."""

_WORKER_STORE_BYTES: Final = 1 << 28
"""The least part of `store.max_bytes` for each worker that `auto` starts."""


class GatewayConfig(Model):
    """The configuration of one gateway process, with at least one route.

    `routes` is `[[route]]` in a file, `listeners` is `[[listener]]`, `rate_limits` is `[[rate_limit]]`.
    """

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    origins: OriginsConfig = OriginsConfig()
    cache: CacheConfig = CacheConfig()
    store: StoreConfig = StoreConfig()
    tracing: TracingConfig = TracingConfig()
    log: LogConfig = LogConfig()
    fleet: FleetConfig = FleetConfig()
    listeners: tuple[ListenerConfig, ...] = Field(
        default=(),
        strict=False,
        max_length=64,
        description="Where clients are accepted; without any, at server.listen.",
    )
    rate_limits: tuple[RateLimitConfig, ...] = Field(
        default=(), strict=False, max_length=64, description="Limits on requests, bytes and live reads of clients."
    )
    routes: tuple[RouteConfig, ...] = Field(
        strict=False, description="Which requests go to which origin. At least one route is needed."
    )

    @property
    def worker_count(self) -> int:
        """The number of workers, with `auto` resolved."""
        if self.server.workers != "auto":
            return self.server.workers
        if sys.platform != "linux":
            # Other systems lack the shared memory and the socket options that several workers need.
            return 1
        memory = self.limits.memory_max_bytes or container_limit_bytes() or sys.maxsize
        most = min(memory // _WORKER_BYTES, self.limits.cache_bytes // _WORKER_CACHE_BYTES)
        if self.store.path:
            most = min(most, self.store.max_bytes // _WORKER_STORE_BYTES)
        return max(1, min(MOST_WORKERS, usable_processors(), most))

    @model_validator(mode="after")
    def _store_fits(self) -> Self:
        workers = self.server.workers
        if self.store.path and workers != "auto" and self.store.max_bytes < workers * LEAST_STORE_BYTES:
            text = f"is divided among {workers} workers, each of which needs {LEAST_STORE_BYTES // MIB} MiB"
            raise MisfitError(text, "store", "max_bytes")
        if self.store.path and self.fleet.is_on:
            raise MisfitError("cannot be set together with a fleet", "store", "path")
        return self

    @model_validator(mode="after")
    def _routes_differ(self) -> Self:
        if not self.routes:
            raise MisfitError("at least one is needed, with an origin", "routes")
        names: set[str] = set()
        owners: dict[tuple[str, str], str] = {}
        for index, route in enumerate(self.routes):
            if route.key in names:
                text = f"another route is named {route.name!r} (- and _ count as the same)"
                raise MisfitError(text, "routes", index, "name")
            names.add(route.key)
            other = owners.setdefault((route.host, route.prefix), route.name)
            if other != route.name:
                text = f"route {other!r} already takes host {route.host!r} with {route.prefix!r}"
                raise MisfitError(text, "routes", index, "prefix")
        return self

    @model_validator(mode="after")
    def _origins_have_one_version(self) -> Self:
        routes: dict[str, RouteConfig] = {}
        for index, route in enumerate(self.routes):
            for authority in route.authorities:
                other = routes.setdefault(authority, route)
                if other.origin_http != route.origin_http:
                    text = f"differs from route {other.name!r}, which has the same origin, {authority}"
                    raise MisfitError(text, "routes", index, "origin_http")
        return self

    @model_validator(mode="after")
    def _rate_limits_fit(self) -> Self:
        names = {route.name for route in self.routes}
        taken: set[str] = set()
        for index, limit in enumerate(self.rate_limits):
            if limit.name in taken:
                raise MisfitError(f"another limit is named {limit.name!r}", "rate_limits", index, "name")
            taken.add(limit.name)
            for name in limit.routes:
                if name not in names:
                    raise MisfitError(f"there is no route {name!r}", "rate_limits", index, "routes")
        return self

    @model_validator(mode="after")
    def _listeners_differ(self) -> Self:
        is_used = not self.listeners or "listen" in self.server.model_fields_set
        check_addresses(self.listeners, self.server.listen if is_used else None, self.server.admin, self.fleet.listen)
        return self

    @property
    def every_listener(self) -> tuple[ListenerConfig, ...]:
        """All listeners.  If there are `[[listener]]` tables, `server.listen` is included only if it is set.  The
        listener for other members of the fleet is the last one."""
        is_alone = not self.listeners or "listen" in self.server.model_fields_set
        own = (ListenerConfig(address=self.server.listen),) if is_alone else ()
        members = self.fleet.listener
        return (*self.listeners, *own) if members is None else (*self.listeners, *own, members)

    @property
    def http2_origins(self) -> frozenset[str]:
        """The origins to use HTTP/2 with, as `scheme://host:port`."""
        routes = [route for route in self.routes if route.origin_http == "2"]
        return frozenset(authority for route in routes for authority in route.authorities)

    @classmethod
    def for_origin(cls, url: str | Sequence[str], **overrides: Any) -> Self:
        """Make a configuration with one route, to one origin or to several.

        An override is a field of the route or of any section, by its name.  `listeners` and `rate_limits` are lists of
        tables, `fleet` and `store` are tables.  For example:

        `GatewayConfig.for_origin("http://127.0.0.1:4438", listen="127.0.0.1:0", cache_bytes="64MiB")`

        Raises TypeError for an unknown field, and pydantic's ValidationError (a ValueError) for an invalid value.
        """
        sections: dict[str, type[Model]] = {
            "server": ServerConfig,
            "limits": LimitsConfig,
            "origins": OriginsConfig,
            "cache.plan": CachePlanConfig,
            "tracing": TracingConfig,
            "log": LogConfig,
            "route": RouteConfig,
        }
        parts: dict[str, dict[str, Any]] = {name: {} for name in sections}
        lists = {name: overrides.pop(name, ()) for name in ("listeners", "rate_limits")}
        fleet = overrides.pop("fleet", {})
        store = overrides.pop("store", {})
        parts["route"] = {"origin": url} if isinstance(url, str) else {"origins": list(url)}
        for key, value in overrides.items():
            section = next((name for name, model in sections.items() if key in model.model_fields), None)
            if section is None:
                raise TypeError(f"{key!r} is no field of the server, limits, origins, plan, tracing, log or of a route")
            parts[section][key] = value
        route, plan = parts.pop("route"), parts.pop("cache.plan")
        tables = {"fleet": fleet, "store": store, "cache": {"plan": plan}}
        return cls.model_validate({**parts, **lists, **tables, "routes": [route]})
