"""How the stretches of a batch are shared among tasks: a pure function of what is in the end offset.

Stretches are taken in the order of their streams' names and places and dealt out in runs of about the same size, so a
stream's messages stay in order from task to task, and ten thousand quiet streams are a few tasks and not as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Offset, Stretch


@dataclass(frozen=True, slots=True)
class Share:
    """A stretch of one stream, as a task reads it."""

    stream: str
    unit: Unit
    stretch: Stretch


def shares(start: Offset, end: Offset) -> list[list[Share]]:
    """Who reads what of the batch between two offsets: a list for each task, none empty.

    BadOption when the one does not follow the other.
    """
    if start.positions == end.positions:
        return []
    found: list[Share] = []
    for name in sorted(end.stretches):
        position = end.positions[name]
        before = start.positions.get(name)
        stretches = end.stretches[name]
        if before is not None and stretches and stretches[0].place.count != before.place.count:
            raise BadOption(
                f"stream {name}: the offsets of the batch do not follow each other; is the checkpoint whole?"
            )
        found += [Share(name, position.unit, stretch) for stretch in stretches]
    return dealt(found, end.partitions)


def dealt(found: list[Share], partitions: int) -> list[list[Share]]:
    """At most so many runs of about the same size."""
    total = sum(share.stretch.size for share in found)
    if not found:
        return []
    tasks: list[list[Share]] = [[] for _ in range(max(partitions, 1))]
    at = 0
    for share in found:
        middle = at + share.stretch.size / 2
        tasks[min(int(middle * len(tasks) / total), len(tasks) - 1) if total else 0].append(share)
        at += share.stretch.size
    return [task for task in tasks if task]
