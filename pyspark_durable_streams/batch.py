"""A batch read: all there is between two offsets, at the moment it is planned.

The driver walks the streams once, counting, and what it reads goes to the spool for the tasks; so a stream that nobody
has cut into parts is still read by several of them, and a task that is run again reads the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_durable_streams.catalogue import admin_of, listing_of
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.formats import Rows, check_schema
from pyspark_durable_streams.options import LATEST, ReadOptions
from pyspark_durable_streams.plan import Share, dealt
from pyspark_durable_streams.reading import Run, Task, fragments
from pyspark_durable_streams.spool import Spool
from pyspark_durable_streams.survey import News, Surveyor, Target
from pyspark_durable_streams.taken import Allowance
from pyspark_durable_streams.walk import Gone

_log: Final = logging.getLogger("pyspark_durable_streams")
_ALL: Final = Allowance()


class BatchReader(DataSourceReader):
    """Reads streams from one offset to another."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(options.format, schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The batch's tasks."""
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
        _keep(spool)
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
        return tasks_of(dealt(shares, options.partitions), surveyor)

    def _look(self, surveyor: Surveyor, stream: str, found: dict[str, News]) -> None:
        options = self._options
        ending = options.ending.of(stream)
        start = options.starting.of(stream)
        is_named = options.prefix is None
        try:
            token = surveyor.tail(stream)[0] if ending == LATEST else ending
            position = surveyor.enter(stream, surveyor.tail(stream)[0] if start == LATEST else start)
            news = surveyor.news(stream, position, _ALL, Target(token, is_exact=ending != LATEST))
        except Gone as gone:
            if is_named and options.fails_on_loss:
                raise DataLost(f"{gone}; failOnDataLoss=false reads the streams that are there") from gone
            return
        if news is not None:
            found[stream] = news

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of(partition, self._options, self._schema)


def rows_of(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task; none for the empty one that Spark makes of no tasks at all."""
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
    return Rows(options.format, schema, arrow, options.mode, options.chunk_bytes).of(messages)


def tasks_of(shares: list[list[Share]], surveyor: Surveyor | None) -> list[InputPartition]:
    """Tasks that know what of theirs the driver has."""
    extents = surveyor.extents if surveyor is not None else {}
    return [
        Task([Run(share, extents.get((share.stream, share.stretch.place.count))) for share in group])
        for group in shares
    ]


_kept: list[Spool] = []


def _keep(spool: Spool) -> None:
    """The process that plans a batch lives on for the next: its last few spools stay, for the tasks."""
    _kept.append(spool)
    while len(_kept) > 2:
        _kept.pop(0).close()
