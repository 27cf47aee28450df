"""The clients that one request to an origin is made for: the one that caused it, and all that joined it since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MOST: Final = 256
"""The most clients that are kept for one request; further ones wait with these."""


class Askers:
    """The nets of clients that share a request, in the order in which they joined.

    Whichever of them first has a turn pays for the request, so that no client has to wait behind another's limit.
    """

    __slots__ = ("nets", "on_join")

    def __init__(self, net: str) -> None:
        self.nets: dict[str, None] = {net: None}
        self.on_join: Callable[[str], object] = ignore
        """Called with the net of each further client."""

    def __repr__(self) -> str:
        return f"<Askers {', '.join(map(repr, self.nets))}>"

    @property
    def first(self) -> str:
        """The net of the client that the request was made for at first."""
        return next(iter(self.nets))

    def join(self, net: str) -> None:
        """A request of this client waits for the shared one."""
        if net not in self.nets and len(self.nets) < _MOST:
            self.nets[net] = None
            self.on_join(net)


def ignore(net: str) -> None:
    """The callback while a further client makes no difference."""
