"""Authorisation rules and tokens for `dev --auth`.

The command makes a key pair for a local token issuer.  The private key is not written to disk, and signs only the
tokens that the command prints.  A folder gets the public key, a key for signed URLs, and a configuration file with the
same rules, for use with `check --as` and as an example.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.auth.signed_urls import Signed, SigningKey, expiry_after, signed_query

_ISSUER: Final = "https://dev.invalid"
_AUDIENCE: Final = "streams"
_KEY_ID: Final = "dev"
LIFE_S: Final = 8 * 3_600
"""The lifetime of the printed tokens and signed URLs: a working day."""


@dataclass(frozen=True, slots=True)
class LocalRules:
    """The rules of a route, and credentials that they accept."""

    auth: list[dict[str, Any]]
    """The value of the route's `auth`."""
    config: Path
    """A configuration file with the same rules."""
    reader: str
    """A token that allows reading all streams."""
    writer: str
    """A token that allows everything."""
    link_key: SigningKey
    expires: str
    """The value of `expires` in signed URLs."""

    def signed(self, url: str, path: str) -> str:
        """Return a signed URL for the stream with this path."""
        return f"{url}{path}?{signed_query(Signed(self.expires, path=path), self.link_key)}"


def local_rules(folder: Path, origin: str, wall: float) -> LocalRules:
    """Make keys, rules and tokens at `wall` (Unix seconds).  Raises OSError if the folder cannot be written."""
    # Imported here, so that other commands do not load the library.
    from joserfc.jwk import OKPKey

    key = OKPKey.generate_key("Ed25519", {"kid": _KEY_ID}, private=True)
    keys_file, link_file, config = folder / "jwks.json", folder / "link.key", folder / "gateway.toml"
    keys_file.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    link_key = SigningKey(_KEY_ID, secrets.token_urlsafe(32).encode())
    link_file.touch(mode=0o600)
    link_file.write_bytes(link_key.secret)
    signing = {"id": _KEY_ID, "file": str(link_file)}
    auth: list[dict[str, Any]] = [
        {"by": "jwt", "issuer": _ISSUER, "audience": [_AUDIENCE], "keys_file": str(keys_file)},
        {"by": "signed", "keys": [signing]},
    ]
    config.write_text(
        f'[[route]]\norigin = "{origin}"\ncredentials = "shared"\n\n'
        f'[[route.auth]]\nby = "jwt"\nissuer = "{_ISSUER}"\naudience = ["{_AUDIENCE}"]\n'
        f'keys_file = "{keys_file}"\n\n'
        f'[[route.auth]]\nby = "signed"\nkeys = [{{ id = "{_KEY_ID}", file = "{link_file}" }}]\n'
    )
    return LocalRules(
        auth,
        config,
        _token(key, "reader", "read /**", wall),
        _token(key, "writer", "* /**", wall),
        link_key,
        expiry_after(wall, LIFE_S),
    )


def _token(key: Any, subject: str, permission: str, wall: float) -> str:
    from joserfc import jwt

    claims = {
        "iss": _ISSUER,
        "aud": _AUDIENCE,
        "sub": subject,
        "iat": int(wall),
        "exp": int(wall) + LIFE_S,
        "jti": secrets.token_hex(8),
        "streams": [permission],
    }
    header = {"alg": "Ed25519", "kid": _KEY_ID, "typ": "at+jwt"}
    text: str = jwt.encode(header, claims, key, algorithms=["Ed25519"])
    return text
