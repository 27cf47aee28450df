"""The job that the test of Spark Connect runs on the client's side.

spark_connect_job.py sc://HOST:PORT URL FOLDER
"""

from __future__ import annotations

import re
import runpy
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from pyspark_durable_streams import by_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_, program, folder = sys.argv
names = runpy.run_path(program)
spark, url = names["spark"], names["url"]


def say(name: str, value: object) -> None:
    sys.stdout.write(f"{name} {value}\n")


def write(frame: DataFrame, **options: str) -> None:
    sink = frame.write.format("durable_streams").mode("append").option("url", url)
    sink.options(create="application/json", orderBy="id", **options).save()


def read(stream: str, **options: str) -> Any:
    return spark.read.format("durable_streams").options(url=url, stream=stream, **options)


def copied() -> list[tuple[int, float]]:
    """Copy what is new in one stream to another, and read all of that one."""
    rows = spark.readStream.format("durable_streams").schema("_pos bigint, amount double")
    rows = rows.options(url=url, stream="job/orders", startingOffsets="earliest", format="typed")
    sink = rows.load().selectExpr("_pos pos", "amount").writeStream.format("durable_streams")
    sink = sink.options(url=url, stream="job/copy", create="application/json", orderBy="pos")
    query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    read_back = read("job/copy", format="typed").schema("pos bigint, amount double").load()
    return [tuple(row) for row in read_back.orderBy("pos").collect()]


write(spark.createDataFrame([(1, 9.5), (2, 12.0)], "id int, amount double"), stream="job/orders")
typed = read("job/orders", format="typed").schema("id bigint, amount double").load()
say("typed", [tuple(row) for row in typed.orderBy("id").collect()])
say("streamed", copied())
write(spark.createDataFrame([(3, 7.25)], "id int, amount double"), stream="job/orders")
say("again", copied())
write(by_stream(spark.createDataFrame([("job/x", 1), ("job/y", 2), ("job/x", 3)], "stream string, id int")))
say("by_stream", [row["value"] for row in read("job/x").load().collect()])
try:
    read("missing").load().collect()
except PySparkException as error:
    found = re.search(r"(DataLost: [^(]*\S) \(", str(error))
    say("refused", found[1] if found and "Traceback" not in str(error) else error)
spark.stop()
