"""Whether gold and the curve are of the lines that silver has now.

Each is marked with the version of silver that it was made from.  A later version may only have been compacted.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline import tables
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.lake import Lake, Snapshot

_GOLD_VERSION: Final = 5
"""Version of the computation of gold; raising it makes all days out of date."""
LAST_OF_GOLD: Final = tables.ANOMALIES
GOLD_MARK: Final = f"silver, by computation {_GOLD_VERSION}"
"""The mark of the last table: the version of silver that all tables are of."""
_CURVE_VERSION: Final = 3
"""Version of the computation of the curve; raising it makes the curve out of date."""
CURVE_MARK: Final = f"silver, by computation {_CURVE_VERSION}"
_MOST_READ: Final = 100
"""Most commits of silver that are looked at for a report; in an object store each takes two requests."""


def outdated(lake: Lake) -> tuple[str, ...]:
    """What a report of the lake shows that is not of the lines that silver has now; in sentences."""
    silver = lake.snapshot(tables.REQUESTS)
    said = []
    for table, mark, what, verb, command in (
        (LAST_OF_GOLD, GOLD_MARK, "The figures of traffic", "are", "aggregate"),
        (tables.CURVE, CURVE_MARK, "The curve", "is", "curve"),
    ):
        made = lake.snapshot(table)
        of = made.mark(mark)
        # More may all be compactions.
        changes = None if of is None or silver.version - of > _MOST_READ else silver.changes(of)
        if made.delta is None or (changes is not None and not changes.days):
            continue
        if changes is None:
            lacks = "may not be of the lines that the lake has now"
        else:
            lacks = f"{verb} without the newest lines" if changes.is_addition else f"{verb} of other lines"
        said.append(f"{what} {lacks}: run `pipeline {command}`, then this again.")
    return tuple(said)


def silver_of_curve(lake: Lake) -> Snapshot:
    """Silver as the curve was made from it, or as it is now if there is no curve.

    Raises NothingToPlan if the curve is of lines that silver has no longer, or cannot show any more.
    """
    silver, curve = lake.snapshot(tables.REQUESTS), lake.snapshot(tables.CURVE)
    if curve.delta is None:
        return silver
    refused = NothingToPlan(
        f"{lake.url}: the lines that its curve was made from are not all there: run `pipeline curve`"
    )
    of = curve.mark(CURVE_MARK)
    if of is None:
        raise NothingToPlan(f"{lake.url}: its curve is of an earlier release: run `pipeline curve`")
    changes = silver.changes(of)
    if changes is None or not changes.is_addition:
        raise refused
    if not changes.added or of < 0:
        return silver
    try:
        then = lake.snapshot(tables.REQUESTS, version=of)
    except PipelineFailed:
        raise refused from None  # its log has expired
    replaced = {file.path for file in then.files()} - {file.path for file in silver.files()}
    if not all(lake.store.has(f"{tables.REQUESTS.place}/{path}") for path in replaced):
        raise refused  # they were compacted, and vacuum has removed them
    return then
