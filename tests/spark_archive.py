"""What a Java has learnt of Spark's classes, kept for the next (class data sharing, JEP 350): `python -m
tests.spark_archive`.

To load and check them is most of what it costs to start a Spark and run its first jobs: 8 s of a processor with the
archive, 14 without.  A Java that did not make it passes it over.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.spark import ARCHIVE, INTERPRETED, JAVA_FLAGS, local_spark

_BOUND_S: Final = 600


def _work(spark: SparkSession, folder: Path) -> None:
    spark.range(1_000).selectExpr("id", "id % 7 as k", "cast(id as string) as s").write.parquet(f"{folder}/a")
    rows = spark.read.parquet(f"{folder}/a")
    rows.groupBy("k").count().orderBy("k").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("k").agg({"id": "max"}).write.parquet(f"{folder}/b")


def main() -> None:
    """Let a Spark do a little of what tests have it do, and write the archive at its end."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    fresh = ARCHIVE.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    # What cannot be kept is generated anew by each Java: a line for each of hundreds of such classes is no news.
    flags = f'{JAVA_FLAGS} -XX:ArchiveClassesAtExit="{fresh}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    with tempfile.TemporaryDirectory() as name, local_spark(Path(name), flags) as spark:
        _work(spark, Path(name) / "compiled")
        for key, value in INTERPRETED.items():
            spark.conf.set(key, value)
        _work(spark, Path(name) / "interpreted")
        gateway = spark.sparkContext._gateway
    assert gateway is not None
    # It exits when its last client has left, and writes the archive first.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_BOUND_S)
    if fresh.exists():
        fresh.replace(ARCHIVE)
    else:
        sys.stderr.write("tests.spark_archive: this Java leaves no archive; Sparks start without\n")


if __name__ == "__main__":
    main()
