"""Protected resource metadata (RFC 9728): where clients get a token for a route with token rules.

Every URL below such a route is a resource.  Its metadata is at the URL with `/.well-known/oauth-protected-resource`
inserted between host and path (section 3.1).  A challenge names that URL.  The `resource` in the metadata is the URL
that the client has requested, as section 3.3 demands.  The metadata does not depend on whether the stream exists.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from multidict import CIMultiDict

from gateway.auth.guard import Guard
from gateway.auth.permissions import DETAIL_TYPE
from gateway.auth.rules import JwtRule
from gateway.engine.route import Route, route_for
from gateway.protocol.target import BadHost, BadTarget, host_of, parse_target
from gateway.server.request import Request

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_FRESH_S: Final = 300


def metadata_url(request: Request, path: str) -> str:
    """Return the URL of the metadata for the stream with this canonical path."""
    return f"{request.scheme}://{request.host}{WELL_KNOWN}{path if path != '/' else ''}"


def metadata(routes: Sequence[Route], request: Request) -> tuple[CIMultiDict[str], bytes] | None:
    """Return the headers and the body of the requested metadata.  None for any other request.

    `routes` are in descending order of precedence.
    """
    if request.method not in ("GET", "HEAD"):
        return None
    hosts = request.headers.getall("Host", ())
    try:
        target = parse_target(request.target)
        host = host_of(hosts[0]) if len(hosts) == 1 and target.authority is None else None
    except (BadHost, BadTarget):
        return None
    below = target.path.removeprefix(WELL_KNOWN)
    if host is None or target.query or below == target.path or (below and not below.startswith("/")):
        return None
    route = route_for(routes, host, below or "/")
    if route is None or route.guard is None or (found := _of_guard(route.guard)) is None:
        return None
    tree = {"resource": f"{request.scheme}://{request.host}{below}", **found, "resource_name": route.name}
    headers = CIMultiDict({"Content-Type": "application/json", "Cache-Control": f"max-age={_FRESH_S}"})
    headers["X-Content-Type-Options"] = "nosniff"
    # Allow all web origins, because the metadata is public and clients in browsers need it.
    headers["Access-Control-Allow-Origin"] = "*"
    return headers, json.dumps(tree, separators=(",", ":")).encode()


def _of_guard(guard: Guard) -> dict[str, Any] | None:
    """Return the part of the metadata that all resources of a route share; None without token rules."""
    rules = [rule for rule in guard.rules if isinstance(rule, JwtRule)]
    if not rules:
        return None
    methods = ["header", *(["query"] if any(rule.parameter for rule in rules) else [])]
    return {
        "authorization_servers": list(dict.fromkeys(rule.tokens.issuer for rule in rules)),
        "bearer_methods_supported": methods,
        "authorization_details_types_supported": [DETAIL_TYPE],
    }


def names_metadata(guard: Guard) -> bool:
    """Return whether challenges of the route name its metadata."""
    return any(isinstance(rule, JwtRule) for rule in guard.rules)
