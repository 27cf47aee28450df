"""Conversion of messages to rows, as Arrow batches, without Python objects for single messages.

    messages   stream, pos, offset, value: a row for each message
    chunks     stream, pos, count, offset, value: a row for many messages, JSON as an array, other streams as bytes
    typed      the user's own columns, parsed from JSON by Arrow; `_stream`, `_pos`, `_offset` if the schema has them

`pos` counts messages (bytes in chunks of non-JSON streams) from where the query began in the stream.  `offset` is a
token from which the row can be read again: the one before the row's stretch.  Both, and the borders of chunks, are the
same each time a batch is read.

A JSON message may have fields that do not fit the schema, or be no object (see `misfits`).  `mode` decides its fate,
as that of Spark's own JSON reader: a row with the fields that fit, and the message's text in `_corrupt` if the schema
has that column (PERMISSIVE), no row (DROPMALFORMED), or an error (FAILFAST).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from pyspark_durable_streams.misfits import Parser
from pyspark_durable_streams.reading import Fragment

CORRUPT: Final = ("_corrupt", "_corrupt_record")
"""The columns with the texts of messages that do not fit; the second is Spark's name.  An option gives another."""


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


def check_schema(kind: Format, schema: StructType, corrupt: tuple[str, ...] = CORRUPT) -> None:
    """BadOption if rows of this schema cannot be made; `corrupt` are the columns for messages that do not fit."""
    known = _COLUMNS[kind]
    if kind is Format.TYPED:
        known = {**known, **dict.fromkeys(corrupt, (StringType,))}
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
    corrupt: tuple[str, ...] = CORRUPT
    """The columns with the texts of messages that do not fit."""
    _parser: Parser | None = field(default=None, init=False)

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
                "value": lambda kind: _values(piece, kind, fragment.unit),
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
        if self._parser is None:
            self._parser = Parser(pa.schema([column for column in self.arrow if column.name not in self._ours]))
        parsed = self._parser.parse(piece)
        table, misfits = parsed.table, parsed.misfits
        positions = np.arange(fragment.pos, fragment.pos + piece.count, dtype=np.int64)
        if misfits is not None and self.mode is Mode.FAILFAST:
            raise BadReply(
                f"stream {fragment.stream}: the message at pos {positions[misfits][0]} does not fit the schema;"
                " mode=PERMISSIVE keeps the fields that fit"
            )
        if misfits is not None and self.mode is Mode.DROPMALFORMED:
            table, positions, misfits = table.filter(pa.array(~misfits)), positions[~misfits], None
        rows = table.num_rows
        if not rows:
            return
        columns: list[pa.Array] = []
        for column in self.arrow:
            match column.name:
                case "_stream":
                    array = _same(fragment.stream, rows, column.type)
                case "_offset":
                    array = _same(fragment.token, rows, column.type)
                case "_pos":
                    array = pa.array(positions)
                case name if name in self.corrupt and misfits is None:
                    array = pa.nulls(rows, column.type)
                case name if name in self.corrupt:
                    texts = _values(piece, pa.binary(), fragment.unit).cast(pa.string(), safe=False)
                    array = pc.if_else(pa.array(misfits), texts, pa.scalar(None, pa.string()))
                case name:
                    array = table.column(name)
            if array.type != column.type:
                array = array.cast(column.type)
            columns.append(array)
        yield from pa.Table.from_arrays(columns, schema=self.arrow).combine_chunks().to_batches()

    @property
    def _ours(self) -> set[str]:
        """The columns that do not come from the messages."""
        return {*_COLUMNS[Format.TYPED], *self.corrupt}


def _same(text: str, rows: int, kind: pa.DataType) -> pa.Array:
    """The same text in every row."""
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)])


def _one(data: bytes, kind: pa.DataType) -> pa.Array:
    offsets = np.array([0, len(data)], dtype=np.int32)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _values(piece: Piece, kind: pa.DataType, unit: Unit) -> pa.Array:
    """The lines without their line feeds, or carriage returns before these."""
    data = piece.data
    if unit is Unit.LINE and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    ends = line_ends(data)
    offsets = np.zeros(ends.size + 1, np.int32)
    offsets[1:] = ends - np.arange(ends.size)
    data = data.replace(b"\n", b"")
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
