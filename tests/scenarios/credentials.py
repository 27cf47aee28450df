"""Credentials for routes with rules who may: an issuer's tokens, and signed URLs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from gateway.auth.signed_urls import Signed, SigningKey, signed_query

ISSUER = "https://issuer.test"
AUDIENCE = "streams"
WALL = 1_790_000_000
"""The wall clock of tests, in Unix seconds."""
LINK_KEY = SigningKey("one", b"a key that nobody guesses")

PEM_KEYS: dict[str, RSAKey | ECKey | OKPKey] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa"}, private=True),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}, private=True),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed"}, private=True),
}
KEYS: dict[str, Key] = {**PEM_KEYS}
SECRET = OctKey.generate_key(256, {"kid": "secret"})


def token(sub: str = "ada", alg: str = "ES256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A valid token, except for what is asked for; a claim that is None is left out."""
    key = KEYS.get(alg, SECRET)
    fields = {"alg": alg, "kid": key.kid, "typ": "at+jwt", **(header or {})}
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": sub, "exp": WALL + 3_600, "iat": WALL, **claims}
    text: str = jwt.encode(
        {name: value for name, value in fields.items() if value is not None},
        {name: value for name, value in found.items() if value is not None},
        key,
        algorithms=[alg],
        default_type=None,
    )
    return text


def bearer(sub: str = "ada", **more: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(sub, **more)}"}


def key_file(folder: Path) -> str:
    """A file with the issuer's public keys."""
    file = folder / "jwks.json"
    file.write_text(json.dumps({"keys": [key.as_dict(private=False) for key in KEYS.values()]}))
    return str(file)


def link_key_file(folder: Path) -> str:
    file = folder / "link.key"
    file.write_bytes(LINK_KEY.secret + b"\n")
    return str(file)


def jwt_rule(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "by": "jwt",
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "keys_file": key_file(folder),
        "leeway_s": 0,
        "permissions": ["* /{sub}/**", "read /shared/*"],
        **more,
    }


def signed_rule(folder: Path, **more: Any) -> dict[str, Any]:
    return {"by": "signed", "keys": [{"id": LINK_KEY.id, "file": link_key_file(folder)}], **more}


def signed(path: str, expires: int = WALL + 3_600, **more: str) -> str:
    """A signed URL's target, without the parameters of a read."""
    named = Signed(str(expires), path=path, **more)
    others = f"{named.others}&" if named.others else ""
    return f"{path}?{others}{signed_query(named, LINK_KEY)}"
