"""The outcomes of authorisation: a principal whose request is allowed, or an exception that refuses the request."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gateway.auth.permissions import Action, Permission
from gateway.errors import Fault, GatewayError


class Principal(NamedTuple):
    """The party that a credential identifies, and its permissions."""

    name: str
    """The token's subject, the id of the key that signed a URL, or a name from a service."""
    permissions: tuple[Permission, ...]
    expires_at: float
    """The time at which the credential expires (Unix seconds)."""
    tenant: str = ""
    token_id: str = ""
    key_id: str = ""
    network: str = ""
    """The client network (CIDR) to which the credential is restricted; empty for any."""
    claims: dict[str, object] = {}  # noqa: RUF012
    """The values of claims in the patterns of `permissions`."""
    issuer: str = ""
    """The issuer of the credential: `iss` of a token, or the URL of a service without its query.  Empty for signatures.
    Principals and tenants with equal names but different issuers are different."""

    def allows(self, action: Action, path: str) -> bool:
        """Return whether the principal may perform the action on the stream with this canonical path."""
        return any(one.allows(action, path, self.claims) for one in self.permissions)


PUBLIC: Final = Principal("", (), math.inf)
"""The principal of all clients on public streams."""


class Caller(NamedTuple):
    """A client and its principal, for logs."""

    address: str | None
    principal: str
    tenant: str
    issuer: str


class AuthRefused(GatewayError):
    """The request is not allowed."""

    status = 401
    fault = Fault.CLIENT
    text = "Authorisation needed"
    principal: Principal | None = None
    """The refused principal; None if the credential is invalid."""

    has_own_challenge = True
    """Whether the gateway has made the challenge.  A service may have made it, with a scheme of its own."""

    def __init__(self, text: str | None = None, challenge: str | None = None) -> None:
        super().__init__(text)
        self.challenge = challenge


class Unauthenticated(AuthRefused):
    """The request has no credential, or its credential is invalid (RFC 6750 section 3.1)."""


class Malformed(AuthRefused):
    """The request has more than one credential of a kind (RFC 6750 section 3.1, `invalid_request`)."""

    status = 400
    text = "Bad credentials"


class Forbidden(AuthRefused):
    """The credential does not allow the request."""

    status = 403
    text = "Not allowed"


class Concealed(AuthRefused):
    """A refusal on a route that conceals which streams exist."""

    status = 404
    text = "Stream not found"


class BadCredential(Exception):
    """The credential is invalid.  The message has no text from the client."""

    def __init__(self, text: str, error: str = "invalid_token") -> None:
        super().__init__(text)
        self.error = error
        """The error code for the challenge."""
