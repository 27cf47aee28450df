"""A batch read: everything between two offsets at the time of planning.

The driver walks the streams once and counts.  The bytes it reads go to the spool for the tasks.  Several tasks can thus
share a stream that has no parts, and a task that runs again reads the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_durable_streams.batch_slice import Allowance
from pyspark_durable_streams.catalogue import admin_of, listing_of
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import BadOption, DataLost, each_in_one_line, in_one_line
from pyspark_durable_streams.formats import Rows, check_schema
from pyspark_durable_streams.news import News, Target
from pyspark_durable_streams.options import LATEST, ReadOptions
from pyspark_durable_streams.plan import Share, split_evenly
from pyspark_durable_streams.reading import Run, Task, fragments
from pyspark_durable_streams.spool import Spool, retain
from pyspark_durable_streams.survey import Surveyor
from pyspark_durable_streams.walk import Gone

_log: Final = logging.getLogger("pyspark_durable_streams")
_ALL: Final = Allowance()


class BatchReader(DataSourceReader):
    """Reads streams from one offset to another."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(options.format, schema, options.corrupt)
        self._schema = schema
        self._options = options

    @in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the batch."""
        options = self._options
        client, admin = Client(options.client), admin_of(options)
        surveyor = Surveyor(
            client,
            admin,
            partitions=options.partitions,
            as_chunks=options.as_chunks,
            fails_on_loss=options.fails_on_loss,
            warn=_log.warning,
        )
        spool = Spool(options.spool_bytes)
        retain(spool)
        surveyor.begin(spool)
        found: dict[str, News] = {}
        try:
            surveyor.each(
                listing_of(options, client, admin).tails(), lambda stream: self._look(surveyor, stream, found)
            )
        finally:
            client.close()
            if admin is not None:
                admin.close()
        shares = [
            Share(name, found[name].position.unit, stretch)
            for name in sorted(found)
            for stretch in found[name].stretches
        ]
        return tasks_of(split_evenly(shares, options.partitions), surveyor)

    def _look(self, surveyor: Surveyor, stream: str, found: dict[str, News]) -> None:
        options = self._options
        ending = options.ending.of(stream)
        start = options.starting.of(stream)
        is_named = options.prefix is None
        try:
            token = surveyor.tail(stream)[0] if ending == LATEST else ending
            moment = options.ending_times.of(stream) if options.ending_times is not None else None
            if options.times is not None and (begin := options.times.of(stream)) is not None:
                if moment is not None and moment.at_s < begin.at_s:
                    raise BadOption(f"option endingTimestamp: stream {stream}: it is before startingTimestamp")
                position = surveyor.enter_at(stream, begin)
            else:
                position = surveyor.enter(stream, start)
            if position is not None and LATEST not in (start, ending) and ending < start:
                raise BadOption(f"option endingOffsets: stream {stream}: {ending} is before startingOffsets, {start}")
            news = surveyor.news(stream, position, _ALL, Target(token, is_exact=ending != LATEST, moment=moment))
        except Gone as gone:
            if is_named and options.fails_on_loss:
                asked = f"{options.client.url}/{stream}"
                raise DataLost(
                    f"{gone} (is {asked} its URL?); failOnDataLoss=false reads the streams that are there"
                ) from gone
            return
        if news is not None:
            found[stream] = news

    @each_in_one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of(partition, self._options, self._schema)


def rows_of(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task; none for the empty partition that Spark makes if there are no tasks."""
    if not isinstance(partition, Task):
        return iter(())
    messages = fragments(
        partition,
        options.client,
        as_chunks=options.as_chunks,
        fails_on_loss=options.fails_on_loss,
        warn=_log.warning,
    )
    arrow = to_arrow_schema(schema, timezone="UTC")
    return Rows(options.format, schema, arrow, options.mode, options.chunk_bytes, options.corrupt).of(messages)


def tasks_of(shares: list[list[Share]], surveyor: Surveyor | None) -> list[InputPartition]:
    """The tasks, each with the spool extents of its stretches."""
    extents = surveyor.extents if surveyor is not None else {}
    return [
        Task([Run(share, extents.get((share.stream, share.stretch.place.count))) for share in group])
        for group in shares
    ]
