"""Verdicts: a request is allowed to a principal until a time, or refused with a status and a challenge."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gateway.auth.permissions import Action, Permission
from gateway.errors import Fault, GatewayError


class Principal(NamedTuple):
    """The party that a credential speaks for, and what the credential allows."""

    name: str
    """The token's subject, or the id of the key that signed a URL."""
    permissions: tuple[Permission, ...]
    expires_at: float
    """When the credential expires (Unix seconds)."""
    tenant: str = ""
    token_id: str = ""
    key_id: str = ""
    network: str = ""
    """The client network (CIDR) that the credential is bound to; empty for any."""
    claims: dict[str, object] = {}  # noqa: RUF012
    """The claims that fill in patterns."""
    issuer: str = ""
    """The party that has named the principal, its tenant and the credential: the `iss` of a token, or the URL of a
    service without its query; empty for signatures.  Equal names from two issuers are different names."""

    def allows(self, action: Action, path: str) -> bool:
        """Whether the principal may do this to the stream with this canonical path."""
        return any(one.allows(action, path, self.claims) for one in self.permissions)


PUBLIC: Final = Principal("", (), math.inf)
"""The principal of every client on public streams."""


class Caller(NamedTuple):
    """A client with its principal, as records name them."""

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
    """The principal that was refused; None if the credential is not valid."""

    def __init__(self, text: str | None = None, challenge: str | None = None) -> None:
        super().__init__(text)
        self.challenge = challenge


class Unauthenticated(AuthRefused):
    """The request has no credential, or a wrong one (RFC 6750 section 3.1)."""


class Forbidden(AuthRefused):
    """The credential does not allow the request."""

    status = 403
    text = "Not allowed"


class Concealed(AuthRefused):
    """A refusal on a route that does not reveal which streams exist."""

    status = 404
    text = "Stream not found"


class BadCredential(Exception):
    """A credential is wrong.  The text is fixed, and repeats nothing that the client sent."""

    def __init__(self, text: str, error: str = "invalid_token") -> None:
        super().__init__(text)
        self.error = error
        """The error code of the challenge."""
