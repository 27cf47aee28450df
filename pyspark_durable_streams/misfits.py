"""Typed columns of JSON messages, of which some may not fit the schema.

Arrow's reader takes a block of messages as a whole: one value of another type, and it refuses the block.  The values
that it would refuse are therefore looked for, and their keys overwritten by others of the same length, which the schema
does not have.  The reader then passes over these values and reads everything else: a message keeps the fields that fit.

What fits must not depend on the messages beside it, so the rules here are exactly those of Arrow's reader (`fitting`).
Values are looked for with a regular expression for each column, which stops only at values that may be misfits.
Whether a match is a key of the right object is seen from the brackets around it, found for the whole block as in
`framing`.  A producer that changes a field's type thus costs about as much as a second parse.  Within an array nothing
is overwritten: an array with a misfit is one as a whole.

Lines that are no objects are taken out first.  What Arrow refuses after all that is found by bisection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyspark_durable_streams.fitting import Fit, fit_of
from pyspark_durable_streams.framing import Marks, Piece, line_ends, marks_of, quotes

_OPEN_BRACE: Final = 0x7B
_FEED: Final = 0x0A
_BLANK, _BACKSLASH = 0x20, 0x5C
_FILLERS: Final = b"~^!#%&"
_MOST_DIGITS: Final = 38
"""Of 128 bits."""
_MOST_SPACE: Final = 64
"""The most white space between a key and an object."""
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
        self._columns = list(_columns(target, ()))
        self._may_wrap = any(_may_wrap(column.type) for column in target)
        self._suspects: list[_Column] = []
        """The columns with misfits in the latest block."""

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

    def _read(self, data: bytes, count: int) -> pa.Table | None:
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
        marks = lines.marks
        for columns in filter(None, (self._suspects, self._columns)):
            data = np.frombuffer(lines.data, np.uint8).copy()
            found = [(column, keys) for column in columns if (keys := column.overwrite(data, lines.data, marks)).size]
            table = self._read(data.tobytes(), lines.rows.size)
            if table is not None:
                self._suspects = [column for column, _ in found]
                for _, keys in found:
                    misfits[lines.rows_at(keys)] = True
                return table
        self._suspects = []
        for _, keys in found:
            misfits[lines.rows_at(keys)] = True
        return self._salvage(_Lines(data.tobytes(), lines.rows), misfits)

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


@dataclass(frozen=True, slots=True)
class _Column:
    """A column, or a field of a struct, and how to find its values that do not fit."""

    key: _Key
    within: tuple[_Key, ...]
    """The keys of the structs that it is in, outermost first."""
    filler: int
    """A byte such that no other key of the object consists of it alone."""
    misfit: re.Pattern[bytes]
    """Matches the key of a value that surely does not fit."""
    doubtful: re.Pattern[bytes] | None
    """Matches the key of any other value that may not fit; None if there is none."""
    fit: Fit

    def overwrite(self, data: npt.NDArray[np.uint8], text: bytes, marks: Marks) -> _Positions:
        """Overwrite the keys of values that do not fit; returns where they begin.

        `text` is the data before anything was overwritten.
        """
        at = np.array([match.start() for match in self.misfit.finditer(text)], np.intp)
        found: _Positions = at[self._are_ours(at, text, marks)] if at.size else at
        if self.doubtful is not None and (spans := [match.span() for match in self.doubtful.finditer(text)]):
            at = np.array([begin for begin, value in spans if not self.fit.is_met(text, value)], np.intp)
            if at.size:
                found = np.concatenate([found, at[self._are_ours(at, text, marks)]])
        data[(found[:, None] + 1 + np.arange(len(self.key.text) - 2)).ravel()] = self.filler
        return found

    def _are_ours(self, at: _Positions, text: bytes, marks: Marks) -> _Flags:
        """Which of these quotes begin the key in an object that the schema has the field in."""
        depth = len(self.within) + 1
        are_ours = _are_keys(at, text, marks, depth)
        for key in reversed(self.within):
            opens = marks.at[marks.opens & (marks.depths == depth)]
            braces = opens[np.maximum(np.searchsorted(opens, at) - 1, 0)] if opens.size else at
            depth -= 1
            at = key.before(text, braces)
            are_ours &= (at >= 0) & _are_keys(np.maximum(at, 0), text, marks, depth)
        return are_ours


class _Key:
    """The key of a field; `text` is with its quotes."""

    def __init__(self, name: str) -> None:
        self.text = json.dumps(name, ensure_ascii=False).encode()
        # It begins with what is searched for as bytes, without the machinery of regular expressions.
        self.pattern = re.escape(self.text) + rb"[ \t\r]*+:[ \t\r]*+"
        self._ending = re.compile(self.pattern + rb"\Z")
        self._usual = [np.frombuffer(self.text + ending, np.uint8) for ending in (b":{", b": {")]

    def before(self, text: bytes, braces: _Positions) -> _Positions:
        """Where the key begins whose value begins with a brace at each of these positions; -1 where it is another."""
        view = np.frombuffer(text, np.uint8)
        found = np.full(braces.size, -1, np.intp)
        for wanted in self._usual:
            if view.size <= wanted.size:
                continue
            begins = np.maximum(braces - wanted.size + 1, 1)
            is_here = (view[begins[:, None] + np.arange(wanted.size)] == wanted).all(axis=1)
            found[is_here] = begins[is_here]
        for number in np.flatnonzero((found < 0) & (view[np.maximum(braces - 1, 0)] <= _BLANK)).tolist():
            brace = int(braces[number])
            match = self._ending.search(text, max(brace - len(self.text) - _MOST_SPACE, 0), brace)
            if match is not None:
                found[number] = match.start()
        return found


def _columns(fields: Iterable[pa.Field], within: tuple[_Key, ...]) -> Iterator[_Column]:
    """The columns for fields of a schema or of a struct, and for the fields of these."""
    fields = list(fields)
    taken = {field.name.encode() for field in fields}
    for field in fields:
        key = _Key(field.name)
        filler = next(byte for byte in _FILLERS if bytes([byte]) * (len(key.text) - 2) not in taken)
        fit = fit_of(field.type)
        suspicious = key.pattern + rb"(?!null[ \t\r,}]|" + fit.surely + rb")"
        misfit = re.compile(suspicious + rb"(?:" + fit.surely_not + rb")")
        doubtful = re.compile(suspicious + rb"(?!" + fit.surely_not + rb")") if fit.surely_not else None
        yield _Column(key, within, filler, misfit, doubtful, fit)
        if pa.types.is_struct(field.type):
            inner = [field.type.field(number) for number in range(field.type.num_fields)]
            yield from _columns(inner, (*within, key))


def _are_keys(at: _Positions, text: bytes, marks: Marks, depth: int) -> _Flags:
    """Which of these quotes begin keys of objects at this depth."""
    before = np.searchsorted(marks.at, at) - 1
    # A quote that begins a string counts as inside of it, as one within does, and one that ends a string does not.
    are_keys: _Flags = ~marks.outside_strings(at) & (before >= 0) & (marks.depths[before] == depth)
    are_keys &= np.frombuffer(text, np.uint8)[np.maximum(at - 1, 0)] != _BACKSLASH
    return are_keys


def _are_objects(data: bytes) -> bool:
    """Whether each line begins with a brace: Arrow's reader crashes on a line that is `null`."""
    view = np.frombuffer(data, np.uint8)
    is_other = view[:-1] == _FEED
    is_other &= view[1:] != _OPEN_BRACE
    return bool(view[0] == _OPEN_BRACE and not is_other.any())


def _is_within(values: pa.ChunkedArray | pa.Array) -> bool:
    """Whether decimals have no more digits than their type; Arrow's reader counts those that are written only."""
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
