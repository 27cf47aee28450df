"""The headline figures: the meaning of each, the SQL that computes it from the gold tables, and its sentence.

`DEFINITIONS` is the only definition of the headline figures.  A figure is `part` divided by `whole`, or `part` alone if
there is no `whole`.  The SQL runs on DuckDB and uses the gold tables' own names, so that a user can run it too.
Percentiles are defined in `gateway.pipeline.gold.sketches`.

A figure without data is left out, so an empty lake has no headlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import duckdb

from gateway.pipeline.report.figures import Figures, Share
from gateway.pipeline.wording import count, many, share, size, span, times
from gateway.protocol.mode import Mode

READS: Final = "mode IN ('catchup', 'longpoll', 'sse')"
"""SQL: whether a row of `traffic` is of reads."""
SPARED: Final = "CASE WHEN count(spared_requests) = count(*) THEN sum(spared_requests) END"
"""SQL: the number of reads that caused no request; NULL if a row was written before the column existed."""
LOOKED: Final = "outcome IN ('joined', 'revalidated')"
"""SQL: whether reads were answered from memory after the origin had been asked for the stream's tail."""
_AT_ONCE_S: Final = 1e-6
"""The log's resolution in seconds.  Only remembered answers take less."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a headline figure: its name, its meaning, and the SQL of `part` and `whole`."""

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
        "Requests of all kinds that were refused, failed, aborted or answered with a status of 400 or more, of all. "
        "Live readers that left are not among them.",
        "SELECT (SELECT sum(requests) FROM errors) AS part, (SELECT sum(requests) FROM traffic) AS whole",
    ),
    Definition(
        "followed",
        "Most readers that followed one stream live at the same time.",
        f"SELECT max(most) AS part, NULL AS whole FROM fan_out WHERE mode <> '{Mode.CATCHUP}'",
    ),
)


def shares_of(gold: duckdb.DuckDBPyConnection) -> dict[str, Share]:
    """Compute all defined figures, by name, on a connection that has the gold tables."""
    found = {}
    for one in DEFINITIONS:
        row = gold.execute(one.sql).fetchone()
        assert row is not None
        found[one.name] = Share(*(None if value is None else int(value) for value in row))
    return found


@dataclass(frozen=True, slots=True)
class Headline:
    """A headline: a figure, its meaning, and the counts that it was computed from."""

    figure: str
    says: str
    made_of: str


def headlines(figures: Figures) -> Iterator[Headline]:
    """Yield all headlines that have data."""
    spared, asked, delivered, looked, errors = map(figures.share, ("spared", "asked", "delivered", "looked", "errors"))
    sent, followed = (figures.share(name).part or 0 for name in ("sent", "followed"))

    reads, requests = many(asked.whole or 0, "read"), asked.part or 0
    if asked.whole and spared.part is None:
        made_of = f"{reads}, {many(requests, 'request')}"
        yield Headline(times(asked.ratio), "requests to the origin for each read", made_of)
    elif asked.whole:
        per_hundred = f"{times(100 * (asked.ratio or 0))} requests to it for each 100 reads"
        made_of = f"{count(spared.part)} of {reads}; {per_hundred}"
        yield Headline(share(spared.ratio), "of reads caused no request at the origin", made_of)

    if sent:
        fetched, read = delivered.whole or 0, delivered.part or 0
        made_of = f"it sent {size(fetched)}, readers got {size(read)}"
        if read > sent:
            made_of += f" ({size(sent)} as it was sent)"
        if not fetched:
            yield Headline(size(0), "was all that the origin had to send", made_of)
        elif read < fetched:
            yield Headline(f"{times(fetched / read)} ×", "what readers got was sent by the origin", made_of)
        else:
            yield Headline(f"{times(read / fetched)} ×", "was every byte from the origin delivered", made_of)

    if looked.part:
        made_of = f"{count(looked.part)} of {many(looked.whole or 0, 'catch-up read')}"
        says = "of catch-up reads were in memory, and the origin was asked for the tail"
        yield Headline(share(looked.ratio), says, made_of)

    for says, waited in (
        ("of catch-up reads began to be answered within this time", figures.first_byte_all),
        ("of long-polls were answered within this time of the append that woke them", figures.delivery_all),
    ):
        p50_s, p99 = waited.p50_s, span(waited.p99_s)
        if p50_s is not None and p50_s < _AT_ONCE_S:
            yield Headline(p99, f"99 % {says}", f"half of {count(waited.count)} at once")
        elif p50_s is not None:
            yield Headline(span(p50_s), f"half {says}", f"99 % within {p99}, of {count(waited.count)}")

    if followed >= 2:
        says = "readers followed one stream at once"
        yield Headline(count(followed), says, "for one request to the origin at a time")

    if errors.whole:
        failed = errors.part or 0
        made_of = f"{count(failed)} of {many(errors.whole, 'request')} of all kinds"
        yield Headline(share(failed / errors.whole), "of requests ended in an error", made_of)
