"""The parts of a request that a verdict depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.auth.permissions import Action

_NO_HEADERS: Final[CIMultiDict[str]] = CIMultiDict()


class Asked(NamedTuple):
    """A request, as rules judge it."""

    path: str
    """The canonical path, as the client named the stream."""
    actions: tuple[Action, ...]
    forked: str | None = None
    """The canonical path of the stream to be forked, which the client must be allowed to read."""
    authorization: Sequence[str] = ()
    """The Authorization fields."""
    cookies: Sequence[str] = ()
    """The Cookie fields."""
    parameters: Mapping[str, str] = {}
    """The parameters of the query that are credentials, decoded."""
    others: str = ""
    """The rest of the query in canonical form, without offset, live and cursor."""
    client: str | None = None
    """The client's address."""
    is_from_site: bool = True
    """Whether the Origin header, if there is one, names a web origin that the route allows."""
    method: str = "GET"
    scheme: str = "https"
    host: str = ""
    """Scheme and Host field, as the client sent them."""
    headers: CIMultiDict[str] = _NO_HEADERS

    @property
    def is_read(self) -> bool:
        return self.actions == (Action.READ,)
