"""A complete reply as plain data, and the headers of every reply.

Each kind of reply has one Cache-Control (section 8):

    CACHE_FINAL       catch-up or long-poll that stops before the tail: its bytes never change
    CACHE_REVALIDATE  catch-up or long-poll that reaches the tail: the next append makes it stale; SSE
    CACHE_NEVER       HEAD, `offset=now`, long-poll 204, errors
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.origin.refusals import RequestError
from gateway.protocol import names

CACHE_FINAL: Final = "public, max-age=60, stale-while-revalidate=300"
CACHE_REVALIDATE: Final = "no-cache"
CACHE_NEVER: Final = "no-store"

_ALLOWED_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_EXPOSED: Final = ", ".join(
    (
        names.STREAM_NEXT_OFFSET,
        names.STREAM_UP_TO_DATE,
        names.STREAM_CLOSED,
        names.STREAM_CURSOR,
        names.STREAM_TTL,
        names.STREAM_EXPIRES_AT,
        names.STREAM_SEQ,
        names.PRODUCER_ID,
        names.PRODUCER_EPOCH,
        names.PRODUCER_SEQ,
        names.PRODUCER_EXPECTED_SEQ,
        names.PRODUCER_RECEIVED_SEQ,
        names.SSE_DATA_ENCODING,
        "Location",
        "ETag",
        "Content-Type",
    )
)
_ALLOWED_HEADERS: Final = ", ".join(
    (
        "Content-Type",
        "Authorization",
        "If-None-Match",
        names.STREAM_SEQ,
        names.STREAM_TTL,
        names.STREAM_EXPIRES_AT,
        names.STREAM_CLOSED,
        names.STREAM_FORKED_FROM,
        names.STREAM_FORK_OFFSET,
        names.STREAM_FORK_SUB_OFFSET,
        names.PRODUCER_ID,
        names.PRODUCER_EPOCH,
        names.PRODUCER_SEQ,
    )
)

COMMON_HEADERS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": _EXPOSED,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
"""Headers of every reply, including errors (section 10.7)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers in addition to the common ones, and the whole body."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def error_reply(error: RequestError) -> Reply:
    """Return the reply for an error, with one line of text for the client."""
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": CACHE_NEVER, **error.headers}
    if error.status == 405:
        headers["Allow"] = _ALLOWED_METHODS
    return Reply(error.status, headers, f"{error.text}\n".encode())


def preflight_reply() -> Reply:
    """Return the reply to OPTIONS, which allows every method and header of the protocol, and `If-None-Match`."""
    return Reply(
        204,
        {
            "Access-Control-Allow-Methods": _ALLOWED_METHODS,
            "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
            "Access-Control-Max-Age": "86400",
            "Allow": _ALLOWED_METHODS,
        },
    )
