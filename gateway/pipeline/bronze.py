"""Bronze: every ingested line, unchanged.  A line that is not a valid event is a reject and is stored with the reason.

Events and rejects are in one table, so that a batch is one commit.  The column `kind` tells them apart.

This module classifies lines with Spark's JSON parser and the schema of `gateway.ops.access_log.schema`.  It sees only
the few lines that `gateway.pipeline.plain` does not handle.  The reasons are

    not JSON                  also a truncated line, and two lines run together
    not an object             JSON, but another kind of value
    too long                  longer than any line of a gateway
    unknown version: 7        `v` is not a known version
    wrong type: status        a field has another JSON type than in the schema
    missing: node             a required field is missing
    out of range: sent_bytes  an impossibly large or negative number, which would spoil every sum
    time out of range: …      before 2020, or more than a day after its ingestion
    too late                  of a day that counts as complete; only while a source is followed

Empty lines are ignored.  Unknown fields are ignored too, because a gateway may add fields without a new version.  A
text field accepts any JSON value: a check that each is a JSON string would cost as much as all other checks together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from gateway.ops.access_log.schema import FIELDS, VERSION
from gateway.pipeline.plain import AHEAD_S, BOUNDED, EARLIEST_S, MOST, NEEDED
from gateway.pipeline.tables import LATE, LINES, REJECTS

LONGEST_LINE: Final = 1 << 20
"""Longest accepted line in bytes.  A gateway's lines have at most 20,000."""
KEPT_OF_REJECT: Final = 4_096
"""Characters of a rejected line that are stored."""

_TYPES: Final = {"integer": "bigint", "number": "double", "string": "string", "boolean": "boolean"}
_BAD: Final = "_bad"
# Only strict JSON is accepted.  The gateway writes nothing else, but damaged lines often look like a lax form of JSON.
_STRICT: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _BAD,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def line_fields() -> dict[str, str]:
    """Return the Spark type of each field in the log's schema."""
    return {field.name: _TYPES[field.kind] for field in FIELDS}


def parsed(line: Column, *, with_bad: bool = False) -> Column:
    """Return the line as a struct of the schema's fields; `with_bad` adds a field for lines that cannot be parsed."""
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in line_fields().items())
    return f.from_json(line, f"{ddl}, `{_BAD}` string" if with_bad else ddl, _STRICT)


def classified(came: DataFrame, *, oldest: date | None = None) -> DataFrame:
    """Return the rows of bronze for the lines in `came`.

    Its columns are `line`, `source` and `taken`, the time of ingestion.  Events of days before `oldest` are rejected as
    too late.
    """
    # Do not filter the result.  Spark would push the filter down and parse each line twice.
    read = came.where(~f.col("line").isin("", "\r")).withColumn("event", parsed(f.col("line"), with_bad=True))
    event = {name: f.col(f"event.{name}") for name in line_fields()}
    reason = _reason(event, f.col("event").getField(_BAD), f.col("line"), f.col("taken"), oldest)
    told = read.select("line", "source", "taken", "event", reason.alias("reason"))
    is_event = f.col("reason").isNull()
    # A late line is stored whole, because `pipeline ingest --late` can still take it in.
    is_whole = is_event | (f.col("reason") == LATE)
    return told.select(
        f.when(is_event, day_of(f.col("event.time"))).otherwise(f.to_date("taken")).alias("day"),
        f.col("event.id").alias("id"),
        "source",
        f.when(is_whole, f.col("line")).otherwise(f.left("line", f.lit(KEPT_OF_REJECT))).alias("line"),
        "reason",
        f.when(is_event, LINES.name).otherwise(REJECTS.name).alias("kind"),
    )


def day_of(seconds: Column) -> Column:
    """Convert Unix seconds to their UTC day; NULL for an invalid time."""
    return time_of(seconds).cast("date")


