"""Whole bodies of unary requests and answers, including content codings."""

from __future__ import annotations

from typing import Final

from gateway.origin.s2 import codings
from gateway.origin.s2.delivery import Delivery
from gateway.origin.s2.exchange import Exchange
from gateway.origin.s2.refusals import invalid

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""The largest body of a unary request, in bytes.  An append of 1 MiB can take up to 6 MiB in JSON."""


async def whole_body(exchange: Exchange) -> bytes:
    """Read and decode the body of a unary request.  Raises Refused (400, 422)."""
    parts: list[bytes] = []
    size = 0
    while (part := await exchange.incoming.take()) is not None:
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise invalid(f"a body is at most {MAX_BODY_BYTES} bytes")
        parts.append(part)
    return codings.decoded(b"".join(parts), exchange.headers.get("content-encoding"), MAX_BODY_BYTES)


async def respond(exchange: Exchange, delivery: Delivery, media_type: str, body: bytes) -> None:
    """Answer with 200 and a body, compressed if the client accepts that."""
    await delivery.reply_faults()
    body, headers = codings.encoded(body, exchange.headers.get("accept-encoding"))
    await delivery.respond(200, {"content-type": media_type, **headers}, body)
