"""The source of a stream's bytes: the URL at the origin, and the headers of a shared fetch.

A shared fetch does not send anything that is not part of the tape's key.  If an origin depends on a header that the
route does not list as a credential, it refuses the fetch, and the operator lists the header.  It can never give one
reader's bytes to another.
"""

from __future__ import annotations

from typing import NamedTuple

from multidict import CIMultiDict

from gateway.protocol.target import Target, upstream_query
from gateway.upstream.call import Bounds


class Source(NamedTuple):
    """One stream at its origin, as one partition requests it."""

    base: str
    """Scheme, authority and path, percent-encoded, without a query."""
    target: Target
    headers: CIMultiDict[str]
    bounds: Bounds
    live_bounds: Bounds
    client: str = ""
    """The net of the client that the fetch is made for; empty for the gateway's own."""

    @property
    def asker(self) -> int:
        """Tells whether two requests have the same headers, as far as those are sent."""
        return hash(tuple(self.headers.items()))

    def url(self, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
        """The URL of a read, with the protocol parameters in canonical order."""
        query = upstream_query(self.target, offset=offset, live=live, cursor=cursor)
        return f"{self.base}?{query}" if query else self.base