def time_of(seconds: Column) -> Column:
    """Convert Unix seconds to a timestamp, rounded to microseconds; NULL for an invalid time."""
    # An invalid time must not fail the query.  `_reason` rejects its line.
    is_time = seconds.between(0, 253_402_300_799)
    return f.when(is_time, f.timestamp_micros(f.round(seconds * 1_000_000).try_cast("bigint")))


def _reason(event: dict[str, Column], bad: Column, line: Column, taken: Column, oldest: date | None) -> Column:
    """Return why a line is not an event; NULL for an event.

    The first reason that applies is returned.  The costly checks run only for rare lines.
    """
    seconds = event["time"]
    last = f.unix_timestamp(taken) + AHEAD_S
    # The only closing brace in a gateway's line is its last character.
    has_rest = f.octet_length(f.substring_index(line, "}", 1)) + 1 != f.octet_length(line)
    may_be_broken = bad.isNotNull() | has_rest
    infinite = (float("inf"), float("-inf"))
    return f.coalesce(
        f.when(f.octet_length(line) > LONGEST_LINE, "too long"),
        f.when(may_be_broken, _broken(line)),
        f.when(event["v"] != VERSION, f.concat(f.lit("unknown version: "), event["v"].cast("string"))),
        f.when(bad.isNotNull(), f.coalesce(_wrong_type(line), f.lit("wrong type"))),
        # Numbers that are too large for their type.
        *(
            f.when(event[field.name].isin(*infinite), f"wrong type: {field.name}")
            for field in FIELDS
            if field.kind == "number"
        ),
        f.when(
            reduce(operator.or_, (event[name].isNull() for name in NEEDED)),
            f.concat(f.lit("missing: "), _named(NEEDED, lambda name: ~_has(f.to_json("event"), name))),
        ),
        *(f.when(~event[field.name].between(0, MOST[field.kind]), f"out of range: {field.name}") for field in BOUNDED),
        f.when(~seconds.between(EARLIEST_S, last), f.concat(f.lit("time out of range: "), seconds.cast("string"))),
        f.lit(None).cast("string") if oldest is None else f.when(day_of(seconds) < f.lit(oldest), LATE),
    )


def _broken(line: Column) -> Column:
    """Return why a line is not one JSON object; NULL if it is."""
    # Spark stops at the end of the first value and ignores the rest of the line.  So the line is parsed twice: as the
    # only element of an array, and as an object's member that another member follows.  A line with text after its
    # first value fails at least one of the two.
    alone = f.size(f.from_json(f.concat(f.lit("["), line, f.lit("]")), "array<string>", _STRICT)) == 1
    before = f.from_json(f.concat(f.lit('{"a":'), line, f.lit(',"b":1}')), f"a string, b int, {_BAD} string", _STRICT)
    is_json = f.coalesce(alone & (before.getField("b") == 1) & before.getField(_BAD).isNull(), f.lit(False))
    return f.when(~is_json, "not JSON").when(~f.startswith(f.ltrim(line), f.lit("{")), "not an object")


def _wrong_type(line: Column) -> Column:
    """Return the reason for a line with a field of another JSON type than in the schema; NULL if there is none."""
    read = f.to_json("event")
    name = _named(tuple(line_fields()), lambda name: _has(line, name) & ~_has(read, name))
    return f.concat(f.lit("wrong type: "), name)


def _named(names: tuple[str, ...], is_it: Callable[[Column], Column]) -> Column:
    """Return the first name for which `is_it` holds; NULL if there is none.

    This is one small expression over an array.  A condition for each name would have to be compiled for every batch,
    although the result is rarely needed.
    """
    return f.get(f.filter(f.array(*map(f.lit, names)), is_it), f.lit(0))


def _has(text: Column, name: Column) -> Column:
    """Whether a JSON object has a field of this name that is not null."""
    return f.call_function("get_json_object", text, f.concat(f.lit("$."), name)).isNotNull()
