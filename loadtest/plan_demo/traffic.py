"""The experiment's streams and the order of their reads, drawn from a seed, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

ROOMS: Final = 400
"""Number of finished conversations: small streams with a popularity by Zipf's law."""
ARCHIVES: Final = 48
"""Large streams that a crawler goes through once, a part of them in each life of the gateway."""
LIVES: Final = 3
"""Number of starts of the gateway, each with an empty memory."""

_SKEW: Final = 0.9
_ROOM_BYTES: Final = 24_000
_ROOM_SPREAD: Final = 0.8
"""Standard deviation of a room's size, as a logarithm."""
_ARCHIVE_BYTES: Final = 400_000


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that is closed: its path and how many bytes it has."""

    path: str
    size: int


def rooms() -> list[Stream]:
    """The rooms, the one that is read most first."""
    rng = Random(1)
    sizes = (int(rng.lognormvariate(0, _ROOM_SPREAD) * _ROOM_BYTES) + 64 for _ in range(ROOMS))
    return [Stream(f"/rooms/{number}", size) for number, size in enumerate(sizes)]


def archives() -> list[Stream]:
    """What the crawler reads."""
    return [Stream(f"/archives/{number}", _ARCHIVE_BYTES) for number in range(ARCHIVES)]


def reads(seed: int, life: int, count: int) -> Iterator[str]:
    """Paths in the order in which they are read in one life, `count` of them: rooms by how popular they are, and
    between them, evenly, every archive that is this life's, once."""
    rng = Random(seed * LIVES + life)
    paths = [room.path for room in rooms()]
    weights = list(accumulate(1 / (rank + 1) ** _SKEW for rank in range(len(paths))))
    crawl = [archive.path for archive in archives()[life::LIVES]]
    rng.shuffle(crawl)
    every = max(1, count // len(crawl))
    for number in range(count):
        if number % every == 0 and crawl:
            yield crawl.pop()
        else:
            yield rng.choices(paths, cum_weights=weights)[0]


def body(stream: Stream) -> bytes:
    """The stream's bytes."""
    return Random(stream.path).randbytes(stream.size)


def total_bytes(streams: Sequence[Stream]) -> int:
    """How many bytes they have together."""
    return sum(stream.size for stream in streams)
