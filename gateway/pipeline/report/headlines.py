"""The headline figures: what each of them means, the SQL that computes it from the gold tables, and its sentence.

`DEFINITIONS` is the only place where a headline figure is defined.  Each is `part` divided by `whole`; a figure without
a `whole` is the `part` alone.  The SQL runs on DuckDB over the gold tables under their own names, so that it can be
pasted there.  Percentiles are not in this list: `gateway.pipeline.gold.sketches` defines them.

A figure without data is left out: an empty lake has no headlines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb

from gateway.pipeline.report.figures import Figures, Percentiles, Share
from gateway.pipeline.wording import count, many, share, size, span, times
from gateway.protocol.mode import Mode

READS: Final = "mode IN ('catchup', 'longpoll', 'sse')"
"""SQL: whether a row of `traffic` is of reads."""
SPARED: Final = "CASE WHEN count(spared_requests) = count(*) THEN sum(spared_requests) END"
"""SQL: reads that caused no request; NULL if a row is older than its column."""
LOOKED: Final = "outcome IN ('joined', 'revalidated')"
"""SQL: whether reads were answered from memory once the origin had been asked for the tail."""
_AT_ONCE_S: Final = 1e-6
"""Less than the log's resolution: the answer was remembered."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A headline figure: its name, what it counts, and the SQL of `part` and `whole`."""

    name: str
    meaning: str
    sql: str


DEFINITIONS: Final = (
    Definition(
        "spared",
        "Reads that caused no request at the origin, of all reads that ended. The log charges each request to the one "
        "read that caused it; a live read of several lines counts by its last.",
        f"SELECT {SPARED} AS part, sum(requests) AS whole FROM traffic WHERE {READS}",
    ),
    Definition(
        "asked",
        "Requests to the origin because of reads, retries included, for each read that ended.",
        f"SELECT sum(origin_requests) AS part, sum(requests) AS whole FROM traffic WHERE {READS}",
    ),
    Definition(
        "looked",
        "Catch-up reads answered from memory once the origin had been asked whether the stream had grown, of all "
        "catch-up reads; reads that shared one such question count each.",
        f"SELECT sum(requests) FILTER (WHERE {LOOKED}) AS part, sum(requests) AS whole FROM traffic "
        f"WHERE mode = '{Mode.CATCHUP}'",
    ),
    Definition(
        "delivered",
        "Body bytes to readers before compression, for each body byte from the origin.",
        f"SELECT sum(sent_bytes + saved_bytes) AS part, sum(fetched_bytes) AS whole FROM traffic WHERE {READS}",
    ),
    Definition(
        "sent",
        "Body bytes as they were sent to readers.",
        f"SELECT sum(sent_bytes) AS part, NULL AS whole FROM traffic WHERE {READS}",
    ),
    Definition(
        "errors",
        "Requests of all kinds that were refused, failed, aborted or answered with a status of 400 or more, of all.",
        "SELECT (SELECT sum(requests) FROM errors) AS part, (SELECT sum(requests) FROM traffic) AS whole",
    ),
    Definition(
        "followed",
        "Most readers that followed one stream live at the same time.",
        f"SELECT max(most) AS part, NULL AS whole FROM fan_out WHERE mode <> '{Mode.CATCHUP}'",
    ),
)


def measured(gold: duckdb.DuckDBPyConnection) -> dict[str, Share]:
    """Every defined figure, by name, from a connection that knows the gold tables."""
    found = {}
    for one in DEFINITIONS:
        row = gold.execute(one.sql).fetchone()
        assert row is not None
        found[one.name] = Share(*(None if value is None else int(value) for value in row))
    return found


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure, its meaning, and the counts it was computed from."""

    figure: str
    says: str
    made_of: str


def headlines(figures: Figures) -> list[Headline]:
    """All headlines with data."""
    of = figures.share
    said = (
        _spared(of("spared"), of("asked")),
        _bytes(of("delivered"), of("sent").part or 0),
        _looked(of("looked")),
        _waits("of catch-up reads began to be answered within this time", figures.first_byte_all),
        _waits("of appends were with their long-polling readers within this time", figures.delivery_all),
        _followed(of("followed").part or 0),
        _errors(of("errors")),
    )
    return [one for one in said if one is not None]


def _spared(spared: Share, asked: Share) -> Headline | None:
    if not asked.whole:
        return None
    reads, requests = many(asked.whole, "read"), asked.part or 0
    if spared.part is None:
        made_of = f"{reads}, {many(requests, 'request')}"
        return Headline(times(asked.ratio), "requests to the origin for each read", made_of)
    per_hundred = f"{times(100 * (asked.ratio or 0))} requests to it for each 100 reads"
    made_of = f"{count(spared.part)} of {reads}; {per_hundred}"
    return Headline(share(spared.ratio), "of reads caused no request at the origin", made_of)


def _looked(looked: Share) -> Headline | None:
    if not looked.part:
        return None
    made_of = f"{count(looked.part)} of {many(looked.whole or 0, 'catch-up read')}"
    says = "of catch-up reads were in memory, and the origin was asked for the tail"
    return Headline(share(looked.ratio), says, made_of)


def _bytes(delivered: Share, sent: int) -> Headline | None:
    if not sent:
        return None
    fetched, read = delivered.whole or 0, delivered.part or 0
    made_of = f"it sent {size(fetched)}, readers got {size(read)}"
    if read > sent:
        made_of += f" ({size(sent)} as it was sent)"
    if not fetched:
        return Headline(size(0), "was all that the origin had to send", made_of)
    if read < fetched:
        return Headline(f"{times(fetched / read)} ×", "what readers got was sent by the origin", made_of)
    return Headline(f"{times(read / fetched)} ×", "was every byte from the origin delivered", made_of)


def _waits(says: str, waited: Percentiles) -> Headline | None:
    if waited.p50_s is None:
        return None
    if waited.p50_s < _AT_ONCE_S:
        return Headline(span(waited.p99_s), f"99 % {says}", f"half of {count(waited.count)} at once")
    return Headline(span(waited.p50_s), f"half {says}", f"99 % within {span(waited.p99_s)}, of {count(waited.count)}")


def _followed(most: int) -> Headline | None:
    if most < 2:
        return None
    return Headline(count(most), "readers followed one stream at once", "for one request to the origin at a time")


def _errors(errors: Share) -> Headline | None:
    if not errors.whole:
        return None
    number = errors.part or 0
    made_of = f"{count(number)} of {many(errors.whole, 'request')} of all kinds"
    return Headline(share(number / errors.whole), "of requests ended in an error", made_of)
