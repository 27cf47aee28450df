"""The job that the test of a cluster submits: the sink writes a log into a stream, which the pipeline then reads.

    spark-submit … spark_cluster_job.py LOG URL LAKE

Of the pipeline's commands these run Python on workers; the others are Spark's own code there.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from pyspark.sql import SparkSession

import pyspark_durable_streams
from gateway.pipeline.cli import submitted
from gateway.pipeline.session import open_session


def main() -> int:
    """Write the log into the stream, and run the pipeline on it; returns the exit status."""
    _, log, url, lake = sys.argv
    spark = open_session(None)
    spark.dataSource.register(pyspark_durable_streams.DefaultSource)
    base, _, stream = url.rpartition("/")
    lines = pyspark_durable_streams.by_stream(spark.read.text(log), None)
    sink = lines.write.format("durable_streams").mode("append").option("url", base).option("orderBy", "value")
    sink.option("create", "application/json").option("stream", stream).save()
    try:
        # The commands share the cluster: a second one would need another Java for its executor.
        with patch.object(SparkSession, "stop"):
            for command in (["ingest", url], ["curve"]):
                sys.argv = ["pipeline", *command, "--lake", lake]
                if status := submitted():
                    return status
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
