"""CORS answered by the gateway, on routes that configure it (Fetch standard, section 3.2).

On a route with a `CorsConfig`, the gateway answers preflights and replaces the origin's Access-Control headers, because
browsers reject a response with two sets of these headers.  The lists of headers are explicit: `*` would not cover
Authorization, and has no meaning with credentials.

A reply that depends on the web origin has `Vary: Origin`, even if that web origin is refused.  A wildcard is never
combined with credentials.  Otherwise every site could read with the user's credentials.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Final

from multidict import CIMultiDict

from gateway.config.routes import CorsConfig
from gateway.protocol import names

ALLOWED_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"

ALLOWED_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "Accept",
    "Cache-Control",
    "If-None-Match",
    "Last-Event-ID",
    names.STREAM_SEQ,
    names.STREAM_TTL,
    names.STREAM_EXPIRES_AT,
    names.STREAM_CLOSED,
    names.STREAM_CURSOR,
    names.STREAM_FORKED_FROM,
    names.STREAM_FORK_OFFSET,
    names.STREAM_FORK_SUB_OFFSET,
    names.PRODUCER_ID,
    names.PRODUCER_EPOCH,
    names.PRODUCER_SEQ,
)
"""Request headers that scripts may send: the headers of the protocol and of the protocol's clients."""

S2_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

S2_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "Accept",
    "Cache-Control",
    "Last-Event-ID",
    "s2-basin",
    "s2-encryption-key",
    "s2-format",
    "s2-request-token",
    "s2-stream-config",
)
"""Request headers that scripts may send on a route to an S2 origin."""

EXPOSED_HEADERS: Final = (
    names.STREAM_NEXT_OFFSET,
    names.STREAM_CURSOR,
    names.STREAM_UP_TO_DATE,
    names.STREAM_CLOSED,
    names.STREAM_TTL,
    names.STREAM_EXPIRES_AT,
    names.STREAM_SEQ,
    names.STREAM_FORKED_FROM,
    names.STREAM_FORK_OFFSET,
    names.STREAM_FORK_SUB_OFFSET,
    names.SSE_DATA_ENCODING.lower(),
    names.PRODUCER_ID,
    names.PRODUCER_EPOCH,
    names.PRODUCER_SEQ,
    names.PRODUCER_EXPECTED_SEQ,
    names.PRODUCER_RECEIVED_SEQ,
    "Location",
    "ETag",
    "Content-Type",
    "Content-Encoding",
    "Retry-After",
    "WWW-Authenticate",
    "Age",
    "Cache-Status",
    "Vary",
)
"""Response headers that scripts may read."""


ANY_ORIGIN: Final = f"https://{secrets.token_hex(16)}.invalid"
"""Stands for an allowed web origin in a head that is made once for many readers."""
_ANY_ORIGIN: Final = ANY_ORIGIN.encode()


def with_origin(head: bytes, web_origin: bytes) -> bytes:
    """Return the head with this allowed web origin in place of `ANY_ORIGIN`."""
    return head.replace(_ANY_ORIGIN, web_origin, 1)


def split_at_origin(text: bytes) -> tuple[bytes, bytes]:
    """Return the bytes before `ANY_ORIGIN` and the bytes after it.  If the marker does not occur, the first part has
    all bytes.
    """
    before, _, behind = text.partition(_ANY_ORIGIN)
    return before, behind


@lru_cache(maxsize=64)
def _joined(own: tuple[str, ...], extra: tuple[str, ...]) -> str:
    known = {name.lower() for name in own}
    return ", ".join([*own, *(name for name in extra if name.lower() not in known)])


def is_preflight(method: str, origin: str | None, request_method: str | None) -> bool:
    """Return whether a request is a CORS preflight: OPTIONS with Origin and Access-Control-Request-Method."""
    return method == "OPTIONS" and origin is not None and request_method is not None


def preflight_headers(
    cors: CorsConfig,
    origin: str | None,
    request_method: str | None,
    request_headers: str | None,
    *,
    is_s2: bool = False,
) -> dict[str, str] | None:
    """Return the headers of a preflight's 204.  None if the web origin is not allowed, or the request is no preflight.

    The lists do not depend on `request_method` and `request_headers`, so that the browser can cache the answer.  The
    browser compares the lists with its request.
    """
    if origin is None or request_method is None:
        return None
    allowed = _allowed(cors, origin)
    if allowed is None:
        return None
    headers = {
        "Access-Control-Allow-Origin": allowed,
        "Access-Control-Allow-Methods": S2_METHODS if is_s2 else ALLOWED_METHODS,
        "Access-Control-Allow-Headers": _joined(S2_HEADERS if is_s2 else ALLOWED_HEADERS, cors.allow_headers),
        "Access-Control-Max-Age": str(cors.max_age_s),
    }
    if allowed != "*":
        headers["Vary"] = "Origin"
        if cors.allow_credentials:
            headers["Access-Control-Allow-Credentials"] = "true"
    return headers


def apply(cors: CorsConfig, origin: str | None, headers: CIMultiDict[str]) -> None:
    """Replace a reply's Access-Control headers by this route's headers, in place.  `origin` is the request's Origin
    header.
    """
    for name in {name for name in headers if name.lower().startswith("access-control-")}:
        del headers[name]
    if "*" not in cors.allow_origins:
        _vary_on_origin(headers)
    allowed = _allowed(cors, origin)
    if allowed is None:
        return
    headers["Access-Control-Allow-Origin"] = allowed
    headers["Access-Control-Expose-Headers"] = _joined(EXPOSED_HEADERS, cors.expose_headers)
    if allowed != "*" and cors.allow_credentials:
        headers["Access-Control-Allow-Credentials"] = "true"


def named_origin(cors: CorsConfig | None, origin: str | None) -> bytes | None:
    """Return the web origin in the answer.  None if the answer contains no web origin, or is the same for all web
    origins.
    """
    allowed = _allowed(cors, origin) if cors is not None else None
    return allowed.encode() if allowed is not None and allowed != "*" else None


def _allowed(cors: CorsConfig, origin: str | None) -> str | None:
    """Return the value of Access-Control-Allow-Origin; None if the request's Origin is not allowed."""
    if "*" in cors.allow_origins:
        return "*"
    if origin is ANY_ORIGIN:
        return origin
    if origin is not None and origin.lower() in (allowed.lower() for allowed in cors.allow_origins):
        return origin
    return None


def _vary_on_origin(headers: CIMultiDict[str]) -> None:
    varied = [name.strip() for line in headers.getall("Vary", ()) for name in line.split(",") if name.strip()]
    if "*" not in varied and "origin" not in (name.lower() for name in varied):
        varied.append("Origin")
    headers["Vary"] = ", ".join(varied)
