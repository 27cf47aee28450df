"""Parties: readers and writers with credentials of their own, and an origin that shows each its own streams.

What lies below `/own/` is another stream for each party: its bytes differ, and its offsets are the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from gateway.origin.app import Origin
from gateway.origin.live import Drain

OWN: Final = "/own/"

PARTIES: Final[Mapping[str, dict[str, str]]] = {
    "anyone": {},
    "alice": {"Authorization": "Bearer alice"},
    "bob": {"Authorization": "Bearer bob", "Cookie": "session=bob"},
}
"""What each party shows."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def origin_path(path: str, party: str) -> str:
    """Where the origin keeps what `party` reads at `path`."""
    return f"{path}~{party}" if path.startswith(OWN) else path


def _party(headers: Mapping[str, str]) -> str:
    shown = headers.get("Authorization", "")
    return next((name for name, own in PARTIES.items() if own and own["Authorization"] == shown), "anyone")


@web.middleware
async def _by_party(request: web.Request, handler: _Handler) -> web.StreamResponse:
    path = request.rel_url.raw_path
    if not path.startswith(OWN):
        return await handler(request)
    own = request.rel_url.with_path(origin_path(path, _party(request.headers)), encoded=True)
    return await handler(request.clone(rel_url=own.with_query(request.rel_url.query)))


class PartyOrigin(Origin):
    """An in-memory origin that looks at credentials."""

    def application(self, *, drain: Drain | None = None) -> web.Application:
        application = super().application(drain=drain)
        application.middlewares.append(_by_party)
        return application
