"""What names one tape: the stream at its origin, the query, and the readers who may share it."""

from __future__ import annotations

from typing import NamedTuple


class Group(NamedTuple):
    """All that a write to one URL path of an origin concerns: every query and every partition of it, by whichever route
    its readers come."""

    origin: str
    path: str
    """As the origin is asked for it."""


class Partition(NamedTuple):
    """Which readers share a tape: those of one route who show the same credentials and came by the same gateways."""

    route: str
    """The route's name."""
    generation: int = 0
    """Counts up when a new configuration changes who may share the route's tapes, so that the old ones are left."""
    readers: str = ""
    """A digest of the credentials and gateways; empty for readers who show neither."""

    @property
    def public(self) -> Partition:
        """The route's partition for readers without credentials."""
        return self if not self.readers else Partition(self.route, self.generation)

    def __str__(self) -> str:
        generation = f" ~{self.generation}" if self.generation else ""
        return f"{self.route}{generation} {self.readers}".rstrip()


class StreamKey(NamedTuple):
    """What distinguishes one tape from another.

    Two requests share a tape only if the origin must give both the same answer: same origin and path, same query, same
    partition.
    """

    group: Group
    query: str
    partition: Partition

    @property
    def route(self) -> str:
        """The name of the route."""
        return self.partition.route
