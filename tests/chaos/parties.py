"""Parties: readers and writers with credentials or a tenant of their own, and an origin with streams for each.

What lies below `/own/` is another stream for each set of credentials, and below `/tenant/` for each tenant: its bytes
differ, and its offsets are the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from gateway.origin.app import Origin
from gateway.origin.live import Drain
from tests.chaos.manners import TENANT, Manners

OWN: Final = "/own/"
SHARED: Final = "/s"
"""Below this path all parties share their streams."""

PARTIES: Final[Mapping[str, dict[str, str]]] = {
    "anyone": {},
    "alice": {"Authorization": "Bearer alice"},
    "bob": {"Authorization": "Bearer bob", "Cookie": "session=bob", "Origin": "https://bob.example"},
    "ann": {"X-Tenant": "ann", "Origin": "https://ann.example"},
    "ben": {"X-Tenant": "ben"},
}
"""The headers of each party: credentials, a tenant, the web origin of a page."""
_KEEPERS: Final[Mapping[str, tuple[str, ...]]] = {OWN: ("anyone", "alice", "bob"), TENANT: ("anyone", "ann", "ben")}
"""The parties that have streams of their own below these paths; the others see those of `anyone`."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def keepers(path: str) -> tuple[str, ...]:
    """The parties that have a stream of their own at `path`; none if all share one."""
    return next((parties for prefix, parties in _KEEPERS.items() if path.startswith(prefix)), ())


def origin_path(path: str, party: str) -> str:
    """Where the origin keeps what `party` reads at `path`."""
    parties = keepers(path)
    return f"{path}~{party if party in parties else 'anyone'}" if parties else path


def _party(headers: Mapping[str, str], path: str) -> str:
    name = "X-Tenant" if path.startswith(TENANT) else "Authorization"
    shown = headers.get(name)
    return next((party for party, own in PARTIES.items() if shown is not None and own.get(name) == shown), "anyone")


@web.middleware
async def _by_url(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Take `//host/s` for the path `/s` on a host, as an origin does that resolves targets as URLs."""
    path = request.rel_url.raw_path
    if not path.startswith("//"):
        return await handler(request)
    own = request.rel_url.with_path(f"/{path[2:].partition('/')[2]}", encoded=True)
    return await handler(request.clone(rel_url=own.with_query(request.rel_url.query)))


@web.middleware
async def _by_party(request: web.Request, handler: _Handler) -> web.StreamResponse:
    path = request.rel_url.raw_path
    if not keepers(path):
        return await handler(request)
    own = request.rel_url.with_path(origin_path(path, _party(request.headers, path)), encoded=True)
    return await handler(request.clone(rel_url=own.with_query(request.rel_url.query)))


class PartyOrigin(Origin):
    """An in-memory origin that looks at credentials and tenants."""

    manners = Manners(is_personal=False, is_by_origin=False)

    def application(self, *, drain: Drain | None = None) -> web.Application:
        application = super().application(drain=drain)
        application.middlewares.extend((_by_url, _by_party))
        application.on_response_prepare.append(self.manners.dress)
        return application
