"""The sink: each row of a batch is written once and in order, whatever process is killed meanwhile.

Spark repeats a batch after any failure: in a second attempt of a task or, after a restart from the checkpoint, in a new
set of tasks.  A repeated POST is stored once if the origin recognises it (producer.py).  For that, three things must be
the same each time: the identity of the writer, the grouping of rows into POSTs, and their order.

**Identity** is the query and the batch, from Spark's local properties, or the write's own id; never a task.

**Grouping** covers all rows that a stream has in the batch.  Two tasks that send rows of one stream would use the same
sequence numbers for different rows.  The origin would take the second set for repetitions, and rows would be lost
silently.  A Python data source cannot ask Spark to bring a stream's rows together, so the sink ensures it:

* A frame laid out by `by_stream` proves it row by row (layout.py), and its tasks send in parallel.  A misplaced row
  fails its task before the task sends anything.
* Any other frame is sent by the driver: the tasks hand over their messages, and `commit` sends them when all tasks are
  done.  This is correct for any plan and any number of tasks, and as fast as one machine.  `maxDriverBytes` bounds what
  the driver accepts; beyond it nothing is sent.

**Order** comes from the columns of `orderBy`, with the message itself as tie-breaker, so that a set of rows has one
order however Spark delivers it (rows.py).  Without `orderBy`, rows keep the order of `collect`.  A replay may see
another order, so all rows of a stream in a batch must then fit into one POST, which is stored completely or not at all.
If they do not fit, the write fails before it sends any of them.

The origin cannot detect a replay with other rows under the same number.  A batch that has begun must therefore be
repeated unchanged: the source replays its rows, and the query keeps its columns, its `orderBy` and its `maxBatchBytes`
while a batch is unfinished.  The origin remembers producers for a limited time (the protocol recommends seven days in
memory, else the stream's life).  A query that paused for longer may repeat its last batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_durable_streams.errors import BadOption, NotRepeatable, in_one_line
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
    """Reports that a task has sent: the number of POSTs of each stream."""

    batch: Batch
    posts: dict[str, int]


@dataclass(frozen=True)
class HandedOver(WriterCommitMessage):
    """A task's messages for the driver to send, as an Arrow stream."""

    batch: Batch
    size: int
    """Bytes of the messages themselves."""
    table: bytes


class _Writer:
    """The common part of batch and streaming writes; Spark pickles it for the tasks."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._shape = Shape.of(schema, options.stream, options.order)

    def _take(self, batches: Iterator[pa.RecordBatch], batch: Batch, task: int) -> WriterCommitMessage:
        """In a task: send its rows, or hand them over."""
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
        """In the driver: send what was handed over; returns the number of POSTs of each stream."""
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

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: send or hand over, as the module describes.  Raises a DurableStreamsError."""
        context = _context()
        query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or number is None or not number.isdecimal():
            raise NotRepeatable(
                f"this Spark does not give a task its query and its batch ({_QUERY}, {_BATCH}), which writing exactly "
                "once requires"
            )
        return self._take(iterator, Batch(query, int(number)), context.partitionId())

    @in_one_line
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
        # Drawn once, in the driver, so that it is the same in each attempt of each task.
        write = f"save {options.write_id}" if options.write_id is not None else f"once {uuid.uuid4().hex}"
        self._batch = Batch(write, _FIRST)

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: send or hand over, as the module describes.  Raises a DurableStreamsError."""
        return self._take(iterator, self._batch, _context().partitionId())

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are done: send what they handed over, and close streams if `close` is set."""
        # The driver sends once; only another run with the same id can repeat it.
        posts = self._finish(messages, may_come_again=self._options.write_id is not None)
        if self._options.close:
            if self._options.stream is not None:
                posts.setdefault(self._options.stream, 0)
            with Sender(self._options) as sender:
                sender.close(posts, self._batch)


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """The writer of a streaming query for rows of `schema`.  Raises BadOption."""
    if overwrite:
        raise BadOption("output mode complete rewrites all rows each time, and a stream only grows: use append")
    return StreamWriter(schema, WriteOptions.of(options, is_streaming=True))


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """The writer of one `save` for rows of `schema`.  Raises BadOption."""
    if overwrite:
        raise BadOption("a stream only grows and cannot be overwritten: use mode append")
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
        f"option maxDriverBytes: a batch of at least {size} bytes exceeds the driver's limit ({most}), and nothing of "
        "it was sent; write by_stream(df), so that the tasks send, or take less at a time"
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise NotRepeatable("rows can be written by Spark's tasks only")
    return context
