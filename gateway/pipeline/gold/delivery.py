"""Compute the delivery delay: the time from an append to the answers of the long-polls that it woke.

A long-poll is woken by the append with the smallest `Stream-Next-Offset`, in string order, beyond the offset at which
the long-poll waits.  A stream that was deleted or created anew in between counts as another stream.  The two requests
must overlap: the long-poll began before the append ended, and was answered after the append began.  Otherwise the bytes
were already on the tape.

The delay runs from the end of the append's answer to the end of the long-poll's answer.  It is 0 if the origin woke the
readers before it answered the writer.  Both lines must be from the same gateway, because the clocks of two gateways
differ by more than a typical delay.  SSE reads are not included, because the log has no line for each delivery.  Nor
are long-polls with `offset=now`, because they have no offset.

The gateway's metric `durable_gateway_delivery_delay_seconds` measures something else: from the time when new live bytes
are stored on the tape until they have been handed to the last live reader.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import MINUTE, began_us, ended_us, latest, of_its_day, window, with_the_hour_before
from gateway.pipeline.gold.sketches import quantiles, sketch_of
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import CloseReason

# `key` is a hash of route and stream.  Sorting by it is faster than sorting by the names.
_STREAM: Final = ("of", "key")


def delivery(requests: DataFrame) -> DataFrame:
    """Compute `tables.DELIVERY` from `tables.REQUESTS`, which must include the last hour of the day before."""
    figures = (
        delays(requests)
        .groupBy("day", window(MINUTE), "route")
        .agg(
            f.count("*").alias("deliveries"),
            sketch_of(f.col("delay_s")).alias("delay_sketch"),
            f.max("delay_s").alias("delay_max_s"),
        )
    )
    return quantiles(figures, "delay_sketch", "delay")


def delays(requests: DataFrame) -> DataFrame:
    """Return a row for each woken long-poll: `day`, `time` (when it ended), `route` and `delay_s`."""
    mode, status = f.col("mode"), f.col("status")
    is_new = ((mode == Mode.CREATE.value) & (status == 201)) | ((mode == Mode.DELETE.value) & status.between(200, 299))
    is_append = (mode == Mode.APPEND.value) & status.between(200, 299) & f.col("next_offset").isNotNull()
    is_answered = (
        (mode == Mode.LONGPOLL.value)
        & (status == 200)
        & (f.col("close_reason") == CloseReason.ANSWERED.value)
        & f.col("start").isNotNull()
        & (f.col("start") != "now")
    )
    found = with_the_hour_before(requests.where(f.col("is_final") & (is_new | is_append | is_answered))).select(
        *("day", "time", "node", "of", "route"),
        f.xxhash64("route", "stream").alias("key"),
        ended_us().alias("ended"),
        began_us().alias("began"),
        is_new.alias("is_new"),
        is_append.alias("is_append"),
        f.when(is_append, f.col("next_offset")).when(is_answered, f.col("start")).alias("offset"),
    )
    # A long-poll belongs to the incarnation that existed when it began to wait.
    at = f.when(found["is_append"] | found["is_new"], found["ended"]).otherwise(found["began"])
    lives = Window.partitionBy(*_STREAM).orderBy("at", f.desc("is_new")).rowsBetween(Window.unboundedPreceding, 0)
    found = found.withColumn("at", at).withColumn("life", f.sum(f.col("is_new").cast("int")).over(lives))
    # With offsets in descending order, the last append before a long-poll has the smallest offset beyond it.  If an
    # idempotent producer sent an append twice, the earlier one is chosen.
    onward = Window.partitionBy(*_STREAM, "life").orderBy(f.desc("offset"), f.asc("is_append"), f.desc("ended"))
    append = f.when(f.col("is_append"), f.struct("node", "began", "ended"))
    woken = (
        found.where(~f.col("is_new"))
        .withColumn("by", latest(append, onward))
        .where(
            ~f.col("is_append")
            & of_its_day()
            & (f.col("by.node") == f.col("node"))
            & (f.col("by.ended") >= f.col("began"))
            & (f.col("by.began") <= f.col("ended"))
        )
    )
    delay_us = f.greatest(f.col("ended") - f.col("by.ended"), f.lit(0))
    return woken.select("day", "time", "route", (delay_us / 1_000_000).alias("delay_s"))
