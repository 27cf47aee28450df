"""The content of the files that a configuration names, except for listeners' certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.auth.rules import Rules, load_rules
from gateway.config.cache_plan import CachePlan
from gateway.config.credentials import load_credentials
from gateway.config.file import load_plan
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import OriginTls, load_auth_tls, load_tls
from gateway.upstream.origin_pool import Credentials


class ConfiguredFiles(NamedTuple):
    """The content of the files that were read."""

    plan: CachePlan | None
    credentials: Credentials
    """The header that each route's origins get."""
    tls: dict[str, OriginTls]
    rules: dict[str, Rules]
    """The rules of the routes with `[[route.auth]]`."""
    auth_tls: dict[str, OriginTls]


def load_files(config: GatewayConfig, environ: Mapping[str, str]) -> ConfiguredFiles:
    """Read the files, and the credentials that `environ` has.  Blocks.  Raises ConfigError."""
    found = load_credentials(config, environ).items()
    credentials = {route: (one.header, one.value.get_secret_value()) for route, one in found}
    return ConfiguredFiles(load_plan(config), credentials, load_tls(config), load_rules(config), load_auth_tls(config))
