"""Signed URLs and cookies: HMAC-SHA256 over a class of methods, a pattern of paths, an expiry and a client network.

The parameters of a signed URL are `expires` (Unix seconds), `key` (the id of the key), `signature`, and, only if they
are needed, `methods` (actions, separated by commas; read is the default), `streams` (a pattern, if the signature is not
for the URL's path alone) and `network` (CIDR).  `offset`, `live` and `cursor` are not signed, because they change with
each request; every other parameter is part of the signed text, so that no holder can make new streams of one.  A cookie
has the same parameters in its value, in the form of a query, and always names its `streams`.

The signed text is a line for each of: a version, the methods, the pattern, the expiry, the network, the key's id, and
the other parameters in canonical form.
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
"""The parameters of a signature.  They are taken out of a URL that has `signature`."""
EXPIRED_CODE: Final = "SIGNATURE_EXPIRED"
INVALID_CODE: Final = "SIGNATURE_INVALID"
_VERSION: Final = "durable-gateway-1"
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_MOST_CHARS: Final = 2_048


class SigningKey(NamedTuple):
    """A key with its id."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"<SigningKey {self.id}>"


class Signed(NamedTuple):
    """The terms of a signature."""

    expires: str
    methods: str = ""
    """Empty for read."""
    streams: str = ""
    """A pattern of paths, or the path of the one stream."""
    network: str = ""
    key: str = ""
    others: str = ""
    """The other parameters of the URL, in canonical form."""

    def text(self) -> bytes:
        """The signed text."""
        lines = (_VERSION, self.methods, self.streams, self.expires, self.network, self.key, self.others)
        return "\n".join(lines).encode("utf-8", "surrogateescape")


def sign(signed: Signed, key: SigningKey) -> str:
    """The signature, in base64url without padding."""
    digest = hmac.new(key.secret, signed.text(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def signed_query(signed: Signed, key: SigningKey, path: str) -> str:
    """The query that makes a URL with this path a signed one, without its other parameters."""
    named = signed._replace(key=key.id)
    pairs = [(EXPIRES, named.expires), (KEY, key.id), (METHODS, named.methods), (NETWORK, named.network)]
    if named.streams != path:
        pairs.append((STREAMS, named.streams))
    pairs.append((SIGNATURE, sign(named, key)))
    return "&".join(f"{name}={quote(value, safe='/*,:')}" for name, value in pairs if value)


class Presented(NamedTuple):
    """A signature as a client sent it, with the parameters that came with it."""

    values: Mapping[str, str]
    path: str
    others: str = ""
    is_cookie: bool = False


def parameters_of(text: str) -> dict[str, str]:
    """The parameters in a cookie's value.  Raises BadCredential."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=len(PARAMETERS))
    except ValueError:
        raise BadCredential("The signature is not valid", INVALID_CODE) from None
    if len(dict(pairs)) < len(pairs) or not set(dict(pairs)) <= set(PARAMETERS):
        raise BadCredential("The signature is not valid", INVALID_CODE)
    return dict(pairs)


def verify_signature(presented: Presented, keys: Sequence[SigningKey], client: str | None, wall: float) -> Principal:
    """The principal of a signature, at `wall` (Unix seconds), for a client with this address.  Raises
    BadCredential."""
    wrong = BadCredential("The signature is not valid", INVALID_CODE)
    values = presented.values
    if sum(map(len, values.values())) > _MOST_CHARS:
        raise wrong
    expires, key_id, streams = values.get(EXPIRES, ""), values.get(KEY, ""), values.get(STREAMS, "")
    if not _DIGITS.fullmatch(expires) or (presented.is_cookie and not streams):
        raise wrong
    methods, network = values.get(METHODS, ""), values.get(NETWORK, "")
    signed = Signed(expires, methods, streams or presented.path, network, key_id, presented.others)
    key = next((one for one in keys if one.id == key_id), None)
    # Compare even without a key, so that the time of the answer does not reveal which ids exist.
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
    """The expiry of a signature that is valid for `seconds` from `wall` on."""
    return str(math.ceil(wall + seconds))
