"""What a survey of one stream is asked for, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_durable_streams.places import Position, Stretch
from pyspark_durable_streams.times import Moment


@dataclass(frozen=True, slots=True)
class Target:
    """Where reading a stream must stop: exactly there, or at the end of the reply that reaches it."""

    token: str
    is_exact: bool = True
    is_closed: bool = False
    """Whether the stream ends there."""
    moment: Moment | None = None
    """Reading stops before the first message at that time or after it, too."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Bytes of messages between a position and the stream's tail."""

    size: int = 0
    is_exact: bool = True
    """Whether there are so many; else, at least so many."""

    def __add__(self, other: Lag) -> Lag:
        return Lag(self.size + other.size, self.is_exact and other.is_exact)


@dataclass(frozen=True, slots=True)
class News:
    """The data of one stream after its position."""

    position: Position
    stretches: tuple[Stretch, ...] = ()
    tail: str | None = None
    """The furthest token seen."""
    has_more: bool = False
    """Whether the walk stopped before its tail or target."""
    lag: Lag = Lag()
    """The bytes behind the position."""

    @property
    def units(self) -> int:
        return sum(stretch.units for stretch in self.stretches)

    @property
    def size(self) -> int:
        return sum(stretch.size for stretch in self.stretches)
