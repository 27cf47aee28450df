"""Find the bytes of each read, and add up reads of the same bytes: the work of one of Spark's workers.

A worker gets all reads of each of its tapes, in Arrow batches.  Reads between the same two offsets within one second
are added up as they arrive, so a thousand readers that are woken together take the memory of one.

A worker returns a few rows of bytes, which Spark can keep cheaply.  Each row holds a table of one of these kinds:

    summary  counts of all tapes (`SUMMARY`)
    uses     reads of some tapes after being added up, for the curve (`simulate.Read`), sorted by the hash by which a
             sample is chosen
    figures  the figures of each tape for the plan (`streams.FIGURES`)
    gaps     the times between uses, by their length (`streams.GAPS`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.pipeline.curve.sampling import SPACE
from gateway.pipeline.curve.scale import UNKNOWN, Bools, Ints, places
from gateway.pipeline.curve.simulate import USE_US
from gateway.pipeline.curve.streams import NAMES, WINDOWS, figures
from gateway.tape.costs import TOKEN_COST, USUAL_COST

PLAIN: Final = "plain"
VARIANTS: Final = (PLAIN, "gzip", "br", "zstd")
"""Forms of a body: without coding, and in each coding of `gateway.protocol.coding`, which workers cannot import."""

READS: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("at", "tape", "scale")),
        *((name, pa.string()) for name in ("node", "route", "stream", "start", "end")),
        *((name, pa.int64()) for name in ("sent", "fetched", "length")),
        ("sent_in", pa.string()),
        *((name, pa.bool_()) for name in ("is_counted", "is_asking", "is_tail", "is_apart")),
    ]
)
"""The columns of `references.reads_of`."""
FOUND: Final = "kind string, payload binary"
"""A row that a worker returns: the kind of a table, and the table in Arrow's stream format."""
SUMMARY_KIND: Final = "summary"
USES_KIND: Final = "uses"
FIGURES_KIND: Final = "figures"
GAPS_KIND: Final = "gaps"

_COUNTS: Final = ("reads", "counted", "counted_bytes", "loose", "empty", "tapes", "working_bytes")
USES: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("at", "tape", "low", "high")),
        ("cost_per_byte", pa.float64()),
        *((name, pa.int64()) for name in ("times", "counted", *VARIANTS)),
        ("is_alone", pa.bool_()),
    ]
)
"""Columns of `simulate.Read`."""
SUMMARY: Final = pa.schema([*((name, pa.int64()) for name in _COUNTS), ("nodes", pa.list_(pa.string()))])
_FEW: Final = 1 << 16
"""The largest number of reads that are prepared at a time, and of uses in one returned row."""
_MOST: Final = 1 << 19
"""Rows that are held in memory before they are added up."""
_KEY: Final = ("tape", "scale", "start", "end", "second", "window", "tail")
_ADDED_UP: Final = [
    ("at", "min"),
    *((name, "max") for name in ("last", "length", *VARIANTS)),
    *((name, "sum") for name in ("times", "counted", "asking", "fetched", "unknown")),
]
"""How each of the other columns is added up."""


@dataclass(slots=True)
class _Held:
    """The reads that a worker has received so far."""

    first_us: int
    last_us: int
    rows: list[pa.Table] = field(default_factory=list)
    names: list[pa.Table] = field(default_factory=list)
    count: int = 0
    most: int = _MOST

    def add(self, reads: pa.Table) -> None:
        """Add reads."""
        self.names.append(_first_of_each(reads.select(NAMES)))
        self.rows.append(_prepared(reads, self.first_us, self.last_us))
        self.count += reads.num_rows
        if self.count >= self.most:
            found = pa.concat_tables(self.rows).group_by(list(_KEY)).aggregate(_ADDED_UP)
            found = found.select([*_KEY, *map("_".join, _ADDED_UP)])
            self.rows = [found.rename_columns([*_KEY, *(name for name, _ in _ADDED_UP)])]
            self.names = [_first_of_each(pa.concat_tables(self.names))]
            self.count = found.num_rows
            self.most = max(_MOST, 2 * self.count)


