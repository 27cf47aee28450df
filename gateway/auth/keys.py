"""The keys of an issuer, from a file or a JWK Set.

Each key has a type, so a public key is never used to verify an HMAC.  Weak keys are refused when they are read.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import Any, Final, NamedTuple

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

MOST_KEYS: Final = 64
_LEAST_RSA_BITS: Final = 2_048
_LEAST_SECRET_BYTES: Final = 32
"""The least size of an HMAC key (RFC 7518 section 3.2)."""
MOST_CANDIDATES: Final = 4
"""The most keys with which the signature of one token is verified."""
_CURVES: Final = {
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
    "Ed25519": ("Ed25519",),
}
"""The curves of the keys of an algorithm (RFC 7518 section 3.4, RFC 8037 section 3.1)."""
_KINDS: Final[dict[str, type[Key]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey, "oct": OctKey}


class BadKeys(ValueError):
    """The text has no usable keys.  The message is one line for the operator, without any key."""


class VerifyingKey(NamedTuple):
    """A key, with the header values of the tokens that it may verify."""

    kid: str | None
    """The id of the key; None if the key may have signed a token with any id."""
    alg: str | None
    """The algorithm for which the key may be used; None for any algorithm that the configuration allows."""
    key: Key

    def fits(self, alg: str, kind: str) -> bool:
        """Return whether the key may sign by this algorithm, whose keys have the type `kind`."""
        key, curves = self.key, _CURVES.get(alg)
        if key.key_type != kind or self.alg not in (None, alg):
            return False
        return curves is None or (isinstance(key, ECKey | OKPKey) and key.curve_name in curves)


class KeyRing(NamedTuple):
    """The keys of one issuer."""

    keys: tuple[VerifyingKey, ...]

    def names(self) -> frozenset[tuple[str | None, str | None, str]]:
        """Return the ids, algorithms and thumbprints of the keys.  Equal keys have equal thumbprints (RFC 7638)."""
        return frozenset((one.kid, one.alg, one.key.thumbprint()) for one in self.keys)

    def names_of(self, kid: str) -> frozenset[tuple[str | None, str | None, str]]:
        """Return the `names` of the keys that may have signed a token with this key id."""
        return frozenset(name for name in self.names() if name[0] in (None, kid))

    def check_complete(self, kid: str | None) -> None:
        """Do nothing: no key can be added."""

    def keys_for(self, kid: str | None, alg: str, kind: str) -> tuple[VerifyingKey, ...]:
        """Return the keys that may have signed a token with this header.  `kind` is the key type of its algorithm.

        The keys with the id `kid` come before the keys without an id.  The result has at most `MOST_CANDIDATES` keys.
        For a token without a `kid`, the result is empty unless exactly one key fits.
        """
        fitting = tuple(one for one in self.keys if one.fits(alg, kind))
        if kid is None:
            return fitting if len(fitting) == 1 else ()
        named = tuple(one for one in fitting if one.kid == kid)
        return (*named, *(one for one in fitting if one.kid is None))[:MOST_CANDIDATES]


def parse_keys(text: bytes) -> KeyRing:
    """Read the keys of a JWK Set, a JWK or a PEM text.  Raises BadKeys.

    Keys of unknown types, and keys for encryption, are skipped (RFC 7517 section 5).
    """
    if text.lstrip().startswith(b"-----BEGIN"):
        return KeyRing((_from_pem(text),))
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeys("is neither a JWK Set nor a key in PEM") from None
    found = tree.get("keys", [tree] if "kty" in tree else None) if isinstance(tree, dict) else None
    if not isinstance(found, list) or len(found) > MOST_KEYS:
        raise BadKeys(f"is no JWK Set of at most {MOST_KEYS} keys")
    keys = tuple(one for jwk in found if (one := _from_jwk(jwk)) is not None)
    if not keys:
        raise BadKeys("holds no key that can verify a token")
    return KeyRing(keys)


def parse_published_keys(text: bytes) -> KeyRing:
    """Read the keys of a JWK Set that an issuer publishes.  Raises BadKeys if it has no usable key.

    Unusable keys are skipped (RFC 7517 section 5).  Symmetric keys are skipped too, because a published secret is not
    secret.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeys("is no JWK Set") from None
    found = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(found, list) or len(found) > MOST_KEYS:
        raise BadKeys(f"is no JWK Set of at most {MOST_KEYS} keys")
    keys: list[VerifyingKey] = []
    for jwk in found:
        with suppress(BadKeys):
            if isinstance(jwk, dict) and jwk.get("kty") != "oct" and (one := _from_jwk(jwk)) is not None:
                keys.append(one)
    if not keys:
        raise BadKeys("holds no key that can verify a token")
    return KeyRing(tuple(keys))


def _from_pem(text: bytes) -> VerifyingKey:
    if b"PRIVATE KEY" in text:
        raise BadKeys("holds a private key: the gateway needs the public one")
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            return _checked(VerifyingKey(None, None, _imported(kind, text)))
        except (JoseError, ValueError, TypeError, SecurityWarning) as error:
            if isinstance(error, BadKeys):
                raise
    raise BadKeys("holds no public key of a known type in PEM")


def _from_jwk(jwk: Any) -> VerifyingKey | None:
    if not isinstance(jwk, dict) or jwk.get("kty") not in _KINDS or jwk.get("use", "sig") != "sig":
        return None
    kid, alg = jwk.get("kid"), jwk.get("alg")
    if not isinstance(kid, str | None) or not isinstance(alg, str | None):
        raise BadKeys("has a key whose kid or alg is no text")
    private = {"d", "p", "q", "dp", "dq", "qi", "oth"} if jwk["kty"] != "oct" else set()
    try:
        key = _imported(_KINDS[jwk["kty"]], {name: value for name, value in jwk.items() if name not in private})
    except (JoseError, ValueError, TypeError, SecurityWarning):
        raise BadKeys("has a key that cannot be read, or is too short") from None
    return _checked(VerifyingKey(kid, alg, key))


def _imported(kind: type[Key], value: Any) -> Key:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return kind.import_key(value)


def _checked(one: VerifyingKey) -> VerifyingKey:
    key = one.key
    if isinstance(key, RSAKey) and key.raw_value.key_size < _LEAST_RSA_BITS:
        raise BadKeys(f"has an RSA key of fewer than {_LEAST_RSA_BITS} bits")
    if isinstance(key, OctKey) and len(key.raw_value) < _LEAST_SECRET_BYTES:
        raise BadKeys(f"has a secret of fewer than {_LEAST_SECRET_BYTES} bytes")
    return one
