"""The key of a tape: the stream at its origin, the query, and the partition of readers that may share it."""

from __future__ import annotations

from typing import NamedTuple


class Group(NamedTuple):
    """Everything that a write to one URL path of an origin affects: all queries and partitions, across all routes."""

    origin: str
    path: str
    """The path as it is requested from the origin."""


class Partition(NamedTuple):
    """The readers that share a tape: same route, same credentials, same chain of gateways."""

    route: str
    """The route's name."""
    generation: int = 0
    """Increases when a new configuration changes who may share the route's tapes, so that the old ones are not used."""
    readers: str = ""
    """A digest of the credentials and gateways; empty if the readers have neither."""

    @property
    def public(self) -> Partition:
        """The route's partition for readers without credentials."""
        return self if not self.readers else Partition(self.route, self.generation)

    def __str__(self) -> str:
        generation = f" ~{self.generation}" if self.generation else ""
        return f"{self.route}{generation} {self.readers}".rstrip()


class StreamKey(NamedTuple):
    """Identifies one tape.

    Two requests share a tape only if the origin must answer both alike: same origin and path, same query, same
    partition.
    """

    group: Group
    query: str
    partition: Partition

    @property
    def route(self) -> str:
        """The name of the route."""
        return self.partition.route
