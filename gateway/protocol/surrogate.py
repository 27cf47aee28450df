"""Surrogate keys: the names by which an origin groups what it serves, so that a group can be purged at once.

`Surrogate-Key` separates its keys by spaces (Fastly, Varnish's xkey), `Cache-Tag` by commas (Cloudflare, Akamai).  Keys
are compared as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

SURROGATE_KEY: Final = "Surrogate-Key"
CACHE_TAG: Final = "Cache-Tag"


def surrogate_keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> frozenset[str]:
    """Every key that a reply's head names, of both fields and all their lines."""
    return frozenset(_keys(headers))


def _keys(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> Iterator[str]:
    for line in headers.getall(SURROGATE_KEY, ()):
        yield from line.split()
    for line in headers.getall(CACHE_TAG, ()):
        for tag in line.split(","):
            if tag := tag.strip():
                yield tag
