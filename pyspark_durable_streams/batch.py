"""A batch read: all there is between two offsets, at the moment it is planned.

The driver walks the streams, counting, and what it reads goes to the spool for the tasks; so a stream that nobody has
cut into parts is still read by several of them, and a task that is run again reads the same.

Where there are as many long streams as tasks, none has to be cut, and counting them would be most of the work done
twice.  Then the driver reads the first megabyte of each and where its tail is, and a task reads that stream from its
beginning to that tail: what the driver has read is what tells that it is the same stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_durable_streams.catalogue import listing_of
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.formats import Rows, check_schema
from pyspark_durable_streams.framing import BLOCK_BYTES, Unit
from pyspark_durable_streams.options import LATEST, ReadOptions
from pyspark_durable_streams.plan import Share, dealt
from pyspark_durable_streams.reading import Run, Task, fragments
from pyspark_durable_streams.spool import Spool
from pyspark_durable_streams.survey import Allowance, News, Surveyor, Target
from pyspark_durable_streams.walk import Gone

_log: Final = logging.getLogger("pyspark_durable_streams")
_ALL: Final = Allowance()
HEAD_BYTES: Final = BLOCK_BYTES
"""So much is read of a stream before it counts as long."""
_TASKS_A_PARTITION: Final = 4


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read of a stream, which may be the beginning only, and where reading it stops."""

    news: News
    target: Target

    @property
    def can_be_walked(self) -> bool:
        """Whether it needs no counting.  An end that the user names may lie behind the tail; and whether a line without
        an end is one depends on when it is read."""
        return not self.target.is_exact and self.news.position.unit is not Unit.LINE

    def run(self, stream: str) -> Run:
        """All of it, for a task."""
        (head,) = self.news.stretches
        return Run(Share(stream, self.news.position.unit, head), None, self.target.token)


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
        spool = Spool(options.spool_bytes)
        _keep(spool)
        surveyor.begin(spool)
        found: dict[str, _Found] = {}
        try:
            names = list(listing_of(options, client).tails())
            first = Allowance(size=HEAD_BYTES, is_forced=True) if len(names) >= options.partitions else _ALL
            surveyor.each(names, lambda stream: self._look(surveyor, stream, first, found))
            long = sorted(stream for stream, one in found.items() if one.news.has_more)
            whole = [stream for stream in long if found[stream].can_be_walked]
            if len(whole) < options.partitions:
                whole = []
            surveyor.each(set(long) - set(whole), lambda stream: _count_on(surveyor, stream, found))
        finally:
            surveyor.close()
            client.close()
        shares = [
            Share(name, found[name].news.position.unit, stretch)
            for name in sorted(found.keys() - set(whole))
            for stretch in found[name].news.stretches
        ]
        return [
            *(Task([found[name].run(name) for name in group]) for group in _dealt(whole, options.partitions)),
            *tasks_of(dealt(shares, options.partitions), surveyor),
        ]

    def _look(self, surveyor: Surveyor, stream: str, allowance: Allowance, found: dict[str, _Found]) -> None:
        options = self._options
        ending = options.ending.of(stream)
        start = options.starting.of(stream)
        is_named = options.prefix is None
        try:
            token = surveyor.tail(stream)[0] if ending == LATEST else ending
            position = surveyor.enter(stream, surveyor.tail(stream)[0] if start == LATEST else start)
        except Gone as gone:
            if is_named and options.fails_on_loss:
                raise DataLost(f"{gone}; failOnDataLoss=false reads the streams that are there") from gone
            return
        target = Target(token, is_exact=ending != LATEST)
        news = surveyor.news(stream, position, allowance, target)
        if news is not None:
            found[stream] = _Found(news, target)

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


def _count_on(surveyor: Surveyor, stream: str, found: dict[str, _Found]) -> None:
    """Read the rest of a stream."""
    head, target = found[stream].news, found[stream].target
    # What it stands behind was read a moment ago, and need not be looked at.
    rest = surveyor.news(stream, replace(head.position, evidence=None), _ALL, target)
    if rest is not None:
        found[stream] = _Found(replace(rest, stretches=head.stretches + rest.stretches), target)


def _dealt(streams: Sequence[str], partitions: int) -> Iterator[Sequence[str]]:
    """Whole streams, of whose sizes nothing is known: more tasks than cores, so that a core takes more small ones."""
    tasks = min(len(streams), _TASKS_A_PARTITION * partitions)
    return (streams[number::tasks] for number in range(tasks))


_kept: list[Spool] = []


def _keep(spool: Spool) -> None:
    """The process that plans a batch lives on for the next: its last few spools stay, for the tasks."""
    _kept.append(spool)
    while len(_kept) > 2:
        _kept.pop(0).close()
