"""Content codings of unary bodies (RFC 9110 section 8.4): gzip and zstd, as used by S2's SDKs.

Sessions compress each frame separately, and SSE is not compressed.
"""

from __future__ import annotations

import gzip
import io
from typing import Final

import zstandard

from gateway.origin.s2.refusals import Refused, invalid
from gateway.s2.errors import S2ErrorCode

SMALLEST_COMPRESSED_BYTES: Final = 1024
"""The smallest answer that is compressed."""


def decoded(body: bytes, coding: str | None, limit: int) -> bytes:
    """Decode a request's body.  Raises Refused: 400 if it is broken, 422 if it has more than `limit` bytes."""
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
    """Return an answer's body, compressed if the client accepts that and it is worthwhile, and the headers for it."""
    if len(body) < SMALLEST_COMPRESSED_BYTES:
        return body, {}
    accepted = {one.partition(";")[0].strip().lower() for one in (accept_encoding or "").split(",")}
    headers = {"vary": "accept-encoding"}
    if "zstd" in accepted:
        return zstandard.ZstdCompressor().compress(body), {"content-encoding": "zstd", **headers}
    if "gzip" in accepted:
        return gzip.compress(body, 1, mtime=0), {"content-encoding": "gzip", **headers}
    return body, headers
