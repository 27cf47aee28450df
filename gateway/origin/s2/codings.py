"""Content codings of unary bodies (RFC 9110 section 8.4): gzip and zstd, as S2's SDKs use them.

Sessions compress each frame on their own, and SSE is not compressed.
"""

from __future__ import annotations

import gzip
import io
from typing import Final

import zstandard

from gateway.origin.s2.refusals import Refused, invalid
from gateway.s2.errors import S2ErrorCode

SMALLEST_COMPRESSED_BYTES: Final = 1024
"""Smaller answers are not worth it."""


def decoded(body: bytes, coding: str | None, limit: int) -> bytes:
    """A request's body without its coding.  Raises Refused: 400 if it is broken, 422 over `limit` bytes."""
    try:
        match (coding or "identity").strip().lower():
            case "identity":
                plain = body
            case "gzip":
                with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                    plain = file.read(limit + 1)
            case "zstd":
                with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)) as reader:
                    plain = reader.read(limit + 1)
            case other:
                raise Refused(S2ErrorCode.BAD_HEADER, f"content-encoding {other} is not supported")
    except (OSError, EOFError, zstandard.ZstdError):
        raise Refused(S2ErrorCode.BAD_HEADER, "the body is not what content-encoding says") from None
    if len(plain) > limit:
        raise invalid(f"a body is at most {limit} bytes")
    return plain


def encoded(body: bytes, accept_encoding: str | None) -> tuple[bytes, dict[str, str]]:
    """An answer's body, compressed if that is accepted and worth it, and its headers."""
    if len(body) < SMALLEST_COMPRESSED_BYTES:
        return body, {}
    accepted = {one.partition(";")[0].strip().lower() for one in (accept_encoding or "").split(",")}
    headers = {"vary": "accept-encoding"}
    if "zstd" in accepted:
        return zstandard.ZstdCompressor().compress(body), {"content-encoding": "zstd", **headers}
    if "gzip" in accepted:
        return gzip.compress(body, 1, mtime=0), {"content-encoding": "gzip", **headers}
    return body, headers
