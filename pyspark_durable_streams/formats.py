"""Conversion of messages to rows, as Arrow batches, without Python objects for single messages.

    messages   stream, pos, offset, value: a row for each message
    chunks     stream, pos, count, offset, value: a row for many messages, JSON as an array, other streams as bytes
    typed      the user's own columns, parsed from JSON by Arrow; `_stream`, `_pos`, `_offset` if the schema has them

`pos` counts messages (bytes in chunks of non-JSON streams) from where the query began in the stream.  `offset` is a
token from which the row can be read again: the one before the row's stretch.  Both, and the borders of chunks, are the
same each time a batch is read.

A JSON message that does not fit the schema is found by bisection.  `mode` decides its fate: a row of nulls with the
text in `_corrupt_record` if the schema has that column (PERMISSIVE), no row (DROPMALFORMED), or an error (FAILFAST).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructType,
)

from pyspark_durable_streams.errors import BadOption, BadReply
from pyspark_durable_streams.framing import Piece, Unit, line_ends
from pyspark_durable_streams.reading import Fragment

CORRUPT: Final = "_corrupt_record"
_OPEN_BRACE: Final = 0x7B
_FEED: Final = 0x0A


class Format(StrEnum):
    """The content of a row."""

    MESSAGES = "messages"
    TYPED = "typed"
    CHUNKS = "chunks"


class Mode(StrEnum):
    """The treatment of a message that does not fit the schema."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


_TEXT_OR_BYTES: Final = (StringType, BinaryType)
_COLUMNS: Final[dict[Format, dict[str, tuple[type[DataType], ...]]]] = {
    Format.MESSAGES: {"stream": (StringType,), "pos": (LongType,), "offset": (StringType,), "value": _TEXT_OR_BYTES},
    Format.CHUNKS: {
        "stream": (StringType,),
        "pos": (LongType,),
        "count": (LongType,),
        "offset": (StringType,),
        "value": _TEXT_OR_BYTES,
    },
    Format.TYPED: {
        "_stream": (StringType,),
        "_pos": (LongType,),
        "_offset": (StringType,),
        CORRUPT: (StringType,),
    },
}
_DEFAULT: Final = {
    Format.MESSAGES: "stream string, pos bigint, offset string, value string",
    Format.CHUNKS: "stream string, pos bigint, count bigint, offset string, value binary",
}


def default_schema(kind: Format) -> str:
    """The columns if the user names none; BadOption for `typed`, which has no default."""
    if kind is Format.TYPED:
        raise BadOption("format=typed needs your columns: give them with .schema(...)")
    return _DEFAULT[kind]


def check_schema(kind: Format, schema: StructType) -> None:
    """BadOption if rows of this schema cannot be made."""
    known = _COLUMNS[kind]
    for column in schema.fields:
        types = known.get(column.name)
        if types is not None:
            if not isinstance(column.dataType, types):
                wanted = " or ".join(one.typeName() for one in types)
                raise BadOption(f"column {column.name}: {wanted} is expected, not {column.dataType.simpleString()}")
        elif kind is not Format.TYPED:
            raise BadOption(f"column {column.name}: format={kind} has {', '.join(known)}")
        else:
            _check_type(column.name, column.dataType)
    if kind is Format.TYPED and all(column.name in known for column in schema.fields):
        raise BadOption("format=typed needs a column of your own; format=messages reads the messages unparsed")


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        for column in kind.fields:
            _check_type(f"{name}.{column.name}", column.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif kind.typeName() not in _PARSED:
        raise BadOption(
            f"column {name}: format=typed has no {kind.simpleString()}; read format=messages and use from_json for it"
        )


_PARSED: Final = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "date", "timestamp",
     "timestamp_ntz")
)  # fmt: skip


