"""Whether gold and the curve are of the lines that silver has now.

Each is marked with the version of silver that it was made from.  A later version may only have been compacted.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline import tables
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake, Snapshot

GOLD_VERSION: Final = 4
"""Version of the computation of gold; raising it makes all days out of date."""
LAST_OF_GOLD: Final = tables.ANOMALIES
GOLD_MARK: Final = f"silver, by computation {GOLD_VERSION}"
"""The mark of the last table: the version of silver that all tables are of."""
CURVE_MARK: Final = "silver"


def outdated(lake: Lake) -> tuple[str, ...]:
    """What a report of the lake shows that is of other lines than silver has now; in sentences."""
    silver = lake.snapshot(tables.REQUESTS)
    said = []
    for table, mark, what, command in (
        (LAST_OF_GOLD, GOLD_MARK, "The figures of traffic", "aggregate"),
        (tables.CURVE, CURVE_MARK, "The curve", "curve"),
    ):
        made = lake.snapshot(table)
        of = made.mark(mark)
        changes = None if of is None else silver.changes(of)
        if made.delta is not None and (changes is None or changes.days):
            are = "is" if command == "curve" else "are"
            said.append(
                f"{what} {are} of other lines than the lake has now: run `pipeline {command}`, then this again."
            )
    return tuple(said)


def silver_of_curve(lake: Lake) -> Snapshot:
    """Silver as the curve was made from it, or as it is now if there is no curve.

    Raises PipelineFailed if the curve is of lines that silver has no longer.
    """
    silver, curve = lake.snapshot(tables.REQUESTS), lake.snapshot(tables.CURVE)
    if curve.delta is None:
        return silver
    of = curve.mark(CURVE_MARK)
    changes = None if of is None else silver.changes(of)
    if of is None or changes is None or not changes.is_addition:
        raise PipelineFailed(f"{lake.url}: its curve is of other lines than it has now: run `pipeline curve` first")
    return lake.snapshot(tables.REQUESTS, version=of) if changes.added and of >= 0 else silver
