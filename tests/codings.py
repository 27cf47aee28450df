"""Content codings undone, and documents to code."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping

import brotli
import zstandard

DECODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "identity": lambda data: data,
    "gzip": gzip.decompress,
    "br": brotli.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
}


def messages(count: int, first: int = 0) -> bytes:
    """A JSON array of `count` messages that differ, about 75 bytes each."""
    rows = [{"seq": first + at, "user": f"user-{at * 7919 % 997}", "text": "hello " * (at % 5)} for at in range(count)]
    return json.dumps(rows, separators=(",", ":")).encode()
