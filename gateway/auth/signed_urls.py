"""Signed URLs and cookies, by HMAC-SHA256.

A signed URL has these query parameters:

    expires    Unix seconds
    key        the id of the signing key
    signature  base64url
    methods    the allowed actions, separated by commas; optional, default `read`
    streams    a pattern of paths; optional, default the URL's path
    network    the client network (CIDR); optional

`offset`, `live` and `cursor` are not signed, because they change with each request.  All other parameters are signed.
Otherwise a client could change such a parameter, and the changed URL might name another stream.  The value of a signed
cookie is a query with the same parameters, but `streams` is required.

The signed text has seven lines: a version, the actions, the streams, the expiry, the network, the key's id, and the
other parameters in canonical form.  The line of the streams is the URL's path, or `streams=` and the pattern.  The mark
`streams=` tells a pattern from a path, because `/rooms/*` may be either.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote

from gateway.auth.permissions import Action, BadPermission, Exact, Pattern, Permission, parse_actions
from gateway.auth.verdict import BadCredential, Principal

LEAST_SIGNING_BYTES: Final = 16
EXPIRES: Final = "expires"
SIGNATURE: Final = "signature"
KEY: Final = "key"
METHODS: Final = "methods"
STREAMS: Final = "streams"
NETWORK: Final = "network"
PARAMETERS: Final = (EXPIRES, SIGNATURE, KEY, METHODS, STREAMS, NETWORK)
"""The parameters of a signature.  The gateway removes these parameters from the URLs of signed requests."""
EXPIRED_CODE: Final = "SIGNATURE_EXPIRED"
INVALID_CODE: Final = "SIGNATURE_INVALID"
_VERSION: Final = "durable-gateway-1"
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_MOST_CHARS: Final = 2_048


class SigningKey(NamedTuple):
    """A signing key and its id."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"<SigningKey {self.id}>"


class Signed(NamedTuple):
    """The values that are signed."""

    expires: str
    methods: str = ""
    """The allowed actions; empty for read."""
    streams: str = ""
    """A pattern of paths; empty if only the stream of the URL is signed."""
    network: str = ""
    key: str = ""
    others: str = ""
    """The other parameters of the URL, in canonical form."""
    path: str = ""
    """The canonical path of the URL.  It is signed only without a pattern."""

    def text(self) -> bytes:
        """Return the signed text."""
        # A path begins with a slash, so no path equals a marked pattern.
        streams = f"{STREAMS}={self.streams}" if self.streams else self.path
        lines = (_VERSION, self.methods, streams, self.expires, self.network, self.key, self.others)
        return "\n".join(lines).encode("utf-8", "surrogateescape")


def sign(signed: Signed, key: SigningKey) -> str:
    """Return the signature, in base64url without padding."""
    digest = hmac.new(key.secret, signed.text(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def signed_query(signed: Signed, key: SigningKey) -> str:
    """Return the parameters that sign a URL or a cookie, in the form of a query."""
    named = signed._replace(key=key.id)
    pairs = [
        *((EXPIRES, named.expires), (KEY, key.id), (METHODS, named.methods), (NETWORK, named.network)),
        *((STREAMS, named.streams), (SIGNATURE, sign(named, key))),
    ]
    return "&".join(f"{name}={quote(value, safe='/*,:')}" for name, value in pairs if value)


class Presented(NamedTuple):
    """The signature parameters that a client has sent."""

    values: Mapping[str, str]
    path: str
    others: str = ""
    is_cookie: bool = False


def parameters_of(text: str) -> dict[str, str]:
    """Parse the parameters in a cookie's value.  Raises BadCredential."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=len(PARAMETERS))
    except ValueError:
        raise BadCredential("The signature is not valid", INVALID_CODE) from None
    if len(dict(pairs)) < len(pairs) or not set(dict(pairs)) <= set(PARAMETERS):
        raise BadCredential("The signature is not valid", INVALID_CODE)
    return dict(pairs)


def verify_signature(presented: Presented, keys: Sequence[SigningKey], client: str | None, wall: float) -> Principal:
    """Verify a signature at `wall` (Unix seconds); return its principal (the authenticated party).  Raises
    BadCredential.

    `client` is the address of the client.
    """
    wrong = BadCredential("The signature is not valid", INVALID_CODE)
    values = presented.values
    if sum(map(len, values.values())) > _MOST_CHARS:
        raise wrong
    expires, key_id, streams = values.get(EXPIRES, ""), values.get(KEY, ""), values.get(STREAMS, "")
    if not _DIGITS.fullmatch(expires) or (presented.is_cookie and not streams):
        raise wrong
    methods, network = values.get(METHODS, ""), values.get(NETWORK, "")
    signed = Signed(expires, methods, streams, network, key_id, presented.others, presented.path)
    key = next((one for one in keys if one.id == key_id), None)
    # Compare even without a key, so that response times do not reveal which key ids exist.
    expected = sign(signed, key or SigningKey("", b"no key"))
    is_same = hmac.compare_digest(expected.encode(), values.get(SIGNATURE, "").encode("utf-8", "surrogateescape"))
    if key is None or not is_same:
        raise wrong
    if wall >= int(expires):
        raise BadCredential("The signature has expired", EXPIRED_CODE)
    if network and not _is_in(client, network):
        raise BadCredential("The signature is for another network", INVALID_CODE)
    try:
        actions = parse_actions(methods.split(",")) if methods else frozenset({Action.READ})
        pattern = Pattern(streams) if streams else Exact(presented.path)
    except BadPermission:
        raise wrong from None
    return Principal(key_id, (Permission(actions, pattern),), float(expires), key_id=key_id, network=network)


def _is_in(client: str | None, network: str) -> bool:
    try:
        return client is not None and ipaddress.ip_address(client) in ipaddress.ip_network(network)
    except ValueError:
        return False


def expiry_after(wall: float, seconds: float) -> str:
    """Return the expiry of a signature that is valid for `seconds` after `wall` (Unix seconds)."""
    return str(math.ceil(wall + seconds))
