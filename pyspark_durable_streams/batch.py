"""A batch read: all there is between two offsets, at the moment it is planned.

Where there are as many streams as tasks, each task walks its own (see `reach`).  Where there are fewer, the driver
walks them once, counting, and what it reads goes to the spool for the tasks; so a stream that nobody has cut into parts
is still read by several of them.  Either way a task that is run again reads the same messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_durable_streams.catalogue import listing_of
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.formats import Rows, check_schema
from pyspark_durable_streams.options import LATEST, ReadOptions
from pyspark_durable_streams.plan import Share, dealt
from pyspark_durable_streams.reach import Reach, ReachTask, walked
from pyspark_durable_streams.reading import Run, Task, fragments
from pyspark_durable_streams.spool import Spool
from pyspark_durable_streams.survey import Allowance, News, Surveyor, Target
from pyspark_durable_streams.walk import Gone

_log: Final = logging.getLogger("pyspark_durable_streams")
_ALL: Final = Allowance()
_TASKS_A_PARTITION: Final = 4


class _How(TypedDict):
    as_chunks: bool
    fails_on_loss: bool
    warn: Callable[[str], None]


class BatchReader(DataSourceReader):
    """Reads streams from one offset to another."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(options.format, schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The batch's tasks."""
        options = self._options
        client = Client(options.client)
        surveyor = Surveyor(client, as_chunks=options.as_chunks, fails_on_loss=options.fails_on_loss, warn=_log.warning)
        try:
            streams = sorted(listing_of(options, client).tails())
            reaches: dict[str, Reach] = {}
            surveyor.each(streams, lambda stream: self._aim(surveyor, stream, reaches))
            found = [reaches[stream] for stream in streams if stream in reaches]
            if len(found) >= options.partitions:
                return _dealt(found, options.partitions)
            return self._counted(found, surveyor)
        finally:
            client.close()

    def _aim(self, surveyor: Surveyor, stream: str, found: dict[str, Reach]) -> None:
        options = self._options
        start, end = options.starting.of(stream), options.ending.of(stream)
        try:
            tail = surveyor.tail(stream)[0]
        except Gone as gone:
            self._missing(gone)
            return
        reach = Reach(stream, tail if start == LATEST else start, tail if end == LATEST else min(end, tail))
        if not reach.is_empty:
            found[stream] = reach

    def _counted(self, reaches: Sequence[Reach], surveyor: Surveyor) -> list[InputPartition]:
        """The tasks where streams have to be cut for them."""
        spool = Spool(self._options.spool_bytes)
        _keep(spool)
        surveyor.begin(spool)
        found: dict[str, News] = {}
        surveyor.each(reaches, lambda reach: self._look(surveyor, reach, found))
        shares = [
            Share(reach.stream, found[reach.stream].position.unit, stretch)
            for reach in reaches
            if reach.stream in found
            for stretch in found[reach.stream].stretches
        ]
        return tasks_of(dealt(shares, self._options.partitions), surveyor)

    def _look(self, surveyor: Surveyor, reach: Reach, found: dict[str, News]) -> None:
        is_exact = self._options.ending.of(reach.stream) != LATEST
        try:
            position = surveyor.enter(reach.stream, reach.token)
            news = surveyor.news(reach.stream, position, _ALL, Target(reach.end, is_exact))
        except Gone as gone:
            self._missing(gone)
            return
        if news is not None:
            found[reach.stream] = news

    def _missing(self, gone: Gone) -> None:
        if self._options.prefix is None and self._options.fails_on_loss:
            raise DataLost(f"{gone}; failOnDataLoss=false reads the streams that are there") from gone

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of(partition, self._options, self._schema)


def rows_of(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task; none for the empty one that Spark makes of no tasks at all."""
    how = _How(as_chunks=options.as_chunks, fails_on_loss=options.fails_on_loss, warn=_log.warning)
    match partition:
        case Task():
            messages = fragments(partition, options.client, **how)
        case ReachTask():
            messages = walked(partition, options.client, **how)
        case _:
            return iter(())
    arrow = to_arrow_schema(schema, timezone="UTC")
    return Rows(options.format, schema, arrow, options.mode, options.chunk_bytes).of(messages)


def tasks_of(shares: list[list[Share]], surveyor: Surveyor | None) -> list[InputPartition]:
    """Tasks that know what of theirs the driver has."""
    extents = surveyor.extents if surveyor is not None else {}
    return [
        Task([Run(share, extents.get((share.stream, share.stretch.place.count))) for share in group])
        for group in shares
    ]


def _dealt(reaches: Sequence[Reach], partitions: int) -> list[InputPartition]:
    """Whole streams, of whose sizes nothing is known: more tasks than cores, so that a core takes more small ones."""
    tasks = min(len(reaches), _TASKS_A_PARTITION * partitions)
    return [ReachTask(reaches[number::tasks]) for number in range(tasks)]


_kept: list[Spool] = []


def _keep(spool: Spool) -> None:
    """The process that plans a batch lives on for the next: its last few spools stay, for the tasks."""
    _kept.append(spool)
    while len(_kept) > 2:
        _kept.pop(0).close()
