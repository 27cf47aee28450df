"""The authorisation rules of a route, made from the configuration and its key files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.auth.forward_auth import ForwardRule, own_credentials
from gateway.auth.permissions import BadPermission, Pattern, parse_permission
from gateway.auth.questions import KeySource
from gateway.auth.signed_urls import LEAST_SIGNING_BYTES, SigningKey
from gateway.auth.tokens import TokenRule, registry_of
from gateway.config.authorisation import AuthRuleConfig, discovery_url
from gateway.config.credentials import read_secret
from gateway.config.errors import ConfigError, Mistakes
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing

_MOST_BYTES: Final = 1 << 20
_MOST_REFUSED_S: Final = 1.0
"""On a route that conceals nothing, a service's refusal without `max-age` is kept for at most these seconds."""


class JwtRule(NamedTuple):
    """The rule for the tokens of one issuer."""

    tokens: TokenRule
    cookie: str
    parameter: str


class SignedRule(NamedTuple):
    """The rule for signed URLs and cookies."""

    keys: tuple[SigningKey, ...]
    cookie: str


class PublicRule(NamedTuple):
    """The rule for streams that all clients may read."""

    patterns: tuple[Pattern, ...]

    def matches(self, path: str) -> bool:
        """Return whether the stream with this canonical path is public."""
        return any(one.matches(path) for one in self.patterns)


Rule = JwtRule | SignedRule | PublicRule | ForwardRule
Rules = tuple[Rule, ...]


def load_rules(config: GatewayConfig) -> dict[str, Rules]:
    """Load the rules of all routes that have rules, by route name.  Raises ConfigError with all mistakes."""
    found: dict[str, Rules] = {}
    mistakes = Mistakes()
    for route in config.routes:
        rules: list[Rule] = []
        for index, one in enumerate(route.auth):
            with mistakes.collected():
                rules.append(_rule(route, index, one))
        if rules:
            found[route.name] = tuple(rules)
    mistakes.raise_any()
    return found


def _rule(route: RouteConfig, index: int, config: AuthRuleConfig) -> Rule:
    where = f"route.{route.name}.auth[{index}]"
    try:
        if config.by == "public":
            return PublicRule(tuple(map(Pattern, config.streams)))
        permissions = tuple(map(parse_permission, config.permissions))
    except BadPermission as error:
        raise ConfigError(f"{where}: {error}") from None
    if config.by == "forward":
        return ForwardRule(
            route.name,
            config.url,
            config.method,
            config.request_headers,
            own_credentials(config.request_headers, map(str.lower, route.credential_headers)),
            config.parameter,
            config.sends_target,
            config.sends_client,
            config.anonymous,
            config.principal_from,
            config.tenant_from,
            config.permissions_from,
            config.keep_s,
            # If the route conceals its streams, a refusal must not be kept for a shorter or longer time than the 404 of
            # an absent stream.  Otherwise a client could distinguish the two.
            config.keep_s if route.conceal else min(config.keep_s, _MOST_REFUSED_S),
            config.most_keep_s,
            config.timeout_s,
        )
    if config.by == "signed":
        keys = [SigningKey(one.id, _secret(one.file, f"{where}.keys: {one.file}")) for one in config.keys]
        return SignedRule(tuple(keys), config.cookie)
    tokens = TokenRule(
        config.issuer,
        frozenset(config.audience),
        frozenset(config.algorithms),
        _keys(config, where),
        registry_of(frozenset(config.algorithms)),
        config.any_type,
        config.leeway_s,
        permissions,
        config.permissions_claim,
        config.tenant_claim,
    )
    return JwtRule(tokens, config.cookie, config.parameter)


def _keys(config: AuthRuleConfig, where: str) -> KeyRing | KeySource:
    if not config.keys_file:
        return KeySource(config.issuer, config.keys_url or discovery_url(config.issuer), not config.keys_url)
    # Imported here, so that a gateway without such rules does not load the cryptography library.
    from gateway.auth.keys import BadKeys, parse_keys

    file = f"{where}.keys_file: {config.keys_file}"
    try:
        return parse_keys(read_secret(config.keys_file, _MOST_BYTES, file))
    except BadKeys as error:
        raise ConfigError(f"{file}: {error}") from None


def key_sources(every: Iterable[Rules]) -> Iterator[KeySource]:
    """Return the published key sets that these rules use."""
    for rules in every:
        for rule in rules:
            if isinstance(rule, JwtRule) and isinstance(rule.tokens.keys, KeySource):
                yield rule.tokens.keys


def _secret(path: str, where: str) -> bytes:
    secret = read_secret(path, _MOST_BYTES, where).strip()
    if len(secret) < LEAST_SIGNING_BYTES:
        raise ConfigError(f"{where}: a key of fewer than {LEAST_SIGNING_BYTES} bytes can be guessed")
    return secret
