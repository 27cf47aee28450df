"""Writing: each row of a batch once, in order, whatever is killed on the way.

Spark brings a batch again after any failure: to a second attempt of a task, or, after a restart from the checkpoint, to
as many tasks as there are then.  What is sent again is taken once where the origin can tell that it is the same
(producer.py), and for that three things must be the same each time: who writes, which rows go together in a POST, and
in which order.

**Who** is the query and the batch, as Spark's local properties name them, or the write's own id; never a task.

**Which rows** is decided over all rows that a stream has in the batch.  Two tasks that send rows of one stream would
take the same numbers for different rows, and the origin would take the second for repetitions of the first: they would
be lost without a word.  A Python data source cannot ask Spark to bring a stream's rows together, so this is how it is
made sure of:

* a frame that `by_stream` has laid out proves it row by row (layout.py), and its tasks send, side by side.  A row
  that is not where it belongs fails its task before anything of it is sent;
* any other frame is sent by the driver: the tasks send nothing, they hand their messages over, and when all of them
  have done so `commit` sends them.  That is right for any plan and any number of tasks, and as fast as one machine;
  `maxDriverBytes` bounds what the driver takes on, and past it nothing is sent at all.

**In which order** is said by the columns of `orderBy`, with the message itself to break ties, so that a set of rows has
one order however Spark came by it (rows.py).  Without them rows keep the order they come in, which is that of
`collect`; a replay may see another, so all that a stream has in a batch must then fit into one POST, which is taken
whole or not at all.  Where it does not fit, the write fails before it sends any of it.

What the origin cannot see is a replay with other rows under the same number.  So a batch that has begun must come back
as it was: the source replays its rows, and the query keeps its columns, its `orderBy` and its `maxBatchBytes` while
one of its batches is unfinished.  Producers are remembered by the origin for as long as it says (the protocol
recommends seven days in memory, else the stream's life): a query that was away longer may repeat its last batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_durable_streams.errors import BadOption, NotRepeatable
from pyspark_durable_streams.rows import Shape
from pyspark_durable_streams.sender import Batch, Sender
from pyspark_durable_streams.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_FIRST: Final = 0


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's word that it has sent: how many POSTs each stream had."""

    batch: Batch
    posts: dict[str, int]


@dataclass(frozen=True)
class HandedOver(WriterCommitMessage):
    """A task's messages, for the driver to send: an Arrow stream."""

    batch: Batch
    size: int
    """Bytes of the messages themselves."""
    table: bytes


class _Writer:
    """What batch and streaming writes share; Spark pickles it out to the tasks."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._shape = Shape.of(schema, options.stream, options.order)

    def _take(self, batches: Iterator[pa.RecordBatch], batch: Batch, task: int) -> WriterCommitMessage:
        """In a task: send what it got, or hand it over."""
        is_handed_over, most = self._shape.task is None, self._options.max_driver_bytes
        taken: list[pa.RecordBatch] = []
        size = 0
        for rows in batches:
            if rows.num_rows:
                taken.append(self._shape.messages(rows, task))
                size += taken[-1].column("value").nbytes
                if is_handed_over and size > most:
                    raise _too_much(size, most)
        if is_handed_over:
            return _hand_over(taken, batch, size)
        if not taken:
            return Written(batch, {})
        with Sender(self._options) as sender:
            sent = sender.send(pa.Table.from_batches(taken), batch, may_come_again=True)
        return Written(batch, {stream: by.posts for stream, by in sent.items()})

    def _finish(self, messages: Iterable[WriterCommitMessage | None], *, may_come_again: bool) -> dict[str, int]:
        """In the driver: send what was handed over; return how many POSTs each stream had."""
        batch: Batch | None = None
        posts: dict[str, int] = {}
        tables: list[pa.Table] = []
        size = 0
        for message in messages:
            match message:
                case Written():
                    batch = message.batch
                    if twice := posts.keys() & message.posts.keys():
                        raise NotRepeatable(f"{min(twice)}: two tasks have sent rows of it, and some may be lost")
                    posts.update(message.posts)
                case HandedOver():
                    batch = message.batch
                    size += message.size
                    if message.table:
                        tables.append(pa.ipc.open_stream(message.table).read_all())
        if size > self._options.max_driver_bytes:
            raise _too_much(size, self._options.max_driver_bytes)
        if tables and batch is not None:
            with Sender(self._options) as sender:
                sent = sender.send(pa.concat_tables(tables), batch, may_come_again=may_come_again)
            posts = {stream: by.posts for stream, by in sent.items()}
        return posts


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: see the module.  Raises a DurableStreamsError."""
        context = _context()
        query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or number is None or not number.isdecimal():
            raise NotRepeatable(
                f"this Spark does not tell a task its query and its batch ({_QUERY}, {_BATCH}): without them nothing "
                "can be written exactly once"
            )
        return self._take(iterator, Batch(query, int(number)), context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """In the driver, when all tasks are done: send what they handed over."""
        for message in messages:
            if isinstance(message, Written | HandedOver) and message.batch.epoch != batchId:
                raise NotRepeatable(f"a task took batch {batchId} for batch {message.batch.epoch}")
        self._finish(messages, may_come_again=True)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of one `save`."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        super().__init__(schema, options)
        # Drawn once, in the driver, and the same in each attempt of each task.
        write = f"save {options.write_id}" if options.write_id is not None else f"once {uuid.uuid4().hex}"
        self._batch = Batch(write, _FIRST)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: see the module.  Raises a DurableStreamsError."""
        return self._take(iterator, self._batch, _context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are done: send what they handed over, and close what is to be closed."""
        # The driver sends once; only another run under the same id can come again.
        posts = self._finish(messages, may_come_again=self._options.write_id is not None)
        if self._options.close:
            if self._options.stream is not None:
                posts.setdefault(self._options.stream, 0)
            with Sender(self._options) as sender:
                sender.close(posts, self._batch)


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """What a streaming query writes rows of `schema` by.  BadOption where that cannot be."""
    if overwrite:
        raise BadOption("output mode complete writes all rows anew each time, and a stream only grows: use append")
    return StreamWriter(schema, WriteOptions.of(options, is_streaming=True))


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """What one `save` writes rows of `schema` by.  BadOption where that cannot be."""
    if overwrite:
        raise BadOption("a stream only grows and is not overwritten: use mode append")
    return BatchWriter(schema, WriteOptions.of(options, is_streaming=False))


def _hand_over(taken: Sequence[pa.RecordBatch], batch: Batch, size: int) -> HandedOver:
    if not taken:
        return HandedOver(batch, 0, b"")
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, taken[0].schema, options=options) as stream:
        for messages in taken:
            stream.write_batch(messages)
    return HandedOver(batch, size, sink.getvalue().to_pybytes())


def _too_much(size: int, most: int) -> BadOption:
    return BadOption(
        f"option maxDriverBytes: a batch of at least {size} bytes is more than the driver takes on ({most}), and "
        "nothing of it was sent; write by_stream(df), which lets the tasks send, or take less at a time"
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise NotRepeatable("rows are written by Spark's tasks only")
    return context