@dataclass(slots=True)
class Rows:
    """Makes the Arrow batches of one task."""

    kind: Format
    schema: StructType
    arrow: pa.Schema
    mode: Mode = Mode.PERMISSIVE
    chunk_bytes: int = 1 << 20
    _parsed: pa.Schema | None = field(default=None, init=False)

    def of(self, fragments: Iterator[Fragment]) -> Iterator[pa.RecordBatch]:
        """The rows of these messages, in order."""
        match self.kind:
            case Format.MESSAGES:
                yield from map(self._messages, fragments)
            case Format.CHUNKS:
                for fragment in _chunked(fragments, self.chunk_bytes):
                    yield self._chunk(fragment)
            case Format.TYPED:
                for fragment in fragments:
                    yield from self._typed(fragment)

    def _batch(self, columns: dict[str, Callable[[pa.DataType], pa.Array]]) -> pa.RecordBatch:
        arrays = [columns[column.name](column.type) for column in self.arrow]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def _messages(self, fragment: Fragment) -> pa.RecordBatch:
        piece = fragment.piece
        rows = piece.count
        return self._batch(
            {
                "stream": lambda kind: _same(fragment.stream, rows, kind),
                "pos": lambda kind: pa.array(np.arange(fragment.pos, fragment.pos + rows, dtype=np.int64)),
                "offset": lambda kind: _same(fragment.token, rows, kind),
                "value": lambda kind: _values(piece, kind),
            },
        )

    def _chunk(self, fragment: Fragment) -> pa.RecordBatch:
        piece = fragment.piece
        data = piece.data if fragment.unit is Unit.BYTE else b"[" + piece.data[:-1].replace(b"\n", b",") + b"]"
        return self._batch(
            {
                "stream": lambda kind: _same(fragment.stream, 1, kind),
                "pos": lambda kind: pa.array([fragment.pos], kind),
                "count": lambda kind: pa.array([piece.count], kind),
                "offset": lambda kind: _same(fragment.token, 1, kind),
                "value": lambda kind: _one(data, kind),
            },
        )

    # -- typed

    def _typed(self, fragment: Fragment) -> Iterator[pa.RecordBatch]:
        piece = fragment.piece
        table = self._read(piece)
        corrupt: pa.Array | None = None
        positions = np.arange(fragment.pos, fragment.pos + piece.count, dtype=np.int64)
        if table is None:
            table, corrupt, kept = self._halved(fragment)
            positions = positions[kept]
        rows = table.num_rows
        if not rows:
            return
        parsed = {name: table.column(name) for name in table.schema.names}
        columns: list[pa.Array] = []
        for column in self.arrow:
            match column.name:
                case "_stream":
                    array = _same(fragment.stream, rows, column.type)
                case "_offset":
                    array = _same(fragment.token, rows, column.type)
                case "_pos":
                    array = pa.array(positions)
                case _ if column.name == CORRUPT:
                    array = corrupt if corrupt is not None else pa.nulls(rows, column.type)
                case name:
                    array = parsed[name]
            if array.type != column.type:
                array = array.cast(column.type)
            columns.append(array)
        yield from pa.Table.from_arrays(columns, schema=self.arrow).combine_chunks().to_batches()

    def _read(self, piece: Piece) -> pa.Table | None:
        """The messages as columns; None if one of them does not fit."""
        view = np.frombuffer(piece.data, np.uint8)
        # Arrow's reader crashes on a line that is `null`, and accepts only objects anyway.
        is_other = view[:-1] == _FEED
        is_other &= view[1:] != _OPEN_BRACE
        if view[0] != _OPEN_BRACE or is_other.any():
            return None
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(piece.data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(piece.data) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._wanted, unexpected_field_behavior="ignore"
                ),
            )
            return table.cast(self._target) if table.num_rows == piece.count else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _halved(self, fragment: Fragment) -> tuple[pa.Table, pa.Array, list[int]]:
        """The rows of a fragment with misfits: the columns, the misfits' texts, and the indices of the rows kept."""
        lines = [line + b"\n" for line in fragment.piece.data.split(b"\n")[:-1]]
        tables: list[pa.Table] = []
        texts: list[bytes | None] = []
        kept: list[int] = []
        stack: list[tuple[int, int]] = [(0, len(lines))]
        while stack:
            begin, end = stack.pop()
            found = self._read(Piece(b"".join(lines[begin:end]), end - begin))
            if found is None and end - begin > 1:
                middle = (begin + end) // 2
                stack += [(middle, end), (begin, middle)]
                continue
            if found is None:
                text = lines[begin][:-1]
                if self.mode is Mode.DROPMALFORMED:
                    continue
                if self.mode is Mode.FAILFAST:
                    raise BadReply(
                        f"stream {fragment.stream}: the message at pos {fragment.pos + begin} does not fit the"
                        " schema; mode=PERMISSIVE makes it a row of nulls"
                    )
                found = pa.table([pa.nulls(1, column.type) for column in self._target], schema=self._target)
                texts.append(text)
            else:
                texts += [None] * (end - begin)
            tables.append(found)
            kept += range(begin, end)
        whole = pa.concat_tables(tables) if tables else self._target.empty_table()
        corrupt = pa.array(texts, pa.binary()).cast(pa.string(), safe=False)
        return whole, corrupt, kept

    @property
    def _target(self) -> pa.Schema:
        """The columns that come from the messages, with Spark's types, all nullable."""
        return pa.schema([pa.field(c.name, c.type) for c in self.arrow if c.name not in _COLUMNS[Format.TYPED]])

    @property
    def _wanted(self) -> pa.Schema:
        """The same columns with types that Arrow's reader can parse: dates as timestamps."""
        if self._parsed is None:
            self._parsed = pa.schema([pa.field(column.name, _parsable(column.type)) for column in self._target])
        return self._parsed


