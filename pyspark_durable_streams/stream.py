"""A streaming read: batches of new data, each the same whenever it is read again.

The driver finds the end of the next batch (`latestOffset`) and puts everything that is needed to read the batch into
that end (see `places`).  State remembered in the driver never affects the content of a batch; it only saves requests.

`initialOffset` is empty and always the same, because Spark asks for it again when it replays the first batch.  The
entry points of streams are resolved with the first batch and stored in its end.  With `latest` that end has places and
no messages, and Spark runs an empty batch for it, so that a restart begins there and not at a later tail.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_durable_streams.batch import rows_of, tasks_of
from pyspark_durable_streams.batch_slice import Allowance
from pyspark_durable_streams.catalogue import Listing, admin_of, listing_of
from pyspark_durable_streams.client import Client, Clock, MachineClock
from pyspark_durable_streams.errors import BadOption, DataLost, DurableStreamsError, each_in_one_line, in_one_line
from pyspark_durable_streams.formats import check_schema
from pyspark_durable_streams.news import Lag, News, Target
from pyspark_durable_streams.options import LATEST, ReadOptions
from pyspark_durable_streams.places import START, Offset, Position, Stretch
from pyspark_durable_streams.plan import shares
from pyspark_durable_streams.polling import Polling
from pyspark_durable_streams.rounds import Budget, allocate, narrowed, rotated
from pyspark_durable_streams.spool import Spool
from pyspark_durable_streams.survey import Surveyor
from pyspark_durable_streams.walk import Gone

_MOST_ASKED: Final = 64
"""The most streams left behind by a bound whose tails are requested for the report."""
_CLOSED_AGAIN_S: Final = 60.0
"""A stream that is closed and read to its end is looked at again after this time: it may have been re-created."""
_log: Final = logging.getLogger("pyspark_durable_streams")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow."""

    def __init__(self, schema: StructType, options: ReadOptions, clock: Clock | None = None) -> None:
        check_schema(options.format, schema, options.corrupt)
        self._schema = schema
        self._options = options
        self._clock = clock if clock is not None else MachineClock()
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to the workers, which must not get the driver's connections.
        return {**self.__dict__, "_driver": None}

    @property
    def _state(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options, self._clock)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """The empty offset."""
        return Offset(as_chunks=self._options.as_chunks).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The batch bound from the options."""
        if self._options.most_rows is not None:
            return ReadMaxRows(self._options.most_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself if there is nothing new."""
        end = self._state.end_of_batch(Offset.from_json(start), self._budget(limit))
        self._state.planned = None if end is None else end.to_json()
        return start if self._state.planned is None else self._state.planned

    def _budget(self, limit: ReadLimit) -> Budget:
        match limit:
            case ReadMaxRows():
                # Spark passes one bound only; if the options have both, the other one is added here.
                return Budget(limit.max_rows, self._options.max_bytes)
            case ReadMaxBytes():
                return Budget(None, limit.max_bytes)
            case _:
                return Budget()

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the current tails: later data will not be read."""
        self._state.stop_at_tails()

    @in_one_line
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the streams have grown, as of the last time they were read."""
        return self._state.report()

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between two offsets."""
        surveyor = self._driver.surveyor if self._driver is not None else None
        return tasks_of(shares(Offset.from_json(start), Offset.from_json(end)), surveyor)

    @each_in_one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """The batch will not be read again: drop its bytes."""
        # Spark may commit a batch after planning the next one, whose bytes are still needed.
        if self._driver is not None and self._driver.planned == end:
            self._driver.drop_spools()

    def stop(self) -> None:
        """The query has ended."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """The driver's state while a query runs."""

    def __init__(self, options: ReadOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._client = Client(options.client)
        self._admin = admin_of(options)
        self._listing: Listing = listing_of(options, self._client, self._admin)
        self.surveyor = Surveyor(
            self._client,
            self._admin,
            partitions=options.partitions,
            as_chunks=options.as_chunks,
            fails_on_loss=options.fails_on_loss,
            warn=_log.warning,
        )
        self._spools: list[Spool] = []
        self._targets: dict[str, Target | None] | None = None
        self._tails: dict[str, str] = {}
        self._behind: dict[str, Lag] = {}
        """The streams that the latest batch's bound has left behind."""
        self._held: tuple[Offset, dict[str, News]] | None = None
        """What was read for a batch that waits for more, and the offset that it begins at."""
        self._polling = Polling(options.most_poll_s)
        self._planned_at: float | None = None
        """When the latest batch of this run was planned."""
        self.planned: dict[str, Any] | None = None
        """The end of the batch whose bytes are in the spool."""
        self._closed_at: dict[str, float] = {}
        """When closed streams were last looked at."""

    # -- the end of a batch

    def end_of_batch(self, start: Offset, budget: Budget) -> Offset | None:
        """The end of the batch after `start`; None if there is nothing new, or a pause has not ended."""
        # With a target, the first look that finds nothing ends the query.
        if self._targets is None and not self._polling.is_due(self._clock.now()):
            return None
        end = self._look_for_end(start, budget)
        self._polling.found(self._clock.now(), has_news=end is not None)
        return end

    def _look_for_end(self, start: Offset, budget: Budget) -> Offset | None:
        options = self._options
        if start.positions and start.as_chunks != options.as_chunks:
            raise BadOption("option format: chunks and other formats count differently; begin with a new checkpoint")
        tails = self._listing.tails()
        positions = dict(start.positions)
        # A stream's entry point is part of the batch's end even if it has no data after it.
        entered = self._enter([name for name in tails if name not in positions], start)
        held = self._held if self._held is not None and self._held[0] == start else None
        if held is None:
            self.drop_spools()
            spool = Spool(options.spool_bytes)
            self._spools.append(spool)
            self.surveyor.begin(spool)
        if self._targets is not None and not self._listing.is_complete:
            # Streams that were read before exist even if the listing lacks them.
            self._set_targets({name: None for name in positions if name not in self._targets})
        names = self._candidates(tails, {**positions, **entered})
        found = dict(held[1]) if held is not None else {}
        last = self._collect(rotated(names, start.last), {**positions, **entered}, budget, found)
        self._held = None
        if self._is_to_wait(found, entered):
            self._held = (start, found)
            return None
        stretches: dict[str, tuple[Stretch, ...]] = {}
        has_closed = False
        for name, news in found.items():
            before = positions.get(name)
            if news.stretches:
                positions[name] = news.position
                stretches[name] = news.stretches
            elif news.position.is_closed and before is not None and not before.is_closed:
                # Stored, so that a stream re-created under the name is not taken for this one cut short.
                positions[name], has_closed = news.position, True
        for name, position in entered.items():
            positions.setdefault(name, position)
        if not stretches and not entered and not has_closed and (start.has_begun or options.starting.general != LATEST):
            return None
        self._planned_at = self._clock.now()
        return Offset(positions, stretches, options.partitions, last or start.last, options.as_chunks, has_begun=True)

    def _enter(self, names: Sequence[str], start: Offset) -> dict[str, Position]:
        """The entry points of new streams, except those entered at their beginnings."""
        options = self._options
        entered: dict[str, Position] = {}
        times = None if start.has_begun else options.times

        def enter(name: str) -> None:
            token = options.starting.of(name)
            try:
                if times is not None:
                    moment = times.of(name)
                    if moment is not None and (position := self.surveyor.enter_at(name, moment)) is not None:
                        entered[name] = position
                    return
                if token == LATEST and start.has_begun:
                    token = START
                position = self.surveyor.enter(name, token)
            except Gone as gone:
                self._missing(name, gone)
                return
            if position is not None:
                entered[name] = position

        wanted = names if times is not None else [name for name in names if options.starting.of(name) != START]
        self.surveyor.each(wanted, enter)
        return entered

    def _candidates(self, tails: Mapping[str, str | None], positions: Mapping[str, Position]) -> list[str]:
        """The streams that may have news."""
        catalogue = self._options.catalogue
        tells_news = catalogue is not None and catalogue.tells_news
        names = set(tails) if self._listing.is_complete else {*tails, *positions}
        found: list[str] = []
        for name in names:
            position = positions.get(name)
            if self._targets is not None and name not in self._targets:
                continue
            if position is not None:
                place = position.place
                if position.is_closed and self._clock.now() - self._closed_at.get(name, -inf) < _CLOSED_AGAIN_S:
                    continue
                if tells_news and place.skip == 0 and tails.get(name) == place.token:
                    continue
            found.append(name)
        return found

    def _is_to_wait(self, found: Mapping[str, News], entered: Mapping[str, Position]) -> bool:
        """Whether this is too little for a batch, and more may come soon."""
        options = self._options
        if self._targets is not None or entered or self._planned_at is None or not options.least_rows:
            return False
        units = sum(news.units for news in found.values())
        is_full = any(news.has_more for news in found.values())
        is_due = self._clock.now() - self._planned_at >= options.longest_wait_s
        return 0 < units < options.least_rows and not is_full and not is_due

    def _collect(
        self, names: Sequence[str], positions: Mapping[str, Position], budget: Budget, found: dict[str, News]
    ) -> str:
        """Add the streams' news within the bound to `found`; returns the last stream that took a part."""

        def look(wave: Sequence[str], allowance: Allowance) -> dict[str, News]:
            came: dict[str, News] = {}
            now = {name: found[name].position if name in found else positions.get(name) for name in wave}
            self.surveyor.each(wave, lambda name: self._look(name, now[name], allowance, came))
            for name, news in came.items():
                before = found[name].stretches if name in found else ()
                found[name] = replace(news, stretches=before + news.stretches)
            return came

        if not budget.is_bounded:
            look(names, Allowance())
            self._behind = {}
            return ""
        for news in found.values():
            budget = budget.less(news.units, news.size)
        pending, last = list(names), ""
        width, left, asked, fitted = len(pending), len(pending), 0, 0
        while pending and not budget.is_spent:
            wave, allowance = allocate(pending, budget, width)
            came = look(wave, allowance)
            took = {name: news for name, news in came.items() if news.stretches}
            for news in came.values():
                budget = budget.less(news.units, news.size)
            last = next((name for name in reversed(wave) if name in took), last)
            more = [name for name in wave if name in came and came[name].has_more]
            pending = pending[len(wave) :] + more
            if len(wave) == 1 and more and not took:
                break  # the rest of the bound is too small for the next message
            left, asked, fitted = left - len(wave), asked + len({*took, *more}), fitted + len(took)
            if left <= 0:
                width = narrowed(min(width, max(len(pending), 1)), asked, fitted)
                left, asked, fitted = len(pending), 0, 0
        self._behind = {
            name: found[name].lag if name in found else Lag(is_exact=False)
            for name in pending
            if name in found or name not in positions
        }
        return last

    def _look(self, name: str, position: Position | None, allowance: Allowance, found: dict[str, News]) -> None:
        target = self._targets.get(name) if self._targets is not None else None
        was_closed = False
        try:
            if position is not None and position.is_closed:
                was_closed = True
                news = self.surveyor.news_after_close(name, position, allowance, target)
            else:
                news = self.surveyor.news(name, position, allowance, target)
        except Gone as gone:
            self._missing(name, gone)
            return
        if (news is None and was_closed) or (news is not None and news.position.is_closed):
            self._closed_at[name] = self._clock.now()
        if news is None:
            return
        found[name] = news
        if news.tail is not None:
            self._tails[name] = news.tail

    def _missing(self, name: str, gone: Gone) -> None:
        """Handle a stream that never existed: an error if the user named it, because a name may be mistyped."""
        if self._options.prefix is None and self._options.fails_on_loss:
            asked = f"{self._options.client.url}/{name}"
            raise DataLost(
                f"{gone} (is {asked} its URL?); failOnDataLoss=false waits for streams that do not exist yet"
            ) from gone

    # -- the rest

    def stop_at_tails(self) -> None:
        """Read no further than the streams' current tails."""
        self._targets = {}
        self._set_targets(self._listing.tails())

    def _set_targets(self, tails: Mapping[str, str | None]) -> None:
        """Make the streams' current tails the targets of reading."""
        catalogue = self._options.catalogue
        tells_news = catalogue is not None and catalogue.tells_news
        targets: dict[str, Target | None] = {}

        def ask(name: str) -> None:
            if tells_news and (said := tails[name]) is not None:
                targets[name] = Target(said)
                return
            try:
                token, is_closed = self.surveyor.tail(name)
                targets[name] = Target(token, is_closed=is_closed)
            except Gone:
                # Whether that is a loss shows when the stream is read: a closed one may have been read to its end.
                targets[name] = None

        self.surveyor.each(tails, ask)
        self._targets = {**(self._targets or {}), **targets}

    def report(self) -> dict[str, Any] | None:
        """How far the streams have grown."""
        if not self._tails:
            return None
        for name in sorted(self._behind)[:_MOST_ASKED]:
            try:
                self._tails[name] = self.surveyor.tail(name)[0]
            except Gone:
                pass
            except DurableStreamsError as error:
                _log.warning("the streams' tails are not reported: %s", error)
                break
        lag = sum(self._behind.values(), start=Lag())
        return {
            "streams": dict(sorted(self._tails.items())),
            "behind": len(self._behind),
            "lagBytes": lag.size,
            "isLagExact": lag.is_exact,
        }

    def drop_spools(self) -> None:
        """Close the spools of finished batches."""
        while self._spools:
            self._spools.pop().close()

    def close(self) -> None:
        """Close everything."""
        self.drop_spools()
        self.surveyor.close()
        self._client.close()
        if self._admin is not None:
            self._admin.close()
