"""How origins are known over TLS, and what they are shown: read from the files that the configuration names.

An origin may serve several routes, and its connections are all alike, so routes that lead to one say the same of it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from yarl import URL

from gateway.config.errors import ConfigError, Mistakes
from gateway.config.gateway import GatewayConfig
from gateway.config.origins import OriginTlsConfig
from gateway.config.routes import RouteConfig


@dataclass(frozen=True, slots=True)
class OriginTls:
    """How TLS is spoken with an origin."""

    context: ssl.SSLContext
    server_name: str
    """What its certificate is to be for, and it is asked for by; empty: the host of its URL."""


def load_tls(config: GatewayConfig) -> dict[str, OriginTls]:
    """The origins with which TLS is spoken otherwise than by default, by scheme, host and port.

    ConfigError where a file cannot be used, or routes contradict each other.
    """
    found: dict[str, OriginTls] = {}
    said: dict[str, OriginTlsConfig | None] = {}
    mistakes = Mistakes()
    for route in config.routes:
        with mistakes.collected():
            _add(route, found, said)
    mistakes.raise_any()
    return found


def _add(route: RouteConfig, found: dict[str, OriginTls], said: dict[str, OriginTlsConfig | None]) -> None:
    """Add the origins of one route to `found`, and what it says of them to `said`."""
    made: OriginTls | None = None
    for url in (*(one.url for one in route.members), *route.leaders):
        origin = str(URL(url).origin())
        if not origin.startswith("https:"):
            continue
        if said.setdefault(origin, route.origin_tls) != route.origin_tls:
            raise ConfigError(f"route.{route.name}.origin_tls: another route says otherwise of {origin}")
        if route.origin_tls is not None:
            made = found[origin] = made or OriginTls(_context(route, route.origin_tls), route.origin_tls.server_name)


def tls_files(config: GatewayConfig) -> tuple[str, ...]:
    """The files that `load_tls` reads, each once."""
    found = [
        file
        for route in config.routes
        if route.origin_tls is not None
        and any(url.startswith("https:") for url in (*(one.url for one in route.members), *route.leaders))
        for file in (route.origin_tls.ca_file, route.origin_tls.cert_file, route.origin_tls.key_file)
        if file
    ]
    return tuple(dict.fromkeys(found))


def _context(route: RouteConfig, wanted: OriginTlsConfig) -> ssl.SSLContext:
    key = f"route.{route.name}.origin_tls"
    context = ssl.create_default_context()
    if wanted.ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        where = f"{key}.ca_file: {wanted.ca_file}"
        try:
            context.load_verify_locations(wanted.ca_file)
        except ssl.SSLError:
            raise ConfigError(f"{where}: holds no certificates") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: cannot be read: {_word(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if wanted.cert_file:
        where = f"{key}.cert_file: {wanted.cert_file}"
        try:
            # Without a password: asked for one, OpenSSL would ask whoever sits at the terminal.
            context.load_cert_chain(wanted.cert_file, wanted.key_file or None, password=lambda: b"")
        except ssl.SSLError:
            raise ConfigError(f"{where}: holds no certificate, or not that of its key") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: cannot be read: {_word(error)}") from None
    return context


def _word(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "no path of a file"
