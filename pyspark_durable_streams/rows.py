"""From a frame's rows to messages: the roles of the columns, and a table of (stream, order, message).

As in Spark's Kafka sink, the option `stream` takes precedence over the column `stream`, and a column `value` of text or
bytes is the message.  Without it, all other columns of a row become one JSON object: null columns are left out, times
are in RFC 3339, bytes in base64, decimals are numbers, NaN is null.  A key of a map is the text of its JSON value; NaN
and the infinities have their names.

An instant is written in UTC at any depth, in keys too.  The session's time zone must not change a message: a replay in
another zone would cut the POSTs elsewhere, and the origin would take different rows for repetitions.

The columns in `orderBy` define the order in which the messages of a stream are sent.  The message itself breaks ties,
so rows that are equal in both may swap places without a visible difference: a set of rows has exactly one order,
however Spark delivers it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_durable_streams.codec import orjson
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
    """The roles of a frame's columns."""

    stream: str | None
    """The stream for all rows; None: the column `stream` names it."""
    value: str | None
    """The column with the message; None: the columns of `fields`, as one JSON object."""
    fields: tuple[str, ...]
    order: tuple[str, ...]
    task: str | None
    """The column that proves that all rows of a stream are in one task; None if there is no proof."""

    @classmethod
    def of(cls, schema: StructType, stream: str | None, order: tuple[str, ...]) -> Shape:
        """The shape of a frame with this schema, and the options `stream` and `orderBy`.  Raises BadOption."""
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        if len(types) != len(schema.fields):
            raise BadOption("two columns have the same name")
        if stream is None and types.get(STREAM) not in ("string", "varchar", "char"):
            raise BadOption("no stream: give the option stream for all rows, or a text column stream")
        if stream is not None and STREAM_TASK in types:
            raise BadOption("the option stream sends all rows to one stream: use by_stream(df, None) for that")
        if stream is None and ONLY_TASK in types:
            raise BadOption("by_stream(df, None) is for one stream: name it with the option stream")
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
            raise BadOption("no column is left to make messages of")
        task = next((name for name in _MARKS if name in types), None)
        return cls(stream, value, fields if value is None else (), order, task)

    def schema(self, batch: pa.Schema) -> pa.Schema:
        """The schema of `messages` for batches of this schema."""
        keys = [pa.field(f"key{index}", batch.field(name).type) for index, name in enumerate(self.order)]
        return pa.schema([pa.field(STREAM, pa.large_string()), *keys, pa.field(VALUE, pa.large_binary())])

    def messages(self, batch: pa.RecordBatch, task: int) -> pa.RecordBatch:
        """The batch's messages: their streams, the keys of their order, their bytes.  Raises BadRow.

        `task` is the number of the task that received the rows.
        """
        if self.task == ONLY_TASK:
            _check_layout(pc.equal(batch.column(ONLY_TASK), task))
        if self.stream is not None:
            streams = pa.repeat(pa.scalar(self.stream, pa.large_string()), batch.num_rows)
        else:
            streams = batch.column(STREAM).cast(pa.large_string())
            if streams.null_count:
                raise BadRow("the column stream is null in a row")
            if self.task == STREAM_TASK:
                mark = pa.scalar(str(task), pa.large_string())
                wanted = pc.binary_join_element_wise(mark, streams, pa.scalar("/", pa.large_string()))
                _check_layout(pc.equal(batch.column(STREAM_TASK).cast(pa.large_string()), wanted))
        if self.value is not None:
            values = batch.column(self.value).cast(pa.large_binary())
            if values.null_count:
                raise BadRow(f"the column {self.value} is null, which no message can express: filter such rows out")
        else:
            values = pa.array(_objects(batch, self.fields), pa.large_binary())
        keys = [batch.column(name) for name in self.order]
        return pa.RecordBatch.from_arrays([streams, *keys, values], schema=self.schema(batch.schema))


def streams_of(messages: pa.Table) -> Iterator[tuple[str, pa.LargeBinaryArray]]:
    """Each stream of the table, by name, with its messages in the order of their keys.

    Without keys the messages keep their order.
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


def _check_layout(stands: pa.BooleanArray) -> None:
    # A null means that the mark was lost.
    if not pc.all(stands, skip_nulls=False).as_py():
        raise BadRow(
            "rows have moved since by_stream, or their streams changed: by_stream must be the last step before write"
        )


def _objects(batch: pa.RecordBatch, fields: tuple[str, ...]) -> Iterator[bytes]:
    columns = [_plain(batch.column(name)) for name in fields]
    for row in zip(*columns, strict=True):
        named = {name: value for name, value in zip(fields, row, strict=True) if value is not None}
        yield _json(named)


def _plain(column: pa.Array) -> list[Any]:
    kind = _in_utc(column.type)
    try:
        values: list[Any] = column.cast(kind).to_pylist()
    except (OverflowError, ValueError) as error:
        raise BadRow(f"a time is outside the years 1 to 9999, which RFC 3339 cannot express ({error})") from error
    convert = _converter(kind)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with every instant in UTC, at any depth."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_in_utc(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(field) for field in kind])
    return kind


def _field_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_in_utc(field.type))


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """A function that turns Arrow's lists of pairs into JSON objects, at any depth; None if the type has no map."""
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type) or _same
        key_text = _same if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type) else _key_text
        return lambda pairs: {key_text(key): None if value is None else inner(value) for key, value in pairs}
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


def _key_text(key: Any) -> str:
    """A key of a map as text: its JSON value, without the quotes that the value may have."""
    if isinstance(key, float) and not isfinite(key):
        # JSON has no number for it, and null would be one key for all three.
        return "NaN" if isnan(key) else "Infinity" if key > 0 else "-Infinity"
    text = _json(key)
    return str(orjson.loads(text)) if text.startswith(b'"') else text.decode()


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_default, option=orjson.OPT_UTC_Z)


def _default(value: object) -> object:
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f").encode())
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)
