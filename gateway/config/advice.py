"""Warnings about a valid configuration: settings that have no effect, or probably not the intended effect.

Each warning is one line with the source of the setting, its key, and the reason.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from gateway.config.addresses import EVERY, Address, normal_host, overlap
from gateway.config.certificate_files import read_certificate
from gateway.config.gateway import GatewayConfig
from gateway.config.sections import SECTIONS, TABLES
from gateway.config.settings import LoadedConfig, source_of
from gateway.config.sizes import format_bytes
from gateway.config.variables import ADMIN_TOKEN_VARIABLE, ENV_PREFIX

_OTHERS: Final = frozenset({ADMIN_TOKEN_VARIABLE, f"{ENV_PREFIX}PIPELINE_AUTHORIZATION"})
"""Variables that do not set keys of the configuration."""
_OF_KUBERNETES: Final = re.compile(r".*_(?:SERVICE_(?:HOST|PORT)(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)")
"""The variables that Kubernetes sets in a pod for each service.  If a service is named durable-gateway, they begin with
the prefix of the gateway's own variables."""


class _Needs(NamedTuple):
    """Keys that have an effect only together with another setting."""

    section: tuple[str, ...]
    keys: frozenset[str] | None
    """The keys that need the other setting; None for all optional keys of the section."""
    is_met: Callable[[GatewayConfig], bool]
    what: str


_FILE: Final = frozenset({"path", "rotate_bytes", "rotate_s", "keep_files"})
_STREAM: Final = frozenset({"stream_url", "stream_authorization"})
_NEEDS: Final = (
    _Needs(("log",), _FILE, lambda config: config.log.sink == "file", 'unless log.sink = "file"'),
    _Needs(("log",), _STREAM, lambda config: config.log.sink == "stream", 'unless log.sink = "stream"'),
    _Needs(("log",), None, lambda config: config.log.sink != "none", "without log.sink"),
    _Needs(("tracing",), None, lambda config: bool(config.tracing.endpoint), "without tracing.endpoint"),
    _Needs(("cache", "plan"), None, lambda config: bool(config.cache.plan.file), "without cache.plan.file"),
    _Needs(("store",), None, lambda config: bool(config.store.path), "without store.path"),
    _Needs(
        ("server",),
        frozenset({"forwarded_by"}),
        lambda config: bool(config.server.trusted_proxies),
        "without server.trusted_proxies",
    ),
)
_SWITCHES: Final = frozenset({"log.sink", "tracing.endpoint", "cache.plan.file", "store.path"})


def warnings(loaded: LoadedConfig, environ: Mapping[str, str], wall: float) -> Iterator[str]:
    """Return all warnings about a configuration loaded with this environment, at `wall` (Unix seconds)."""
    yield from _unused_variables(environ)
    yield from _without_effect(loaded)
    yield from _routes(loaded)
    yield from _log(loaded)
    yield from _memory(loaded)
    yield from _expired(loaded.config, wall)


def _unused_variables(environ: Mapping[str, str]) -> Iterator[str]:
    sections = tuple(f"{ENV_PREFIX}{section}__" for section in (*map(str.upper, SECTIONS), "ROUTE"))
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name.startswith(sections) or name in _OTHERS:
            continue
        if not _OF_KUBERNETES.fullmatch(name):
            close = difflib.get_close_matches(name, _known_variables(name), 1)
            yield f"env {name}: sets nothing" + (f" (did you mean {close[0]}?)" if close else "")


def _known_variables(like: str) -> Iterator[str]:
    yield from _OTHERS
    for section, model in SECTIONS.items():
        for field in model.model_fields:
            inner = TABLES.get((model, field))
            names = [f"{field}__{name}" for name in inner.model_fields] if inner is not None else [field]
            yield from (f"{ENV_PREFIX}{section}__{name}".upper() for name in names)
    # The variable may be meant for a key of a route.  Keep the rest of its name, which begins with the route's name.
    rest = like.removeprefix(ENV_PREFIX).partition("__")[2]
    if rest:
        yield f"{ENV_PREFIX}ROUTE__{rest}"


def _without_effect(loaded: LoadedConfig) -> Iterator[str]:
    said: set[str] = set()
    for need in _NEEDS:
        if need.is_met(loaded.config):
            continue
        for path, source in loaded.sources.items():
            key = ".".join(map(str, path))
            is_of = path[:-1] == need.section and (need.keys is None or path[-1] in need.keys)
            if is_of and key not in said and key not in _SWITCHES:
                said.add(key)
                yield f"{source}: {key}: has no effect {need.what}"


def _own_addresses(config: GatewayConfig) -> list[Address]:
    own = [one.bind_address for one in config.every_listener] + [config.server.admin_address]
    return [one for one in own if isinstance(one, Address)]


