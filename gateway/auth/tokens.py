"""Verifies JWT access tokens (RFC 7519, RFC 9068) with the keys of their issuer.

The issuer in a token selects the rule, and only the rule determines the valid keys and algorithms.  Header fields that
contain or identify a key (`jwk`, `jku`, `x5c`, `x5u`) are ignored.  Tokens with critical extensions are refused.  JSON
with a duplicate name is refused, because parsers differ in which of the values they use.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway.auth.permissions import BadPermission, Permission, parse_claim, parse_details
from gateway.auth.verdict import BadCredential, Principal

if TYPE_CHECKING:
    from joserfc import jws

    from gateway.auth.keys import KeyRing, VerifyingKey
    from gateway.auth.questions import KeySource

MOST_TOKEN_BYTES: Final = 8_192
_MOST_NAME_CHARS: Final = 256
_FAR: Final = 1e11
"""The latest accepted time in Unix seconds, in the year 5138."""
_TYPES: Final = frozenset({"at+jwt", "application/at+jwt"})
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP", "HS": "oct"}


class Keys(Protocol):
    """The known keys of an issuer."""

    def keys_for(self, kid: str | None, alg: str, kind: str) -> tuple[VerifyingKey, ...]:
        """Return the keys that may have signed a token with this header."""

    def check_complete(self, kid: str | None) -> None:
        """Raise Undecided if the issuer may have added a key with this id."""


class TokenRule(NamedTuple):
    """Determines which tokens of an issuer are valid, and which permissions they have."""

    issuer: str
    audience: frozenset[str]
    algorithms: frozenset[str]
    keys: KeyRing | KeySource
    registry: jws.JWSRegistry
    any_type: bool
    leeway_s: float
    permissions: tuple[Permission, ...]
    """Permissions that all valid tokens have, in addition to the permissions in the token itself."""
    permissions_claim: str
    tenant_claim: str


@cache
def registry_of(algorithms: frozenset[str]) -> jws.JWSRegistry:
    """Return the JWS registry that accepts only these algorithms.  Cached, so that equal rules compare equal."""
    # Imported here and below, so that a gateway without such rules does not load the cryptography library.
    from joserfc import jws

    registry = jws.JWSRegistry(algorithms=sorted(algorithms), strict_check_header=False)
    registry.max_header_length = 4_096
    registry.max_payload_length = MOST_TOKEN_BYTES
    return registry


class Unverified(NamedTuple):
    """A token that has not been verified, so that nothing in it may be trusted."""

    text: str
    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def issuer(self) -> object:
        """The value of `iss`."""
        return self.claims.get("iss")


def read_token(text: str) -> Unverified:
    """Parse a compact JWT without verifying it.  Raises BadCredential."""
    parts = text.split(".") if len(text) <= MOST_TOKEN_BYTES and text.isascii() else []
    if len(parts) != 3 or not all(parts[:2]):
        raise BadCredential("The token is no JWT")
    return Unverified(text, _object(parts[0]), _object(parts[1]))


def _object(part: str) -> dict[str, Any]:
    try:
        if "=" in part or "+" in part or "/" in part:
            raise ValueError
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
        found = json.loads(data.decode(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BadCredential("The token is no JWT") from None
    if not isinstance(found, dict):
        raise BadCredential("The token is no JWT")
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def verify(token: Unverified, rule: TokenRule, keys: Keys, wall: float) -> Principal:
    """Verify a token with these keys of the rule's issuer at `wall` (Unix seconds); return its principal (the
    authenticated party).

    Raises BadCredential, or Undecided if a fetch may find the token's key.
    """
    header, claims = token.header, token.claims
    alg, kid, typ = header.get("alg"), header.get("kid"), header.get("typ")
    if "crit" in header or "b64" in header:
        raise BadCredential("The token has a critical extension")
    if not isinstance(alg, str) or alg not in rule.algorithms:
        raise BadCredential("The token's algorithm is not accepted")
    if not isinstance(kid, str | None):
        raise BadCredential("The token's key id is no text")
    if not rule.any_type and (not isinstance(typ, str) or typ.lower() not in _TYPES):
        raise BadCredential("The token is no access token")
    if claims.get("iss") != rule.issuer:
        raise BadCredential("The token's issuer is unknown")
    # Check the times before the key is looked up, so that an expired token causes no fetch.
    expires_at = _check_times(claims, rule.leeway_s, wall)
    aud = claims.get("aud")
    audience = [aud] if isinstance(aud, str) else aud
    if not isinstance(audience, list) or not any(isinstance(one, str) and one in rule.audience for one in audience):
        raise BadCredential("The token is for another audience")
    candidates = keys.keys_for(kid, alg, _KINDS[alg[:2]])
    if not candidates:
        raise BadCredential("The token's key is unknown")
    signer = _signer(token.text, candidates, rule)
    if signer is None:
        if kid is not None and all(one.kid != kid for one in candidates):
            # Only keys without an id were tried.
            keys.check_complete(kid)
        raise BadCredential("The token's signature is wrong")
    subject = claims.get("sub", "")
    tenant = claims.get(rule.tenant_claim, "") if rule.tenant_claim else ""
    token_id = claims.get("jti", "")
    for name in (subject, tenant, token_id):
        if not isinstance(name, str) or len(name) > _MOST_NAME_CHARS or not name.isprintable():
            raise BadCredential("A name in the token is no text, or too long")
    if not subject and not rule.any_type:
        raise BadCredential("The token has no subject")
    try:
        permissions = rule.permissions
        if (simple := claims.get(rule.permissions_claim)) is not None:
            permissions += parse_claim(simple)
        if (details := claims.get("authorization_details")) is not None:
            permissions += parse_details(details)
    except BadPermission:
        raise BadCredential("The token's permissions are not understood") from None
    places = {place for one in permissions for place in one.pattern.places}
    # Keep only the claims in the patterns of its permissions.
    filled = {place: claims[place] for place in places if place in claims}
    key_id = signer.kid or kid or ""
    return Principal(subject, permissions, expires_at, tenant, token_id, key_id, claims=filled, issuer=rule.issuer)


def _signer(text: str, candidates: Sequence[VerifyingKey], rule: TokenRule) -> VerifyingKey | None:
    """Return the key that has signed the token; None if it is none of these keys."""
    from joserfc import jws
    from joserfc.errors import JoseError

    for one in candidates:
        with suppress(JoseError, ValueError, TypeError):
            jws.deserialize_compact(text, one.key, registry=rule.registry)
            return one
    return None


def _check_times(claims: dict[str, Any], leeway_s: float, wall: float) -> float:
    """Check the time claims.  Return the time when the token expires, including the leeway (Unix seconds)."""
    expires_at = _time(claims.get("exp"))
    if expires_at is None:
        raise BadCredential("The token has no expiry")
    if wall >= expires_at + leeway_s:
        raise BadCredential("The token has expired")
    for name in ("nbf", "iat"):
        if name in claims:
            begins_at = _time(claims[name])
            if begins_at is None or wall < begins_at - leeway_s:
                raise BadCredential("The token is not valid yet")
    return expires_at + leeway_s


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # The comparison also refuses infinity.
    return float(value) if 0 <= value < _FAR else None
