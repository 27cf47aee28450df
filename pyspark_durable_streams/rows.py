"""From a frame's rows to messages: which columns say what, and a table of (stream, order, message).

As in Spark's Kafka sink, the option `stream` goes before the column `stream`, and a column `value` of text or bytes is
the message.  Without one, a row is: all other columns become one JSON object, null columns left out, times in RFC 3339,
bytes in base64, decimals as numbers, NaN as null.

The columns named in `orderBy` say in which order the messages of a stream are sent.  Ties are broken by the message
itself, so that rows which are the same in both may swap places and nobody can tell: a set of rows has one order only,
however Spark came by it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_durable_streams.errors import BadOption, BadRow
from pyspark_durable_streams.layout import ONLY_TASK, STREAM_TASK

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STREAM: Final = "stream"
VALUE: Final = "value"
_MARKS: Final = (STREAM_TASK, ONLY_TASK)
_ORDERLESS: Final = frozenset({"array", "binary", "map", "struct", "variant"})


@dataclass(frozen=True, slots=True)
class Shape:
    """What the columns of a frame are for."""

    stream: str | None
    """Where all rows go; None: the column `stream` says."""
    value: str | None
    """The column that is the message; None: the columns of `fields`, as one JSON object."""
    fields: tuple[str, ...]
    order: tuple[str, ...]
    task: str | None
    """The column that proves that all rows of a stream are in one task; None: they may be anywhere."""

    @classmethod
    def of(cls, schema: StructType, stream: str | None, order: tuple[str, ...]) -> Shape:
        """For a frame of this schema, the option `stream` and those of `orderBy`.  Raises BadOption."""
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        if len(types) != len(schema.fields):
            raise BadOption("two columns have the same name")
        if stream is None and types.get(STREAM) not in ("string", "varchar", "char"):
            raise BadOption("which stream? The option stream names one for all rows, or a column stream of text does")
        if stream is not None and STREAM_TASK in types:
            raise BadOption("the option stream sends all rows to one stream: by_stream(df, None) is for that")
        if stream is None and ONLY_TASK in types:
            raise BadOption("by_stream(df, None) is for one stream: name it by the option stream")
        for name in order:
            if name not in types:
                raise BadOption(f"option orderBy: there is no column {name}")
            if types[name] in _ORDERLESS:
                raise BadOption(f"option orderBy: {name} is of a type that has no order ({types[name]})")
        value = VALUE if VALUE in types else None
        if value is not None and types[VALUE] not in ("string", "varchar", "char", "binary"):
            raise BadOption(f"the column value must be of text or bytes, not {types[VALUE]}")
        fields = tuple(name for name in types if name not in _MARKS and not (name == STREAM and stream is None))
        if value is None and not fields:
            raise BadOption("there is no column to make messages of")
        task = next((name for name in _MARKS if name in types), None)
        return cls(stream, value, fields if value is None else (), order, task)

    def schema(self, batch: pa.Schema) -> pa.Schema:
        """That of `messages`, for batches of this schema."""
        keys = [pa.field(f"key{index}", batch.field(name).type) for index, name in enumerate(self.order)]
        return pa.schema([pa.field(STREAM, pa.large_string()), *keys, pa.field(VALUE, pa.large_binary())])

    def messages(self, batch: pa.RecordBatch, task: int) -> pa.RecordBatch:
        """The batch's messages: their stream, the keys of their order, their bytes.  Raises BadRow.

        `task` is the number of the task that got the rows.
        """
        if self.task == ONLY_TASK:
            _stand_by(pc.equal(batch.column(ONLY_TASK), task))
        if self.stream is not None:
            streams = pa.repeat(pa.scalar(self.stream, pa.large_string()), batch.num_rows)
        else:
            streams = batch.column(STREAM).cast(pa.large_string())
            if streams.null_count:
                raise BadRow("the column stream is null: which stream is the row for?")
            if self.task == STREAM_TASK:
                mark = pa.scalar(str(task), pa.large_string())
                wanted = pc.binary_join_element_wise(mark, streams, pa.scalar("/", pa.large_string()))
                _stand_by(pc.equal(batch.column(STREAM_TASK).cast(pa.large_string()), wanted))
        if self.value is not None:
            values = batch.column(self.value).cast(pa.large_binary())
            if values.null_count:
                raise BadRow(f"the column {self.value} is null, and no message says that: filter such rows out")
        else:
            values = pa.array(_objects(batch, self.fields), pa.large_binary())
        keys = [batch.column(name) for name in self.order]
        return pa.RecordBatch.from_arrays([streams, *keys, values], schema=self.schema(batch.schema))


def streams_of(messages: pa.Table) -> Iterator[tuple[str, pa.LargeBinaryArray]]:
    """Each stream of the table, by name, with its messages in the order of their keys.

    Without keys they stay in the order they have.
    """
    keys = [name for name in messages.column_names if name not in (STREAM, VALUE)]
    whole = messages.combine_chunks()
    if not whole.num_rows:
        return
    [batch] = whole.to_batches()
    names = [STREAM, *keys, VALUE] if keys else [STREAM]
    order = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in names])
    streams = batch.column(STREAM).take(order)
    values = batch.column(VALUE).take(order)
    start = 0
    runs = pc.run_end_encode(streams, run_end_type=pa.int64())
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, values[start:end]
        start = end


def _stand_by(stands: pa.BooleanArray) -> None:
    # Also null where the mark was lost.
    if not pc.all(stands, skip_nulls=False).as_py():
        raise BadRow(
            "rows have moved since by_stream, or their streams changed: it must be the last step before the write"
        )


def _objects(batch: pa.RecordBatch, fields: tuple[str, ...]) -> Iterator[bytes]:
    columns = [_plain(batch.column(name)) for name in fields]
    for row in zip(*columns, strict=True):
        named = {name: value for name, value in zip(fields, row, strict=True) if value is not None}
        yield orjson.dumps(named, default=_default, option=orjson.OPT_UTC_Z)


def _plain(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # The same instant reads the same whatever the session's time zone is.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes JSON's kind of object from Arrow's list of pairs, at any depth; None where there is no map."""
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type) or _same
        return lambda pairs: {str(key): None if value is None else inner(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = _converter(kind.value_type)
        return each and (lambda items: [None if item is None else each(item) for item in items])
    if pa.types.is_struct(kind):
        parts = {field.name: convert for field in kind if (convert := _converter(field.type))}
        return (
            (
                lambda items: {
                    name: parts[name](item) if name in parts and item is not None else item
                    for name, item in items.items()
                }
            )
            if parts
            else None
        )
    return None


def _same(value: Any) -> Any:
    return value


def _default(value: object) -> object:
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f").encode())
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)
