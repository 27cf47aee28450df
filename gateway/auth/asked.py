"""The parts of a request on which authorisation depends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.auth.permissions import Action

_NO_HEADERS: Final[CIMultiDict[str]] = CIMultiDict()


class Asked(NamedTuple):
    """A request to authorise."""

    path: str
    """The canonical path in the client's request."""
    actions: tuple[Action, ...]
    forked: str | None = None
    """The canonical path of the stream to fork, for which the client needs read permission; None for no fork.  Empty if
    the request names no stream of its route, which the guard refuses after it has identified the client."""
    authorization: Sequence[str] = ()
    """The values of the Authorization fields."""
    cookies: Sequence[str] = ()
    """The values of the Cookie fields."""
    parameters: Mapping[str, str] = {}
    """The decoded query parameters that are credentials."""
    others: str = ""
    """The other query parameters in canonical form, without `offset`, `live` and `cursor`."""
    client: str | None = None
    """The client's address."""
    is_from_site: bool = True
    """False if the Origin header has a web origin that the route does not allow."""
    method: str = "GET"
    scheme: str = "https"
    host: str = ""
    """The Host field."""
    headers: CIMultiDict[str] = _NO_HEADERS

    @property
    def is_read(self) -> bool:
        return self.actions == (Action.READ,)
