"""Surrogate keys: an origin's names for groups of content that are purged together.

Keys are separated by spaces in `Surrogate-Key` (Fastly, Varnish's xkey) and by commas in `Cache-Tag` (Cloudflare,
Akamai).  They are compared byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

SURROGATE_KEY: Final = "Surrogate-Key"
CACHE_TAG: Final = "Cache-Tag"
_NO_KEYS: Final[frozenset[str]] = frozenset()


def surrogate_keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> frozenset[str]:
    """All keys in a reply's head: both fields, all their lines."""
    if SURROGATE_KEY not in headers and CACHE_TAG not in headers:
        return _NO_KEYS
    return frozenset(_keys(headers))


def _keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> Iterator[str]:
    for line in headers.getall(SURROGATE_KEY, ()):
        yield from line.split()
    for line in headers.getall(CACHE_TAG, ()):
        for tag in line.split(","):
            if tag := tag.strip():
                yield tag
