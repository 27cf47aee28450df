"""The structure of the configuration: its tables, their models, and the paths of values.

A path is a tuple of field names and indexes, from `GatewayConfig` to a value.  An example is
`("routes", 0, "cors", "max_age_s")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from gateway.config.authorisation import AuthRuleConfig, SigningKeyConfig
from gateway.config.cache import CacheConfig, CachePlanConfig
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.config.limits import LimitsConfig
from gateway.config.listener import CertificateConfig, ListenerConfig, ListenerTlsConfig
from gateway.config.origins import (
    HealthCheckConfig,
    OriginConfig,
    OriginCredentialsConfig,
    OriginsConfig,
    OriginTlsConfig,
)
from gateway.config.rate_limits import RateLimitConfig
from gateway.config.routes import BridgeConfig, CorsConfig, RouteConfig
from gateway.config.server import ServerConfig
from gateway.config.store import StoreConfig
from gateway.config.telemetry import LogConfig, TracingConfig

KeyPath = tuple[str | int, ...]

SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "server": ServerConfig,
    "limits": LimitsConfig,
    "origins": OriginsConfig,
    "cache": CacheConfig,
    "store": StoreConfig,
    "tracing": TracingConfig,
    "log": LogConfig,
    "fleet": FleetConfig,
}
"""The tables that occur once, by their names in a file."""
TABLES: Final[Mapping[tuple[type[BaseModel], str], type[BaseModel]]] = {
    (RouteConfig, "cors"): CorsConfig,
    (RouteConfig, "bridge"): BridgeConfig,
    (RouteConfig, "health_check"): HealthCheckConfig,
    (RouteConfig, "origin_credentials"): OriginCredentialsConfig,
    (RouteConfig, "origin_tls"): OriginTlsConfig,
    (CacheConfig, "plan"): CachePlanConfig,
    (ListenerConfig, "tls"): ListenerTlsConfig,
}
"""The tables inside other tables, by the outer table's model and the field."""
RULES: Final[Mapping[str, type[BaseModel]]] = {
    "route.auth": AuthRuleConfig,
    "route.auth.tls": OriginTlsConfig,
    "route.auth.keys": SigningKeyConfig,
}
"""The models of authorisation rules and of the tables inside them."""
LISTS: Final[Mapping[str, tuple[str, type[BaseModel]]]] = {
    "routes": ("route", RouteConfig),
    "listeners": ("listener", ListenerConfig),
    "rate_limits": ("rate_limit", RateLimitConfig),
}
"""For each array of tables, by its field of `GatewayConfig`: its name in a file, and the model of one table."""


def path_in_file(path: KeyPath) -> KeyPath:
    """Return the path with the names in a file: `route` for `routes`, `listener` for `listeners`."""
    return (LISTS[str(path[0])][0], *path[1:]) if path and path[0] in LISTS else path


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """Return the model that has the last part of `path` as a field; None if there is none."""
    match path:
        case (_,):
            return GatewayConfig
        case (str() as section, _) if section in SECTIONS:
            return SECTIONS[section]
        case (str() as field, int(), _) if field in LISTS:
            return LISTS[field][1]
        case (str() as field, int(), str() as table, _) if field in LISTS:
            return TABLES.get((LISTS[field][1], table))
        case ("fleet", "members", int(), _):
            return MemberConfig
        case ("listeners", int(), "tls", "certificates", int(), _):
            return CertificateConfig
        case ("routes", int(), "origins", int(), _):
            return OriginConfig
        case ("routes", int(), "auth", int(), _):
            return AuthRuleConfig
        case ("routes", int(), "auth", int(), "tls", _):
            return OriginTlsConfig
        case ("routes", int(), "auth", int(), "keys", int(), _):
            return SigningKeyConfig
        case ("cache", "plan", _):
            return CachePlanConfig
    return None


def every_field() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Return all configuration keys: section (such as `server` or `route.cors`), field name, and model."""
    listed = {model: name for name, model in LISTS.values()}
    inner_tables = {f"{listed[model]}.{name}": table for (model, name), table in TABLES.items() if model in listed}
    sections: dict[str, type[BaseModel]] = {**SECTIONS, **dict(LISTS.values()), **inner_tables}
    for section, model in sections.items():
        for field in model.model_fields:
            table = TABLES.get((model, field))
            if table is None:
                yield section, field, model
            elif model not in listed:
                yield from ((f"{section}.{field}", name, table) for name in table.model_fields)
