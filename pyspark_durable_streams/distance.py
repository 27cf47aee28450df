"""The number of units between two places of a stream.

A token cannot be located inside a reply.  The units up to a token within one are those up to the reply's end minus
those from the token to the same end, which a second walk counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import BadReply
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk

_STEPS: Final = 1_000


def units_between(client: Client, stream: str, place: Place, token: str, unit: Unit | None, *, as_chunks: bool) -> int:
    """The units from a place to a token after it.  Raises what walks raise, and BadReply if they never meet."""
    walks = (
        Walk(client, stream, replace(place, count=0), as_chunks, unit),
        Walk(client, stream, Place(token), as_chunks, unit),
    )
    replies = [_ends(walk) for walk in walks]
    passed: tuple[dict[str, int], ...] = ({}, {})
    going = [0, 1]
    with ThreadPoolExecutor(len(walks)) as pool:
        for _ in range(_STEPS):
            for number, (end, units) in zip(going, pool.map(next, [replies[n] for n in going]), strict=True):
                passed[number][end] = units
            for end in passed[0].keys() & passed[1].keys():
                return passed[0][end] - passed[1][end]
            # The walk that is behind catches up.  Two walks at the tail request at the same moment: if the stream
            # grows faster than a round trip, they would otherwise never see the same tail.
            ends = [max(found) for found in passed]
            is_behind = 0 if ends[0] < ends[1] else 1
            going = [0, 1] if all(walk.is_at_tail for walk in walks) else [is_behind]
    raise BadReply(f"stream {stream}: the replies from two of its offsets have no end in common")


def _ends(walk: Walk) -> Iterator[tuple[str, int]]:
    """The end of each reply, with the units up to there; at the tail the walk asks again, for ever."""
    told = 0
    while True:
        for _ in walk.parts():
            yield from walk.passed[told:]
            told = len(walk.passed)
        yield from walk.passed[told:]
        told = len(walk.passed)
