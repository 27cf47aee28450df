"""Plain lines: events that pyarrow's JSON reader parses exactly like Spark's, at a fifth of the cost.

Nearly all lines of a gateway are plain.  A plain line is one flat JSON object, whose fields have the schema's types and
are within their bounds.  Its row of silver is made in the same pass that writes the line to bronze.  Every other line
is *odd*.  `gateway.pipeline.bronze` classifies odd lines as events or rejects.

A line is odd in all cases in which the two readers could differ:

- pyarrow accepts several objects in one line, and objects that continue on the next line.  So a plain line must begin
  with an opening brace, and its only closing brace is its last character.
- Spark accepts any JSON value for a text field, uses the last of two fields with the same name, and accepts lone
  surrogates.  pyarrow reports an error for each of these.
- Spark rejects values nested more than 1,000 levels deep, and numbers of more than 1,000 digits.  So a plain line has
  at most 1,000 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from gateway.ops.access_log.schema import FIELDS, VERSION
from gateway.pipeline.parquet import Writer
from gateway.pipeline.tables import LEFT_OUT, LINES, REQUESTS

EARLIEST_S: Final = 1_577_836_800
"""2020-01-01, before the first release of Durable Streams and so before any gateway's line."""
AHEAD_S: Final = 86_400
"""How far a line's time may be after its ingestion, in seconds."""
MOST: Final = {"integer": 1 << 40, "number": 1e9}
"""Largest accepted integer (bytes and other counts) and largest number (durations in seconds, thirty years)."""
# Gateways of earlier releases wrote no id, so a line may lack it.
NEEDED: Final = tuple(field.name for field in FIELDS if field.is_always_there and field.name != "id")
# The time and the version are checked separately.
BOUNDED: Final = tuple(field for field in FIELDS if field.kind in MOST and field.name not in ("time", "v"))

_SLICE: Final = 16_384
"""Number of lines that are sorted at a time: a few megabytes, which fit in the processor's caches."""
_RECENT: Final = 2
"""Number of earlier slices in which copies of a line are searched, besides its own slice."""
_LONGEST: Final = 1_000
"""Most bytes of a plain line."""
_PIECES: Final = 16
"""If pyarrow cannot read some lines as a whole, it reads this many parts of them separately."""
_FEW: Final = 40
"""A part with at most this many lines is not divided further: all of its lines are odd."""
_TYPES: Final = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
_PARSE: Final = pj.ParseOptions(
    explicit_schema=pa.schema([(field.name, _TYPES[field.kind]) for field in FIELDS]),
    unexpected_field_behavior="ignore",
)
_INT: Final = (1 << 31) - 1
_DAY_US: Final = 86_400 * 1_000_000


@dataclass(frozen=True, slots=True)
class Sorted:
    """The lines of a batch, without empty lines."""

    bronze: pa.Table
    """The plain lines as rows of bronze."""
    silver: pa.Table
    """The plain lines as rows of silver."""
    odd: pa.Table
    """The odd lines (columns `line`, `source`)."""


