"""A call: everything that is asked of an origin, as one value that no layer on the way takes apart or copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from multidict import CIMultiDict

from gateway.limits.askers import Askers

Body: TypeAlias = AsyncIterator[bytes] | bytes | None
"""A request's body: streamed, complete, or none."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of an exchange, in seconds, for each phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class OriginCall(NamedTuple):
    """One request to an origin."""

    method: str
    url: str
    """`route://<route>/<path at the origin>`, or the URL of a host."""
    headers: CIMultiDict[str]
    bounds: Bounds
    body: Body = None
    """A body iterator that fails aborts the connection, so that the origin never takes a part for the whole."""
    is_live: bool = False
    """Whether it may last for minutes."""
    client: str | Askers = ""
    """The net of the client that it is made for, or the nets of several; empty for the gateway's own."""

    @property
    def is_upload(self) -> bool:
        """Whether the body is streamed."""
        return not (self.body is None or isinstance(self.body, bytes))
