"""The distribution of a batch's stretches over tasks: a pure function of the end offset.

Stretches are ordered by stream name and place and split into runs of about the same size.  A stream's messages thus
stay in order from task to task, and ten thousand quiet streams become a few tasks.
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
    """The shares of the batch between two offsets: a list for each task, none empty.

    BadOption if the offsets do not follow each other.
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
                f"stream {name}: the offsets of the batch do not follow each other; is the checkpoint complete?"
            )
        found += [Share(name, position.unit, stretch) for stretch in stretches]
    return split_evenly(found, end.partitions)


def split_evenly(found: list[Share], partitions: int) -> list[list[Share]]:
    """At most `partitions` runs of about the same size."""
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
