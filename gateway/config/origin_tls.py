"""TLS settings for connections to origins: authorities, client certificates and server names, from configured files.

Routes to the same origin share its connections, so their TLS settings must be equal.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from yarl import URL

from gateway.config.certificate_files import file_problem, pair_problem
from gateway.config.errors import ConfigError, Mistakes
from gateway.config.gateway import GatewayConfig
from gateway.config.origins import OriginTlsConfig
from gateway.config.routes import RouteConfig


@dataclass(frozen=True, slots=True)
class OriginTls:
    """The TLS settings for one origin."""

    context: ssl.SSLContext
    server_name: str
    """The name that the origin's certificate must have, and the name sent as SNI; empty for the host of its URL."""


def load_tls(config: GatewayConfig) -> dict[str, OriginTls]:
    """Load the TLS settings of all origins that do not use the defaults, by `scheme://host:port`.

    Raises ConfigError for an unusable file, and for routes that contradict each other.
    """
    found: dict[str, OriginTls] = {}
    declared: dict[str, OriginTlsConfig | None] = {}
    mistakes = Mistakes()
    for route in config.routes:
        with mistakes.collected():
            _add(route, found, declared)
    mistakes.raise_any()
    return found


def _add(route: RouteConfig, found: dict[str, OriginTls], declared: dict[str, OriginTlsConfig | None]) -> None:
    """Add the settings of one route's origins to `found`, and the configuration of each origin to `declared`."""
    urls = (*(one.url for one in route.members), *route.leaders)
    key = f"route.{route.name}.origin_tls"
    _add_hosts(key, urls, route.origin_tls, found, declared, is_http2=route.origin_http == "2")


def load_auth_tls(config: GatewayConfig) -> dict[str, OriginTls]:
    """Load the TLS settings of the issuers and services in `[[route.auth]]`, by `scheme://host:port`."""
    found: dict[str, OriginTls] = {}
    declared: dict[str, OriginTlsConfig | None] = {}
    mistakes = Mistakes()
    for route in config.routes:
        for index, rule in enumerate(route.auth):
            with mistakes.collected():
                _add_hosts(f"route.{route.name}.auth[{index}].tls", rule.urls, rule.tls, found, declared)
    mistakes.raise_any()
    return found


def _add_hosts(
    key: str,
    urls: Iterable[str],
    wanted: OriginTlsConfig | None,
    found: dict[str, OriginTls],
    declared: dict[str, OriginTlsConfig | None],
    *,
    is_http2: bool = False,
) -> None:
    made: OriginTls | None = None
    for url in urls:
        host = str(URL(url).origin())
        if not host.startswith("https:"):
            continue
        if declared.setdefault(host, wanted) != wanted:
            raise ConfigError(f"{key}: differs from the setting of another route for {host}")
        if wanted is not None:
            made = found[host] = made or OriginTls(_context(key, wanted, is_http2=is_http2), wanted.server_name)


def tls_files(config: GatewayConfig) -> tuple[str, ...]:
    """Return the files that `load_tls` reads, without duplicates."""
    found = [
        file
        for route in config.routes
        if route.origin_tls is not None
        and any(url.startswith("https:") for url in (*(one.url for one in route.members), *route.leaders))
        for file in (route.origin_tls.ca_file, route.origin_tls.cert_file, route.origin_tls.key_file)
        if file
    ]
    return tuple(dict.fromkeys(found))


def _context(key: str, wanted: OriginTlsConfig, *, is_http2: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if wanted.ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        where = f"{key}.ca_file: {wanted.ca_file}"
        try:
            context.load_verify_locations(wanted.ca_file)
        except ssl.SSLError:
            raise ConfigError(f"{where}: holds no certificates") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: cannot be read: {file_problem(error)}") from None
    if is_http2:
        context.set_alpn_protocols(["h2"])
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if wanted.cert_file:
        try:
            # Pass an empty password.  Otherwise OpenSSL would ask at the terminal for the password of an encrypted key.
            context.load_cert_chain(wanted.cert_file, wanted.key_file or None, password=lambda: b"")
        except (OSError, ValueError) as error:
            file, why = pair_problem(wanted.cert_file, wanted.key_file, error)
            field = "key_file" if file == wanted.key_file else "cert_file"
            raise ConfigError(f"{key}.{field}: {file}: {why}") from None
    return context
