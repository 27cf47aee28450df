"""Check whether gold and the curve are up to date with silver.

Gold and the curve are marked with the version of silver that they were computed from.  A newer version of silver need
not have other lines: compaction also makes a new version.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline import tables
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.lake import Lake, Snapshot

_GOLD_VERSION: Final = 5
"""Version of the code that computes gold.  A new version makes all days out of date."""
LAST_OF_GOLD: Final = tables.ANOMALIES
GOLD_MARK: Final = f"silver, by computation {_GOLD_VERSION}"
"""The mark of the table that is committed last: the version of silver that all tables were computed from."""
_CURVE_VERSION: Final = 3
"""Version of the code that computes the curve.  A new version makes the curve out of date."""
CURVE_MARK: Final = f"silver, by computation {_CURVE_VERSION}"
_MOST_READ: Final = 100
"""Most commits of silver that a report reads.  In an object store, each takes two requests."""


def outdated(lake: Lake) -> tuple[str, ...]:
    """Return a sentence for each part of a report that is not up to date with silver."""
    silver = lake.snapshot(tables.REQUESTS)
    said = []
    for table, mark, what, verb, command in (
        (LAST_OF_GOLD, GOLD_MARK, "The figures of traffic", "are", "aggregate"),
        (tables.CURVE, CURVE_MARK, "The curve", "is", "curve"),
    ):
        made = lake.snapshot(table)
        of = made.mark(mark)
        # With more commits, the report only says that it may be out of date.
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
    """Return the version of silver that the curve was computed from, or the newest one if there is no curve.

    Raises NothingToPlan if silver has lost lines of the curve, or if that version can no longer be read.
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