@dataclass(frozen=True, slots=True)
class Sorter:
    """Writes plain lines to bronze and silver, and odd lines to the spool; a function for `DataFrame.mapInArrow`.

    The rows have the columns `line` and `source`.
    """

    bronze: Writer
    silver: Writer
    odd: Writer
    taken_s: int
    oldest: date | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row of `WRITTEN` for each file."""
        recent = Recent()
        with self.bronze.open() as bronze, self.silver.open() as silver, self.odd.open() as odd:
            for batch in batches:
                for at in range(0, batch.num_rows, _SLICE):
                    lines, source = (batch.column(name).slice(at, _SLICE) for name in ("line", "source"))
                    found = sort_lines(lines, source, self.taken_s, self.oldest)
                    bronze.add(found.bronze)
                    silver.add(found.silver.filter(pa.array(recent.is_new(found.bronze))))
                    odd.add(found.odd)
        for files in (bronze, silver, odd):
            yield from files.told()


@dataclass(slots=True)
class Recent:
    """The lines that were sorted most recently, to recognise copies.

    If a gateway cannot tell whether a line reached its destination, it soon writes the line again.  Such a copy gets no
    row of silver here.  Otherwise silver would have to rewrite the files with the line, to remove the copy.
    """

    _held: list[pa.Table] = field(default_factory=list)

    def is_new(self, came: pa.Table) -> Any:
        """Whether each of these lines (columns `id`, `line`) is new, and not a copy of a recent or earlier line."""
        came = came.select(["id", "line"])
        known = pa.concat_tables([*self._held, came])
        ids = known["id"].combine_chunks().dictionary_encode()
        number = pc.fill_null(ids.indices, len(ids.dictionary)).to_numpy()
        first = np.empty(len(ids.dictionary) + 1, np.int64)
        first[number[::-1]] = np.arange(len(number))[::-1]
        # Lines without an id never count as copies.
        is_copy = ids.is_valid().to_numpy(zero_copy_only=False) & (first[number] < np.arange(len(number)))
        at = np.flatnonzero(is_copy)
        is_copy[at] = pc.equal(known["line"].take(at), known["line"].take(first[number[at]])).to_numpy()
        self._held = [*self._held, came][-_RECENT:]
        return ~is_copy[len(number) - came.num_rows :]


def sort_lines(lines: pa.Array, source: pa.Array, taken_s: int, oldest: date | None) -> Sorted:
    """Sort lines into plain and odd ones.

    `lines` and `source` are arrays of strings: the lines, and the source of each.  `taken_s` is the time of ingestion
    (Unix seconds).  Lines of days before `oldest` are odd.
    """
    is_flat = pc.and_(pc.equal(pc.count_substring(lines, "}"), 1), pc.ends_with(lines, "}"))
    may_be = reduce(
        pc.and_, (is_flat, pc.starts_with(lines, "{"), pc.less_equal(pc.binary_length(lines), _LONGEST))
    ).to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero(may_be)
    events, read = _read(lines.take(pa.array(chosen)))
    is_plain = _checked(events, taken_s, oldest)
    events, at = events.filter(is_plain), chosen[read][is_plain.to_numpy(zero_copy_only=False)]
    is_odd = np.ones(len(lines), bool)
    is_odd[at] = False
    is_odd &= pc.invert(pc.is_in(lines, pa.array(["", "\r"]))).to_numpy(zero_copy_only=False)
    all_lines = pa.table({"line": lines, "source": source})
    time, day = _times(events["time"])
    return Sorted(
        _bronze(all_lines.take(pa.array(at)), events["id"], day),
        _silver(events, time, day),
        all_lines.filter(pa.array(is_odd)),
    )


def _read(lines: pa.Array) -> tuple[pa.Table, Any]:
    """Return the events in those lines that pyarrow can read, and the positions of these lines."""
    tables, at = [_PARSE.explicit_schema.empty_table()], [np.empty(0, np.int64)]
    for begin, table in _pieces(lines, 0):
        tables.append(table)
        at.append(np.arange(begin, begin + table.num_rows))
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(at)


def _pieces(lines: pa.Array, begin: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the events of parts of the lines, each with the position of its first line.

    Parts with a line that pyarrow cannot read are divided, and left out in the end.
    """
    count = len(lines)
    if not count:
        return
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), lines), "\n")[0].as_buffer()
    whole = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
    try:
        table = pj.read_json(pa.BufferReader(text), whole, _PARSE)
    except pa.ArrowInvalid:
        table = None
    if table is not None and table.num_rows == count:
        yield begin, table
    elif count > _FEW:
        step = -(-count // _PIECES)
        for first in range(0, count, step):
            yield from _pieces(lines[first : first + step], begin + first)


def _checked(events: pa.Table, taken_s: int, oldest: date | None) -> pa.Array:
    """Whether each of the events is plain."""
    seconds = events["time"]
    checks = [
        pc.equal(events["v"], VERSION),
        pc.and_(pc.greater_equal(seconds, EARLIEST_S), pc.less_equal(seconds, taken_s + AHEAD_S)),
        # Spark makes NULL of a number that its column cannot hold.
        pc.fill_null(pc.less_equal(events["status"], _INT), True),
    ]
    checks += [pc.is_valid(events[name]) for name in NEEDED]
    for bounded in BOUNDED:
        value = events[bounded.name]
        is_within = pc.and_(pc.greater_equal(value, 0), pc.less_equal(value, MOST[bounded.kind]))
        checks.append(pc.fill_null(is_within, True))
    if oldest is not None:
        checks.append(pc.greater_equal(_times(seconds)[1], pa.scalar(oldest)))
    found = pc.fill_null(reduce(pc.and_kleene, checks), False)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _times(seconds: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Convert Unix seconds to timestamps, rounded to microseconds, and to days (UTC)."""
    known = np.nan_to_num(pc.fill_null(seconds, 0.0).to_numpy(), posinf=0, neginf=0).clip(0, 253_402_300_799)
    micros = np.floor(known * 1_000_000 + 0.5).astype(np.int64)
    days = (micros // _DAY_US).astype(np.int32)
    return pa.array(micros).cast(pa.timestamp("us", "UTC")), pa.array(days).cast(pa.date32())


def _bronze(lines: pa.Table, ids: pa.ChunkedArray, day: pa.Array) -> pa.Table:
    count = lines.num_rows
    columns = {
        "kind": pa.array([LINES.kind], pa.string()).take(pa.array(np.zeros(count, np.int64))),
        "day": day,
        "id": ids,
        "source": lines["source"],
        "line": lines["line"],
        "reason": pa.nulls(count, pa.string()),
    }
    return pa.table(columns)


def _silver(events: pa.Table, time: pa.Array, day: pa.Array) -> pa.Table:
    columns = {}
    for column in REQUESTS.columns:
        value = {"time": time, "day": day}.get(column.name)
        if value is None:
            value = events[column.name]
            if column.name in LEFT_OUT:
                value = pc.fill_null(value, LEFT_OUT[column.name])
        columns[column.name] = value
    return pa.table(columns)
