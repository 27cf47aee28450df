"""Maintenance of a lake: compaction, removal of unused files, and a return to an older version.

A small ingest adds a small file to each day of its lines.  `optimize` rewrites the small files of a day as a few large
ones.  The rows do not change, so nothing has to be computed again.  An ingest compacts days with many small files too.
The replaced files remain for readers of older versions until `vacuum` removes them.

`undo` restores the content of an older version of bronze, as a new version.  Silver, the sessions and gold are then
updated as after any change.  Files that were ingested since still count as read.  `ingest --again` reads them again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from gateway.pipeline.errors import PipelineFailed, brief
from gateway.pipeline.lake import LEAST_KEEP_S, Lake, Snapshot
from gateway.pipeline.log_files import SPOOL
from gateway.pipeline.parquet import partition_values
from gateway.pipeline.tables import BRONZE, CURVE, GOLD, REQUESTS, SESSIONS, Table

TABLES: Final = (BRONZE, REQUESTS, SESSIONS, *GOLD, CURVE)
SMALL_BYTES: Final = 16 << 20
"""Files smaller than this many bytes are compacted."""
MANY: Final = 24
"""Number of small files of one day from which an ingest compacts them."""


def table_at(url: str) -> tuple[Lake, tuple[Table]]:
    """Return the table at `url`, made by `pipeline table`, in the form of `optimize` and `vacuum`.

    Raises PipelineFailed if there is no table.
    """
    lake, place = Lake.of_table(url)
    table = Table(place, (), (), partition_by=())
    if lake.snapshot(table).delta is None:
        raise PipelineFailed(f"{url}: is no table")
    return lake, (table,)


def optimize(
    lake: Lake, progress: Callable[[str], None], tables: Sequence[Table] = TABLES, *, many: int = 2
) -> tuple[int, int]:
    """Compact the days with at least `many` small files.

    Return the number of replaced files, and the number of new files.
    """
    before = after = 0
    for snapshot, delta in _existing(lake, tables):
        small = Counter(file.path.rpartition("/")[0] for file in snapshot.files() if file.size < SMALL_BYTES)
        folders = sorted(folder for folder, count in small.items() if count >= many)
        if not folders:
            continue
        for folder in folders:
            filters = [(name, "=", value) for name, value in partition_values(f"{folder}/").items()]
            try:
                found = delta.optimize.compact(filters or None)
            except (DeltaError, OSError) as error:
                # Another run has replaced these files, or the store failed.  The table can be read without compaction.
                progress(f"{snapshot.table.place}: {folder} is not compacted: {brief(error)}")
                continue
            before += found["numFilesRemoved"]
            after += found["numFilesAdded"]
        progress(f"{snapshot.table.place}: {len(folders)} compacted")
    return before, after


def vacuum(lake: Lake, tables: Sequence[Table] = TABLES, *, keep_s: float, now: float) -> int:
    """Remove files that no version of these tables from the last `keep_s` seconds needs; return their number.

    `now` is in Unix seconds.
    """
    if keep_s < LEAST_KEEP_S:
        raise PipelineFailed(f"keep: at least {LEAST_KEEP_S / 3600:g} h, so that runs in progress keep their files")
    removed = 0
    oldest_ms = (now - keep_s) * 1_000
    left = list(lake.store.listed(SPOOL.place)) if BRONZE in tables else []
    hours = math.ceil(keep_s / 3_600)
    for snapshot, delta in _existing(lake, tables):
        try:
            removed += len(delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True))
        except DeltaError as error:
            raise PipelineFailed(f"{lake.path(snapshot.table)}: {brief(error)}") from None
        left += [(path, written_at) for path, written_at, source in snapshot.progress_files() if source is None]
    for path, written_at in left:
        if written_at < oldest_ms:
            lake.store.remove(path)
            removed += 1
    return removed


def undo(lake: Lake, version: int) -> None:
    """Restore the content of an older version of bronze.

    Raises PipelineFailed if files of that version no longer exist, and Conflict if another run has written to bronze
    meanwhile.
    """
    bronze = lake.snapshot(BRONZE)
    if bronze.delta is None or not 0 <= version < bronze.version:
        versions = f"has versions 0 to {bronze.version}" if bronze.delta is not None else "does not exist"
        raise PipelineFailed(f"{lake.path(BRONZE)}: {versions}: an older one than the last is to be named")
    try:
        bronze.delta.restore(version, commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        # Do not try again, because that would undo what the other run has just added.
        raise bronze.conflict() from None
    except DeltaError as error:
        raise PipelineFailed(f"{lake.path(BRONZE)}: version {version} cannot be restored: {brief(error)}") from None


def history(lake: Lake) -> Iterator[str]:
    """Yield a line for each version of bronze, the newest first: number, time, lines and source."""
    bronze = lake.snapshot(BRONZE)
    for entry in bronze.delta.history() if bronze.delta is not None else ():
        at = datetime.fromtimestamp(entry["timestamp"] / 1_000, UTC)
        match entry:
            case {"operation": "RESTORE", "operationParameters": {"version": version}}:
                what = f"undone to version {version}"
            case {"operation": "OPTIMIZE"}:
                what = "compacted"
            case {"operation": operation} if "rows" not in entry:
                what = operation.lower()
            case _:
                what = f"{int(entry['rows']):,} lines of {entry.get('source', '-')}"
        yield f"{entry['version']:>6}  {at:%Y-%m-%d %H:%M:%S}Z  {what}"


def _existing(lake: Lake, tables: Sequence[Table]) -> Iterator[tuple[Snapshot, DeltaTable]]:
    for snapshot in map(lake.snapshot, tables):
        if snapshot.delta is not None:
            yield snapshot, snapshot.delta
