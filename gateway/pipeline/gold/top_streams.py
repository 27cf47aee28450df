"""Find the busiest streams of each hour, by requests and by bytes.

The first pass adds up the lines of each stream, which is cheap for any number of streams, and ranks the streams.  The
second pass counts distinct readers, of ranked streams only: a sketch for each stream of a large log would not fit in
memory.  Streams with the same figure are ranked by name, so the same lines always give the same ranks.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import HOUR, is_read, known, total, window
from gateway.pipeline.gold.sketches import readers_in, readers_of

KEPT: Final = 100
"""Number of ranked streams for each hour and each value of `by`."""
_STREAM: Final = ("hour", "route", "protocol", "stream")


def top_streams(requests: DataFrame, ranked: DataFrame) -> DataFrame:
    """Compute `tables.TOP_STREAMS` from `tables.REQUESTS` and the result of `ranks`, which is read twice."""
    chosen = ranked.select(*_STREAM).distinct()
    readers = (
        requests.where(is_read())
        .select(window(HOUR), "route", "protocol", "stream", known("client"), known("user_agent"))
        .join(f.broadcast(chosen), list(_STREAM))
        .groupBy(*_STREAM)
        .agg(readers_of(f.col("client"), f.col("user_agent")).alias("readers_sketch"))
    )
    return ranked.join(readers, list(_STREAM), "left").withColumn("readers", readers_in(f.col("readers_sketch")))


def ranks(requests: DataFrame) -> DataFrame:
    """Compute the table without its readers."""
    figures = requests.groupBy("day", window(HOUR), "route", "protocol", "stream").agg(
        f.count_if(f.col("is_final")).alias("requests"),
        *map(total, ("sent_bytes", "saved_bytes", "fetched_bytes")),
    )
    read_bytes = f.col("sent_bytes") + f.col("saved_bytes")
    by_weight = f.create_map(f.lit("requests"), f.col("requests"), f.lit("bytes"), read_bytes)
    order = Window.partitionBy("hour", "by").orderBy(f.desc("weight"), "route", "stream", "protocol")
    return (
        figures.select("*", f.explode(by_weight).alias("by", "weight"))
        .where(f.col("weight") > 0)
        .withColumn("rank", f.row_number().over(order))
        .where(f.col("rank") <= KEPT)
    )