def _log(loaded: LoadedConfig) -> Iterator[str]:
    log = loaded.config.log
    if log.sink == "stream" and any(
        _leads_to(_address_of(log.stream_url), one) for one in _own_addresses(loaded.config)
    ):
        source = source_of(loaded.sources, ("log", "stream_url")) or "default"
        yield (
            f"{source}: log.stream_url: {_authority_of(log.stream_url)} is an address of this gateway: "
            "each write of the log would be logged in turn"
        )


def _routes(loaded: LoadedConfig) -> Iterator[str]:
    config = loaded.config
    addresses = _own_addresses(config)
    for index, route in enumerate(config.routes):

        def source(field: str, at: int = index) -> str:
            path = ("routes", at, field)
            within = (one for key, one in loaded.sources.items() if key[:3] == path)
            return source_of(loaded.sources, path) or next(within, "default")

        if route.protocol == "s2" and route.origin_http == "1.1" and not route.is_bridged:
            yield (
                f"{source('protocol')}: route.{route.name}.protocol: append sessions of S2's clients need "
                'origin_http = "2", because the origin acknowledges while the client still sends'
            )
        if route.credentials == "shared" and not route.auth:
            yield (
                f"{source('credentials')}: route.{route.name}.credentials: every client that reaches this port reads "
                "every stream of the route: add [[route.auth]], or authorise in front of the gateway"
            )
        if route.auth and route.credentials == "partition":
            yield (
                f"{source('auth')}: route.{route.name}.credentials: each token has a tape of its own: with "
                '[[route.auth]], credentials = "shared" serves all of them from one'
            )
        if any(rule.parameter for rule in route.auth):
            yield (
                f"{source('auth')}: route.{route.name}.auth: a token in a query parameter is in histories and in the "
                "logs of proxies (RFC 9700): prefer a cookie or a signed URL"
            )
        for url in (url for rule in route.auth if rule.by == "jwt" for url in rule.urls):
            host = _address_of(url).host
            if url.startswith("http:") and not any(map(_is_of_this_machine, EVERY.get(host, (host,)))):
                yield (
                    f"{source('auth')}: route.{route.name}.auth: {_authority_of(url)} is plain http: an attacker on "
                    "the way can replace the keys, and so forge tokens"
                )
        urls = (*(one.url for one in route.members), *route.leaders)
        if route.origin_tls is not None and not any(url.startswith("https:") for url in urls):
            key = f"{source('origin_tls')}: route.{route.name}.origin_tls"
            yield f"{key}: has no effect: no origin of the route is https"
        for url in urls:
            if any(_leads_to(_address_of(url), one) for one in addresses):
                field = "origin" if route.origin else "origins"
                yield (
                    f"{source(field)}: route.{route.name}.{field}: {_authority_of(url)} is an address of this gateway: "
                    "requests would loop"
                )


def _leads_to(target: Address, listener: Address) -> bool:
    """Whether a connection to `target` arrives at this listener.

    Names other than `localhost` are not resolved.  They match only a listener with the same name.
    """
    if not overlap(target, listener):
        return False
    is_every = not listener.host or listener.host in EVERY[""]
    return not is_every or any(_is_of_this_machine(host) for host in EVERY.get(target.host, (target.host,)))


def _is_of_this_machine(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        ipaddress.ip_address(host)
        # Binding succeeds only for an address of this machine.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def _authority_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _address_of(url: str) -> Address:
    parts = urlsplit(url)
    return Address(normal_host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80))


def _memory(loaded: LoadedConfig) -> Iterator[str]:
    limits = loaded.config.limits
    if 0 < limits.memory_max_bytes < limits.cache_bytes:
        source = source_of(loaded.sources, ("limits", "memory_max_bytes")) or "default"
        yield (
            f"{source}: limits.memory_max_bytes: {format_bytes(limits.memory_max_bytes)} is less than "
            f"limits.cache_bytes, {format_bytes(limits.cache_bytes)}: the cache cannot fill"
        )


def _expired(config: GatewayConfig, wall: float) -> Iterator[str]:
    files: list[tuple[str, str]] = []
    for index, listener in enumerate(config.every_listener):
        pairs = listener.tls.certificates if listener.tls is not None else ()
        files += [(f"listener[{index}].tls.certificates[{at}]", one.certificate) for at, one in enumerate(pairs)]
    for route in config.routes:
        if route.origin_tls is not None and route.origin_tls.cert_file:
            files.append((f"route.{route.name}.origin_tls.cert_file", route.origin_tls.cert_file))
    for key, file in files:
        expires_at = read_certificate(file, key).expires_at
        if expires_at < wall:
            yield f"{key}: {file}: expired on {datetime.fromtimestamp(expires_at, UTC):%Y-%m-%d}"
