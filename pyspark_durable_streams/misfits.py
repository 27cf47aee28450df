"""Typed columns of JSON messages, of which some may not fit the schema.

Arrow's reader takes a block of messages as a whole: one value of another type, and it refuses the block.  The values
that it would refuse are therefore looked for, and their keys overwritten by others of the same length, which the schema
does not have.  The reader then passes over these values and reads everything else: a message keeps the fields that fit.

What fits must not depend on the messages beside it, so the rules here are exactly those of Arrow's reader (`fitting`).
The strings of a block and its brackets are found as in `framing`, and from them a column's keys and values.  First
bytes and regular expressions, which Arrow matches for the whole column, tell which values fit.  Only the columns that
have lately had misfits are looked at, unless Arrow then still refuses the block.  The effort hardly depends on the
number of misfits.  Within an array nothing is overwritten: an array with a misfit is one as a whole.

Lines that are no objects are taken out first.  If Arrow refuses the others after all that, values that it cannot
represent are overwritten too, wherever they are (`extremes`).  Lines that it refuses even then are found by bisection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyspark_durable_streams import extremes
from pyspark_durable_streams.fitting import NEXT, Fit, fit_of, strictly
from pyspark_durable_streams.framing import Marks, Piece, line_ends, marks_of, quotes

_OPEN_BRACE: Final = 0x7B
_FEED: Final = 0x0A
_COLON: Final = 0x3A
_NULL: Final = 0x6E
"""The first byte of null, and of nothing else."""
_BLANK: Final = 0x20
_FILLERS: Final = b"~^!#%&"
_MOST_DIGITS: Final = 38
"""Of 128 bits."""
_Bytes = npt.NDArray[np.uint8]
_Positions = npt.NDArray[np.intp]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A row for each message; fields that are missing or do not fit are null."""

    table: pa.Table
    misfits: _Flags | None
    """The messages that do not fit, or None if all do."""


