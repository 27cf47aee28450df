"""Rules and tokens for `dev --auth`: an issuer that lives as long as the process, with a key of its own.

The private key is never written: the tokens that are printed are all that it signs.  The folder has the public keys, a
key for signed URLs, and a configuration with the same rules, for `check --as` and as a beginning of one's own.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.auth.signatures import Signed, SigningKey, expiry_after, signed_query

_ISSUER: Final = "https://dev.invalid"
_AUDIENCE: Final = "streams"
_KEY_ID: Final = "dev"
LIFE_S: Final = 8 * 3_600
"""The tokens and signed URLs that are printed are valid for a working day."""


@dataclass(frozen=True, slots=True)
class LocalRules:
    """The rules of the route, and credentials that they accept."""

    auth: list[dict[str, Any]]
    """The route's `auth`."""
    config: Path
    """A configuration file with the same rules."""
    reader: str
    """A token that reads every stream."""
    writer: str
    """A token that allows everything."""
    link_key: SigningKey
    expires: str
    """When a signed URL expires, as its parameter has it."""

    def signed(self, url: str, path: str) -> str:
        """A signed URL of the stream with this path."""
        return f"{url}{path}?{signed_query(Signed(self.expires, streams=path), self.link_key, path)}"


def local_rules(folder: Path, origin: str, wall: float) -> LocalRules:
    """Make keys in the folder, and rules with them, at `wall` (Unix seconds).  Raises OSError if the folder cannot be
    written."""
    # Other commands need not load the library.
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