def placed(batches: Iterable[pa.RecordBatch], first_us: int, last_us: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `FOUND` for reads with the columns of `READS`.  The batches must have all reads of each tape.

    `first_us` and `last_us` are the times of the log's first and last line, in microseconds.
    """
    held = _Held(first_us, last_us)
    for reads in _together(batches):
        held.add(reads)
    if not held.count:
        return
    uses = _uses(_on_tapes(pa.concat_tables(held.rows)))
    names = _first_of_each(pa.concat_tables(held.names))
    yield _row(SUMMARY_KIND, _summary(uses, names))
    for some in _by_place(_for_the_curve(uses)):
        yield _row(USES_KIND, some)
    of_tapes, gaps = figures(uses, names, last_us)
    yield _row(FIGURES_KIND, of_tapes)
    yield _row(GAPS_KIND, gaps)


def tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the tables in the column `payload`."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield pa.ipc.open_stream(payload.as_buffer()).read_all()


def _row(kind: str, table: pa.Table) -> pa.RecordBatch:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return pa.RecordBatch.from_pydict({"kind": [kind], "payload": [out.getvalue().to_pybytes()]})


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= _FEW:
            yield pa.Table.from_batches(held).cast(READS)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held).cast(READS)


def _first_of_each(names: pa.Table) -> pa.Table:
    """Return the first row of each tape."""
    return names.take(pa.array(np.unique(names["tape"].to_numpy(), return_index=True)[1]))


def _prepared(reads: pa.Table, first_us: int, last_us: int) -> pa.Table:
    """Turn reads into rows with the columns of `_KEY` and `_ADDED_UP`."""
    at = reads["at"].to_numpy()
    is_counted = reads["is_counted"].to_numpy()
    sent = pc.fill_null(reads["sent"], 0).to_numpy()
    window = np.minimum((at - first_us) * WINDOWS // max(1, last_us - first_us), WINDOWS - 1)
    counted = is_counted.astype(np.int64)
    variants = {
        name: np.where(is_counted & pc.fill_null(pc.equal(reads["sent_in"], name), False).to_numpy(), sent, 0)
        for name in VARIANTS
    }
    columns = {
        **{name: reads[name] for name in ("tape", "scale", "start", "end")},
        "second": at // USE_US,
        "window": np.where(is_counted, window, UNKNOWN),
        "tail": np.where(reads["is_tail"].to_numpy(), sent, UNKNOWN),
        "at": at,
        "last": at,
        "length": pc.fill_null(reads["length"], UNKNOWN),
        **variants,
        "times": np.ones(len(at), np.int64),
        "counted": counted,
        "asking": counted * reads["is_asking"].to_numpy(),
        "fetched": pc.fill_null(reads["fetched"], 0),
        "unknown": ((sent > 0) & reads["length"].is_null().to_numpy()).astype(np.int64),
    }
    return pa.table(columns)


def _on_tapes(rows: pa.Table) -> dict[str, Ints]:
    """Add the columns that need byte positions: `low`, `high`, `extent`, `tokens` and `loose`."""
    start, end = (rows[name].combine_chunks() for name in ("start", "end"))
    columns = {name: rows[name].to_numpy() for name in rows.column_names if name not in ("start", "end")}
    found = places(columns["scale"], start, end, columns["length"])
    is_placed = (found.start >= 0) & (found.end >= 0)
    high = np.where(is_placed, np.maximum(found.start, found.end), 0)
    low = np.where(is_placed, found.start, 0)
    tail = columns["tail"]
    is_loose = ~is_placed | found.is_start_loose | found.is_end_loose
    return columns | {
        "low": np.where(tail >= 0, np.maximum(low, high - tail), low),
        "high": high,
        "extent": np.where(is_placed, found.extent, 0),
        "tokens": np.where(is_placed, found.tokens, 0),
        "loose": np.where(is_loose, columns["times"], 0),
    }


def _uses(rows: dict[str, Ints]) -> dict[str, Ints]:
    """Merge rows of the same bytes within a second, and sort them by tape and bytes."""
    has_bytes = rows["high"] > rows["low"]
    rows["asked"] = np.where(has_bytes, rows["counted"], 0)
    rows["windows"] = np.where(has_bytes & (rows["window"] >= 0), 1 << np.maximum(rows["window"], 0), 0)
    rows["empty"] = np.where(has_bytes, 0, rows["unknown"])
    key = ("tape", "low", "high", "second")
    order = np.lexsort([rows[name] for name in reversed(key)])
    begins = np.flatnonzero(_begins(*(rows[name][order] for name in key)))
    how: dict[np.ufunc, Sequence[str]] = {
        np.minimum: ("at",),
        np.maximum: ("last", *VARIANTS, "extent", "tokens"),
        np.add: ("times", "counted", "asking", "fetched", "asked", "loose", "empty"),
        np.bitwise_or: ("windows",),
    }
    out = {name: rows[name][order][begins] for name in ("tape", "low", "high")}
    out |= {name: add.reduceat(rows[name][order], begins) for add, names in how.items() for name in names}
    out["live"] = out["times"] - out["counted"]
    out["cost"] = out["extent"] + USUAL_COST + TOKEN_COST * out["tokens"]
    return out


def _begins(*columns: Ints) -> Bools:
    """Whether each row differs from the row before it."""
    is_new: Bools = np.ones(len(columns[0]), np.bool_)
    is_new[1:] = reduce(np.logical_or, (column[1:] != column[:-1] for column in columns))
    return is_new


def _summary(uses: dict[str, Ints], names: pa.Table) -> pa.Table:
    of_tapes = np.maximum.reduceat(uses["cost"], np.flatnonzero(_begins(uses["tape"])))
    found: dict[str, Any] = {
        "reads": uses["times"].sum(),
        "counted": uses["asked"].sum(),
        "counted_bytes": (uses["counted"] * (uses["high"] - uses["low"])).sum(),
        "loose": uses["loose"].sum(),
        "empty": uses["empty"].sum(),
        "tapes": len(of_tapes),
        "working_bytes": of_tapes.sum(),
        "nodes": pc.unique(names["node"]).to_pylist(),
    }
    return pa.Table.from_pylist([found], SUMMARY)


def _for_the_curve(uses: dict[str, Ints]) -> pa.Table:
    """Return the uses with the columns of `simulate.Read`.

    The readers of one use share one fetch: if a thousand are woken together, the first one fetches the bytes.
    """
    per_byte = 1 + TOKEN_COST * uses["tokens"] / np.maximum(uses["extent"], 1)
    return pa.table({**uses, "cost_per_byte": per_byte, "is_alone": uses["asking"] == 0}).select(USES.names).cast(USES)


def _by_place(uses: pa.Table) -> Iterator[pa.Table]:
    """Sort the uses by their tapes' sampling hash, and yield them in parts.

    All uses of a tape are in one part.
    """
    tape = uses["tape"].to_numpy()
    order = np.lexsort((tape, tape % SPACE))
    uses, tape = uses.take(pa.array(order)), tape[order]
    begins = np.append(np.flatnonzero(_begins(tape)), len(tape))
    begin = 0
    while begin < len(tape):
        end = int(begins[np.searchsorted(begins[:-1], begin + _FEW)])
        yield uses.slice(begin, end - begin)
        begin = end
