"""Who may use the admin port.

Where others can reach it, every request shows a token; where only this machine can, one is asked for if it is set.  The
page's own files tell nothing and are served to all, as are the two probes.

Without a token the danger is a browser on this machine that is led here by somebody's page.  A name of theirs that
resolves to this address is seen by the Host (DNS rebinding).  What changes something has to be JSON, which a page of
another origin cannot send without asking first, and is refused where a browser says that another origin sent it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from gateway.config.errors import ConfigError
from gateway.config.values import ADMIN_TOKEN_VARIABLE, Address
from gateway.ops.admin.endpoint import Refused

PROBES: Final = frozenset({"/healthz", "/readyz"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(.*)")


def admin_token(environ: Mapping[str, str], address: Address) -> str | None:
    """The token that the admin port asks for, None where it asks for none.

    ConfigError where the address is not loopback and no token is set, or where the token cannot be sent in a header.
    """
    token = environ.get(ADMIN_TOKEN_VARIABLE, "")
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(f"env {ADMIN_TOKEN_VARIABLE}: should be visible ASCII characters without spaces")
    if not token and not is_loopback(address.host):
        raise ConfigError(
            f"server.admin: {address} can be reached from outside: "
            f"set {ADMIN_TOKEN_VARIABLE} to a token that it asks for"
        )
    return token or None


def is_loopback(host: str) -> bool:
    """Whether a host name or address (IPv6 with or without brackets) is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Decides on requests; keeps no state beyond the token."""

    def __init__(self, address: Address, token: str | None) -> None:
        self._host = address.host
        self._is_loopback = is_loopback(address.host)
        self._token = token.encode() if token is not None else None

    def check(self, request: web.BaseRequest, *, is_open: bool, is_verbose: bool = False) -> None:
        """Raise Refused unless the one who asks may; `is_open` says that it is for what everybody may have, and
        `is_verbose` that a probe is to name origins, which not everybody may know."""
        if request.path in PROBES and not is_verbose:
            return
        if self._is_loopback and not self._is_known(request.headers.get(hdrs.HOST, "")):
            raise Refused(403, "the Host is not one of this port's")
        if self._token is not None and not is_open:
            self._check_token(self._token, request.headers.get(hdrs.AUTHORIZATION, ""))

    def _is_known(self, host: str) -> bool:
        name = _HOST.fullmatch(host.lower())
        return name is not None and (is_loopback(name[1]) or name[1] == self._host)

    @staticmethod
    def _check_token(token: bytes, shown: str) -> None:
        match = _BEARER.fullmatch(shown)
        offered = match[1].encode("utf-8", "surrogateescape") if match is not None else b""
        if hmac.compare_digest(offered, token):
            return
        if not offered:
            raise Refused(401, "a token is needed: Authorization: Bearer <token>", {"WWW-Authenticate": "Bearer"})
        # RFC 6750, section 3.1.
        raise Refused(401, "the token is not this gateway's", {"WWW-Authenticate": 'Bearer error="invalid_token"'})

    @staticmethod
    def check_change(request: web.BaseRequest) -> None:
        """Raise Refused where a page of another origin may have sent what would change something."""
        if request.method in _SAFE:
            return
        origin = request.headers.get(hdrs.ORIGIN)
        host = request.headers.get(hdrs.HOST, "").lower()
        # By either scheme: TLS may end in front of this port.
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, "the request comes from a page of another origin")
        if request.content_type != "application/json" or hdrs.CONTENT_TYPE not in request.headers:
            raise Refused(415, "what changes something is application/json")
