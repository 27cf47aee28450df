"""Authorisation for the admin port.

If other machines can reach the port, every request needs a token.  If only this machine can reach the port, requests
need a token only if a token is configured.  Two kinds of requests never need a token: the two probes, and requests for
the console's own files, which contain no data.

If no token is required, a page of another site in a browser on this machine might send requests to the port.  The check
of the Host header refuses foreign names that resolve to this address (DNS rebinding).  A change has to be JSON, which a
page of another origin cannot send without a preflight.  A change is also refused if the browser's Origin header
contains another origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from gateway.config.addresses import Address
from gateway.config.errors import ConfigError
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.ops.admin.endpoint import Refused

PROBES: Final = frozenset({"/healthz", "/readyz"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(.*)")


def admin_token(environ: Mapping[str, str], address: Address) -> str | None:
    """Return the token that the admin port requires; None if the port requires no token.

    Raises ConfigError if the address is not loopback and there is no token, or if the token cannot be sent in a header.
    """
    token = environ.get(ADMIN_TOKEN_VARIABLE, "")
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(f"env {ADMIN_TOKEN_VARIABLE}: should be visible ASCII characters without spaces")
    if not token and not is_loopback(address.host):
        raise ConfigError(
            f"server.admin: {address} can be reached from outside: "
            f"set {ADMIN_TOKEN_VARIABLE} to a token that it requires"
        )
    return token or None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address.  IPv6 addresses may have brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Authorises requests.  It has no state except the token."""

    def __init__(self, address: Address, token: str | None) -> None:
        self._host = address.host
        self._is_loopback = is_loopback(address.host)
        self._token = token.encode() if token is not None else None

    def check(self, request: web.BaseRequest, *, is_open: bool, is_verbose: bool = False) -> None:
        """Raise Refused unless the request is authorised.

        `is_open` means that the path is public.  `is_verbose` means that a probe asks for the origins, which are not
        public.
        """
        if request.path in PROBES and not is_verbose:
            return
        if self._is_loopback and not self._is_allowed_host(request.headers.get(hdrs.HOST, "")):
            raise Refused(403, "the Host header does not name the address of this port")
        if self._token is not None and not is_open:
            self._check_token(self._token, request.headers.get(hdrs.AUTHORIZATION, ""))

    def _is_allowed_host(self, host: str) -> bool:
        name = _HOST.fullmatch(host.lower())
        return name is not None and (is_loopback(name[1]) or name[1] == self._host)

    @staticmethod
    def _check_token(token: bytes, header: str) -> None:
        match = _BEARER.fullmatch(header)
        offered = match[1].encode("utf-8", "surrogateescape") if match is not None else b""
        if hmac.compare_digest(offered, token):
            return
        if not offered:
            raise Refused(401, "a token is needed: Authorization: Bearer <token>", {"WWW-Authenticate": "Bearer"})
        # RFC 6750, section 3.1.
        raise Refused(401, "the token is not this gateway's", {"WWW-Authenticate": 'Bearer error="invalid_token"'})

    @staticmethod
    def check_change(request: web.BaseRequest) -> None:
        """Raise Refused if a page of another origin may have sent a request for a change."""
        if request.method in _SAFE:
            return
        origin = request.headers.get(hdrs.ORIGIN)
        host = request.headers.get(hdrs.HOST, "").lower()
        # Accept both schemes, because a proxy in front of this port may end TLS.
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, "the request comes from a page of another origin")
        if request.content_type != "application/json" or hdrs.CONTENT_TYPE not in request.headers:
            raise Refused(415, "a request that changes something has to be application/json")