def _parsable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _parsable(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_parsable(kind.value_type))
    return kind


def _same(text: str, rows: int, kind: pa.DataType) -> pa.Array:
    """The same text in every row."""
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)])


def _one(data: bytes, kind: pa.DataType) -> pa.Array:
    offsets = np.array([0, len(data)], dtype=np.int32)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _values(piece: Piece, kind: pa.DataType) -> pa.Array:
    """The lines without their line feeds."""
    ends = line_ends(piece.data)
    offsets = np.zeros(ends.size + 1, np.int32)
    offsets[1:] = ends - np.arange(ends.size)
    data = piece.data.replace(b"\n", b"")
    return pa.Array.from_buffers(kind, ends.size, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _chunked(fragments: Iterator[Fragment], size: int) -> Iterator[Fragment]:
    """The same messages in chunks of about `size` bytes, cut by bytes alone; each stretch begins a new chunk."""
    gathered: list[Fragment] = []
    held = 0
    for fragment in fragments:
        if gathered and not _follows(gathered[-1], fragment):
            # The data between them is lost, and the user chose to continue.
            yield from _cut(gathered, size, is_last=True)
            gathered, held = [], 0
        gathered.append(fragment)
        held += len(fragment.piece.data)
        if held < size and not fragment.is_last:
            continue
        rest = yield from _cut(gathered, size, is_last=fragment.is_last)
        gathered, held = ([rest], len(rest.piece.data)) if rest is not None else ([], 0)
    if gathered:
        yield from _cut(gathered, size, is_last=True)


def _follows(before: Fragment, after: Fragment) -> bool:
    return before.stream == after.stream and before.pos + before.piece.count == after.pos


def _cut(gathered: list[Fragment], size: int, *, is_last: bool) -> Generator[Fragment, None, Fragment | None]:
    """Chunks of consecutive messages; returns the rest, which is None if `is_last`."""
    data = b"".join([fragment.piece.data for fragment in gathered])
    first = gathered[0]
    begin, pos = 0, first.pos
    while len(data) - begin >= size or (is_last and begin < len(data)):
        if first.unit is Unit.BYTE:
            end = min(begin + size, len(data))
        else:
            # After the last message that still fits, but after one at least.
            end = data.find(b"\n", min(begin + size, len(data)) - 1) + 1
            if end == 0:
                break
        chunk = data[begin:end]
        count = len(chunk) if first.unit is Unit.BYTE else chunk.count(b"\n")
        yield replace(first, pos=pos, piece=Piece(chunk, count), is_last=is_last and end == len(data))
        begin, pos = end, pos + count
    if begin == len(data):
        return None
    left = sum(fragment.piece.count for fragment in gathered) - (pos - first.pos)
    return replace(first, pos=pos, piece=Piece(data[begin:], left), is_last=False)