class Parser:
    """Parses messages into columns of a schema."""

    def __init__(self, target: pa.Schema) -> None:
        self._target = target
        self._wanted = pa.schema([pa.field(column.name, _parsable(column.type)) for column in target])
        self._columns = _columns(target, fit_of)
        self._all = frozenset(_with_fields(self._columns))
        self._strict = _columns(target, strictly)
        self._may_wrap = any(_may_wrap(column.type) for column in target)
        self._suspects: frozenset[_Column] = frozenset()
        """The columns with misfits in the latest blocks, of which each had some."""

    def parse(self, piece: Piece) -> Parsed:
        """Lines, each with its line feed, as columns."""
        if not self._suspects and not self._may_wrap and _are_objects(piece.data):
            table = self._read(piece.data, piece.count)
            if table is not None:
                return Parsed(table, None)
        misfits = np.zeros(piece.count, np.bool_)
        lines = _Lines(piece.data)
        self._take_out(lines, misfits)
        table = self._careful(lines, misfits) if lines.rows.size else None
        return Parsed(self._spread(table, lines.rows, piece.count), misfits if misfits.any() else None)

    def _read(self, data: bytes | _Bytes, count: int) -> pa.Table | None:
        """The lines as columns; None if one of them does not fit."""
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._wanted, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != count or not all(map(_is_within, table.columns)):
                return None
            return table.cast(self._target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    @staticmethod
    def _take_out(lines: _Lines, misfits: _Flags) -> None:
        """Remove lines that are no objects, as far as quotes and brackets tell."""
        if lines.are_plain():
            return
        for odd in (lines.are_no_objects, lines.are_unbalanced):
            gone = odd()
            if gone.any():
                misfits[lines.rows[gone]] = True
                lines.keep(~gone)

    def _careful(self, lines: _Lines, misfits: _Flags) -> pa.Table:
        """The columns of lines that are objects."""
        strings = _Strings(lines.data, lines.marks)
        for suspects in filter(None, (self._suspects, self._all)):
            data = np.frombuffer(lines.data, np.uint8).copy()
            found = dict(_overwrite(data, strings, self._columns, suspects))
            table = self._read(data, lines.rows.size)
            if table is not None:
                self._suspects = self._suspects | found.keys() if found else frozenset()
                break
        text = data.tobytes()
        if table is None and extremes.may_be_in(lines.data):
            data = np.frombuffer(lines.data, np.uint8).copy()
            found = dict(_overwrite(data, strings, self._strict, frozenset(_with_fields(self._strict))))
            text = extremes.overwritten(data.tobytes())
            table = self._read(text, lines.rows.size)
        for keys in found.values():
            misfits[lines.rows_at(keys)] = True
        if table is None:
            self._suspects = frozenset()
            return self._salvage(_Lines(text, lines.rows), misfits)
        return table

    def _salvage(self, lines: _Lines, misfits: _Flags) -> pa.Table:
        """The columns of lines of which Arrow refuses some for another reason: all of these lines' columns are null."""
        rows, texts = lines.rows, lines.data.split(b"\n")[:-1]
        is_json = [_is_json(text) for text in texts]
        tables: list[pa.Table] = []
        stack = [(0, len(texts))]
        while stack:
            begin, end = stack.pop()
            table = None
            if all(is_json[begin:end]):
                table = self._read(b"".join(text + b"\n" for text in texts[begin:end]), end - begin)
            if table is None and end - begin > 1:
                middle = (begin + end) // 2
                stack += [(middle, end), (begin, middle)]
                continue
            if table is None:
                misfits[rows[begin]] = True
                table = self._nulls(1)
            tables.append(table)
        return pa.concat_tables(tables)

    def _spread(self, table: pa.Table | None, rows: _Positions, count: int) -> pa.Table:
        """The table with rows of nulls for the lines that it lacks."""
        if table is None:
            return self._nulls(count)
        if rows.size == count:
            return table
        indices = np.zeros(count, np.int64)
        indices[rows] = np.arange(rows.size)
        is_missing = np.ones(count, np.bool_)
        is_missing[rows] = False
        return table.take(pa.array(indices, mask=is_missing))

    def _nulls(self, count: int) -> pa.Table:
        return pa.table([pa.nulls(count, column.type) for column in self._target], schema=self._target)


class _Lines:
    """Lines of a block, and which of its rows they are."""

    def __init__(self, data: bytes, rows: _Positions | None = None) -> None:
        self.data = data
        self._index()
        self.rows: _Positions = rows if rows is not None else np.arange(self._begins.size)
        self._marks: Marks | None = None

    def _index(self) -> None:
        ends = line_ends(self.data) + 1
        self._begins = np.concatenate(([0], ends[:-1])) if ends.size else ends
        self._lengths = np.diff(np.append(self._begins, len(self.data)))

    @property
    def marks(self) -> Marks:
        """The brackets outside strings."""
        if self._marks is None:
            self._marks = marks_of(self.data)
        return self._marks

    def keep(self, kept: _Flags) -> None:
        """Drop the other lines."""
        view = np.frombuffer(self.data, np.uint8)
        self.data, self.rows, self._marks = view[np.repeat(kept, self._lengths)].tobytes(), self.rows[kept], None
        self._index()

    def are_plain(self) -> bool:
        """Whether each line is one pair of braces and what is in it; the other two say which lines are not."""
        marks = self.marks
        outermost = marks.at[marks.opens & (marks.depths == 1)]
        view = np.frombuffer(self.data, np.uint8)
        return bool(
            np.array_equal(outermost, self._begins)
            and marks.depths[-1] == 0
            and (view[outermost] == _OPEN_BRACE).all()
            and marks.outside_strings(np.array([len(self.data) - 1]))[0]
        )

    def are_no_objects(self) -> _Flags:
        """Which lines do not begin with a brace, or end within a string."""
        view = np.frombuffer(self.data, np.uint8)
        numbers = np.add.reduceat(quotes(self.data), self._begins, dtype=np.int32)
        found: _Flags = (view[self._begins] != _OPEN_BRACE) | (numbers % 2 == 1)
        return found

    def are_unbalanced(self) -> _Flags:
        """Which lines do not have just one bracket pair around all."""
        if not self._begins.size:
            return np.zeros(0, np.bool_)
        marks = self.marks
        steps = np.where(marks.opens, 1, -1)
        before = np.concatenate(([0], np.cumsum(steps)))[np.searchsorted(marks.at, self._begins)]
        after = np.append(before[1:], marks.depths[-1] if marks.depths.size else 0)
        line_of = np.searchsorted(self._begins, marks.at, side="right") - 1
        inner = marks.depths - before[line_of]
        outermost = np.bincount(line_of[marks.opens & (inner == 1)], minlength=self._begins.size)
        found: _Flags = (after != before) | (outermost != 1)
        return found

    def rows_at(self, positions: _Positions) -> _Positions:
        """The rows of bytes at these positions."""
        found: _Positions = self.rows[np.searchsorted(self._begins, positions, side="right") - 1]
        return found


class _Strings:
    """The strings in lines: keys, and values."""

    def __init__(self, data: bytes, marks: Marks) -> None:
        self._data, self._marks = data, marks
        self._view = np.frombuffer(data, np.uint8)
        at = np.flatnonzero(quotes(data))
        self._begins = at[0::2]
        self._sizes = at[1::2] - at[0::2] + 1

    def keys(self, key: bytes, depth: int, objects: _Positions | None) -> tuple[_Positions, _Positions]:
        """Where this key, given with its quotes, and its values begin in objects at this depth.

        If `objects` is given, only in objects that begin there.
        """
        at = self._begins[self._sizes == len(key)]
        if not at.size:
            return at, at
        texts = np.ndarray(len(self._data) - len(key) + 1, f"S{len(key)}", self._data, strides=1)
        at = at[texts[at] == key]
        after = _after_space(self._view, at + len(key))
        inner = self._marks.depths[np.searchsorted(self._marks.at, at) - 1]
        are_ours = (self._view[after] == _COLON) & (inner == depth)
        at, values = at[are_ours], _after_space(self._view, after[are_ours] + 1)
        if objects is not None and at.size:
            opens = self._marks.at[self._marks.opens & (self._marks.depths == depth)]
            are_ours = np.isin(opens[np.searchsorted(opens, at) - 1], objects)
            at, values = at[are_ours], values[are_ours]
        return at, values

    def fit(self, values: _Positions, fit: Fit) -> _Flags:
        """Whether the values at these positions fit."""
        first = self._view[values]
        fits = fit.may_begin[first]
        if fit.surely:
            rest = np.flatnonzero(fits & (first != _NULL))
            fits[rest] = self._match(values[rest], f"(?:{fit.surely}){NEXT}")
            rest = rest[~fits[rest]]
            rest = rest[self._match(values[rest], fit.perhaps)]
            fits[rest] = [fit.is_met(self._data, at) for at in values[rest].tolist()]
        return fits

    def shorten(self, data: _Bytes, values: _Positions, is_bad: _Flags, fit: Fit) -> _Flags:
        """Overwrite values that do not fit by shorter ones that do, where the rule has them; returns which are left."""
        if fit.shortened is None:
            return is_bad
        left = is_bad.copy()
        for number in np.flatnonzero(is_bad).tolist():
            at = int(values[number])
            if (text := fit.shortened(self._data, at)) is not None:
                data[at : at + len(text)] = np.frombuffer(text, np.uint8)
                left[number] = False
        return left

    def _match(self, values: _Positions, pattern: str) -> _Flags:
        """Which of these values match a regular expression."""
        borders = np.append(values, len(self._data))
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self._data)]
        texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), values.size, buffers)
        matched: _Flags = pc.match_substring_regex(texts, f"^(?:{pattern})").to_numpy(zero_copy_only=False)
        return matched


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A column, or a field of a struct."""

    key: bytes
    """With its quotes."""
    filler: int
    """A byte such that no other key of the object consists of it alone."""
    fit: Fit
    fields: tuple[_Column, ...]
    """Of a struct."""


def _columns(fields: Iterable[pa.Field], rule: Callable[[pa.DataType], Fit]) -> tuple[_Column, ...]:
    """The columns for fields of a schema or of a struct."""
    keys = {json.dumps(field.name, ensure_ascii=False).encode(): field.type for field in fields}
    found = []
    for key, kind in keys.items():
        filler = next(byte for byte in _FILLERS if bytes([byte]) * (len(key) - 2) not in (one[1:-1] for one in keys))
        inner = [kind.field(at) for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        found.append(_Column(key, filler, rule(kind), _columns(inner, rule)))
    return tuple(found)


def _after_space(view: _Bytes, at: _Positions) -> _Positions:
    """The first positions from these on that are no white space."""
    is_space = view[at] <= _BLANK
    if not is_space.any():
        return at
    at = at + is_space  # more than one is rare
    rest = np.flatnonzero(view[at] <= _BLANK)
    if rest.size:
        spaces = np.flatnonzero(view <= _BLANK)
        ends = spaces[np.diff(spaces, append=-1) != 1] + 1
        at[rest] = ends[np.searchsorted(ends, at[rest], side="right")]
    return at


def _with_fields(columns: Iterable[_Column]) -> Iterator[_Column]:
    for column in columns:
        yield column
        yield from _with_fields(column.fields)


def _overwrite(
    data: _Bytes,
    strings: _Strings,
    columns: tuple[_Column, ...],
    suspects: frozenset[_Column],
    depth: int = 1,
    objects: _Positions | None = None,
) -> Iterator[tuple[_Column, _Positions]]:
    """Overwrite the keys of values that do not fit the suspects; yields where they begin, if there are any."""
    for column in columns:
        if column not in suspects and not column.fields:
            continue
        keys, values = strings.keys(column.key, depth, objects)
        is_bad = ~strings.fit(values, column.fit)
        if is_bad.any():
            is_bad = strings.shorten(data, values, is_bad, column.fit)
            bad = keys[is_bad]
            data[bad[:, None] + np.arange(1, len(column.key) - 1)] = column.filler
            yield column, bad
        yield from _overwrite(data, strings, column.fields, suspects, depth + 1, values)


def _are_objects(data: bytes) -> bool:
    """Whether each line begins with a brace: Arrow's reader crashes on a line that is `null`."""
    view = np.frombuffer(data, np.uint8)
    is_other = view[:-1] == _FEED
    is_other &= view[1:] != _OPEN_BRACE
    return bool(view[0] == _OPEN_BRACE and not is_other.any())


def _is_within(values: pa.ChunkedArray | pa.Array) -> bool:
    """Whether decimals have no more digits than their type; Arrow's reader counts written digits only."""
    kind = values.type
    if pa.types.is_struct(kind):
        return all(_is_within(field) for field in values.flatten())
    if pa.types.is_list(kind):
        return _is_within(pc.list_flatten(values))
    if not pa.types.is_decimal(kind):
        return True
    limit = Decimal(10) ** (kind.precision - kind.scale)
    found = pc.min_max(values).as_py()
    return found["max"] is None or bool(-limit < found["min"] and found["max"] < limit)


def _may_wrap(kind: pa.DataType) -> bool:
    """Whether a decimal may have so many digits that Arrow's reader takes it for another one."""
    if pa.types.is_struct(kind):
        return any(_may_wrap(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _may_wrap(kind.value_type)
    return bool(pa.types.is_decimal(kind) and kind.precision + kind.scale > _MOST_DIGITS)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parsable(kind: pa.DataType) -> Any:
    """The type with which Arrow's reader can parse it: dates are parsed as timestamps."""
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _parsable(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_parsable(kind.value_type))
    return kind
