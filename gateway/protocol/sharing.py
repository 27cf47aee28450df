"""Which of an origin's replies may be shared between readers, and why others may not.

A reply to a catch-up read is stored, so it may be shared only if a shared cache may store it (RFC 9111 section 3).  A
live reply is passed on and not stored, so `no-store` does not forbid sharing it.

These are the grounds in a reply's fields.  `gateway.engine.classifier` adds those of form for stored replies (status,
length, coding, offset), `gateway.live.follower` asks for live ones.  Which readers share at all, by their credentials,
is decided by `gateway.protocol.stream_key`.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.freshness import forbids_storing, parse_cache_control, vary_allows_sharing


def why_not_shared(headers: Headers, credential_headers: Collection[str], *, has_cors: bool) -> str | None:
    """Why a reply to a catch-up read is for its requester alone; None if it may be shared.

    `credential_headers` tell readers apart on the route; with `has_cors` the gateway answers for CORS itself.
    """
    if "Set-Cookie" in headers:
        return "cookie"
    if forbids_storing(_cache_control(headers)):
        return "Cache-Control"
    vary = ", ".join(headers.getall("Vary", ())) or None
    allow_origin = None if has_cors else headers.get("Access-Control-Allow-Origin")
    if not vary_allows_sharing(vary, credential_headers, allow_origin):
        return "Vary"
    return None


def why_live_not_shared(headers: Headers) -> str | None:
    """Why a live reply is for its requester alone; None if it may be shared."""
    if "Set-Cookie" in headers:
        return "cookie"
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        return "encoded"
    if "private" in parse_cache_control(_cache_control(headers)):
        return "Cache-Control"
    return None


def _cache_control(headers: Headers) -> str | None:
    return ", ".join(headers.getall("Cache-Control", ())) or None
