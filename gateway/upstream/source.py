"""Where a stream's bytes come from: the URL at the origin, and the headers that a shared fetch carries.

What is not part of a tape's key is not sent with a shared fetch.  An origin that decides by some header the route does
not list as a credential therefore refuses, and the operator lists it; it can never give one reader's bytes to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from multidict import CIMultiDict

from gateway.protocol.target import Target, upstream_query
from gateway.upstream.reply import Bounds


@dataclass(frozen=True, slots=True)
class Source:
    """One stream at its origin, as one credential partition asks for it."""

    base: str
    """Scheme, authority and path, percent-encoded, without a query."""
    target: Target
    headers: CIMultiDict[str]
    bounds: Bounds
    live_bounds: Bounds

    def url(self, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
        """The URL of a read; protocol parameters in canonical order."""
        query = upstream_query(self.target, offset=offset, live=live, cursor=cursor)
        return f"{self.base}?{query}" if query else self.base
