"""One run of the pipeline in a process of its own: `python -m loadtest.pipeline_bench.work`.

It writes one JSON object: seconds of each step, and a checksum of each table, which leaves out what is not told by the
lines alone: sketches and the figures drawn from them, and names of batches.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pyspark

from gateway.pipeline import tables
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.events import source_of
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.session import open_session

_DRAWN = re.compile(r"_sketch$|_p[0-9]+_s$")
_TABLES = (tables.LINES, tables.REJECTS, tables.REQUESTS, tables.SESSIONS, *tables.GOLD)


def main() -> None:
    """Ingest and aggregate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    # Executors of a local cluster are found by way of it.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    began = time.perf_counter()
    spark = open_session(asked.master)
    spark.range(1).count()
    started = time.perf_counter()
    lake = Lake(asked.lake)
    took: dict[str, float] = {"start": started - began}

    def told(text: str) -> None:
        print(f"  {time.perf_counter() - started:7.1f} s  {text}", flush=True)

    ingested = ingest(spark, source_of([asked.log]), lake, progress=told)
    took["ingest"] = time.perf_counter() - started
    aggregate(spark, lake, progress=told)
    took["aggregate"] = time.perf_counter() - started - took["ingest"]
    found = {table.name: _checksum(spark, lake, table) for table in _TABLES}
    told(str(ingested))
    asked.out.write_text(json.dumps({"took": took, "added": ingested.added, "tables": found}))
    spark.stop()


def _checksum(spark: Any, lake: Lake, table: tables.Table) -> list[str]:
    from pyspark.sql import functions as f

    columns = [
        f.round(column.name, 9) if column.type == "double" else f.col(column.name)
        for column in table.columns
        if not (_DRAWN.search(column.name) or f"{column.name}_sketch" in table.names)
    ]
    number = f.xxhash64(*columns).cast("decimal(38,0)")
    row = lake.read(spark, table).agg(f.count("*"), f.coalesce(f.sum(number), f.lit(0))).first()
    return [str(value) for value in row or ()]


if __name__ == "__main__":
    main()
