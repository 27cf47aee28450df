"""Where a token lies within a reply.

A token cannot be found there.  But the units up to it are those up to the reply's end, less those from the token to the
same end, which a second walk counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from pyspark_durable_streams.errors import BadReply
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk

_STEPS: Final = 1_000


def count_at(walk: Walk, token: str) -> int:
    """The count at a token that lies within the reply that a walk reads from where `walk` stands.

    BadReply when replies from the two places have no end in common.
    """
    walks = walk.anew(replace(walk.place, count=0)), walk.anew(Place(token))
    replies = [_ends(one) for one in walks]
    passed: tuple[dict[str, int], ...] = ({}, {})
    going = [0, 1]
    with ThreadPoolExecutor(len(walks)) as pool:
        for _ in range(_STEPS):
            for number, (end, units) in zip(going, pool.map(next, [replies[n] for n in going]), strict=True):
                passed[number][end] = units
            for end in passed[0].keys() & passed[1].keys():
                return walk.place.count + passed[0][end] - passed[1][end]
            # The one behind catches up.  Two at the tail ask at the same moment: of a stream that grows faster than
            # requests go to and fro they would never see the same tail else.
            ends = [max(found) for found in passed]
            is_behind = 0 if ends[0] < ends[1] else 1
            going = [0, 1] if all(one.is_at_tail for one in walks) else [is_behind]
    raise BadReply(f"stream {walk.stream}: no end that the replies from two of its offsets have in common")


def _ends(walk: Walk) -> Iterator[tuple[str, int]]:
    """Where each reply ends, with the units up to there; behind the tail it is asked for once more, for ever."""
    told = 0
    while True:
        for _ in walk.parts():
            yield from walk.passed[told:]
            told = len(walk.passed)
        yield from walk.passed[told:]
        told = len(walk.passed)
