"""How fast Spark writes streams: `python -m loadtest.spark_sink [--messages 1000000] [--streams 8] [--gateway]`.

An in-memory origin runs as a program of its own, beside a Spark of two cores; with `--gateway` Spark writes through a
gateway before it.  The messages come from Parquet, and each way to send is timed three times: by a batch and by a query
with AvailableNow, laid out by `by_stream` (the tasks send) and not (the driver sends).  Reading Parquet, the exchange,
sorting and sending are all in the time.  The table shows the best of the three, and how fast the same rows go into
Spark's `noop` sink with the same layout.  The messages that arrive are counted.

The in-memory origin cuts JSON into messages in Python and is slower than Spark.  Its own speed is shown first: the same
bodies from a client that does nothing else.  Streams of lines, which it stores unchanged, show the sink's speed.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.spark_source import message
from pyspark_durable_streams import by_stream
from pyspark_durable_streams.client import Client, ClientConfig
from tests.served import dev_gateway, durable_gateway, served
from tests.spark import MASTER, local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES: Final = 8
_FILES_A_BATCH: Final = 2
_RUNS: Final = 3
_ALONE: Final = 160_000
_ALONE_POSTS: Final = 20
_SCHEMA: Final = "n long, stream string, value string"
_runs = itertools.count()


def main() -> None:
    """Make the files, write them in every way, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--gateway", action="store_true", help="write through a gateway")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(*_programs(with_gateway=given.gateway)) as urls,
        local_spark(Path(folder), java_flags="", compiles=True) as spark,
    ):
        files = Path(folder) / "in"
        make(files, given.messages, given.streams)
        url = urls["gateway" if given.gateway else "origin"]
        origin = Client(ClientConfig(urls["origin"]))
        size = len(message(given.messages))
        print(f"{given.messages:,} messages of {size} bytes to {given.streams} streams, Spark {MASTER}")
        for content_type in ("application/ndjson", "application/json"):
            print(content_type)
            seconds = [alone(origin, content_type) for _ in range(_RUNS)]
            tell("no Spark", "client", _ALONE, seconds)
            for way, write in (("batch", save), ("AvailableNow", run)):
                for is_laid_out, who in ((True, "tasks"), (False, "driver")):
                    seconds = []
                    for _ in range(_RUNS):
                        prefix = f"run-{next(_runs)}"
                        options = {"url": url, "create": content_type, "orderBy": "n", "maxDriverBytes": "1g"}
                        seconds.append(write(spark, options, files, Path(folder) / prefix, prefix, is_laid_out))
                        check(origin, prefix, given.messages, given.streams)
                    tell(way, who, given.messages, seconds)
        tell("batch", "noop", given.messages, [nowhere(spark, files) for _ in range(_RUNS)])
        origin.close()


def tell(way: str, who: str, messages: int, seconds: list[float]) -> None:
    """A row of the table, of the best run."""
    print(f"{way:<13} {who:<7} {min(seconds):6.2f} s {messages / min(seconds) / 1e6:6.2f} M rows/s", flush=True)


def alone(origin: Client, content_type: str) -> float:
    """Append some messages in bodies of the sink's size, one behind the other; the seconds it took."""
    path = f"/alone-{next(_runs)}"
    each = [message(number) for number in range(_ALONE // _ALONE_POSTS)]
    lines = b"\n".join((*each, b""))
    body = b"[" + b",".join(each) + b"]" if content_type == "application/json" else lines
    origin.request("PUT", path, {"Content-Type": content_type})
    began = time.perf_counter()
    for _ in range(_ALONE_POSTS):
        assert origin.request("POST", path, {"Content-Type": content_type}, body).status == 204
    seconds = time.perf_counter() - began
    origin.request("DELETE", path)
    return seconds


def _programs(*, with_gateway: bool) -> tuple[list[str], *tuple[str, ...]]:
    if not with_gateway:
        return durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin"
    return dev_gateway(), "gateway", "origin"


def make(folder: Path, messages: int, streams: int) -> None:
    """Parquet files of the messages, dealt out to the streams."""
    folder.mkdir()
    size = -(-messages // _FILES)
    for file, begin in enumerate(range(0, messages, size)):
        numbers = range(begin, min(begin + size, messages))
        values = [message(number).decode() for number in numbers]
        table = pa.table({"n": numbers, "stream": [f"{number % streams}" for number in numbers], "value": values})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=50_000)


def _laid_out(rows: DataFrame, prefix: str, is_laid_out: bool) -> DataFrame:
    named = rows.selectExpr("n", f"concat('{prefix}/', stream) AS stream", "value")
    return by_stream(named) if is_laid_out else named


def save(spark: SparkSession, options: dict[str, str], files: Path, _: Path, prefix: str, is_laid_out: bool) -> float:
    """Write it all by one batch; the seconds it took."""
    began = time.perf_counter()
    rows = _laid_out(spark.read.schema(_SCHEMA).parquet(str(files)), prefix, is_laid_out)
    rows.write.format("durable_streams").mode("append").options(**options).save()
    return time.perf_counter() - began


def run(
    spark: SparkSession, options: dict[str, str], files: Path, checkpoint: Path, prefix: str, is_laid_out: bool
) -> float:
    """Write it all by a query, batch by batch; the seconds it took."""
    began = time.perf_counter()
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", str(_FILES_A_BATCH))
    rows = _laid_out(reader.parquet(str(files)), prefix, is_laid_out)
    writer = rows.writeStream.format("durable_streams").options(**options)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - began


def nowhere(spark: SparkSession, files: Path) -> float:
    """Lay it all out and let it go; the seconds it took."""
    began = time.perf_counter()
    _laid_out(spark.read.schema(_SCHEMA).parquet(str(files)), "none", True).write.format("noop").mode(
        "overwrite"
    ).save()
    return time.perf_counter() - began


def check(origin: Client, prefix: str, messages: int, streams: int) -> None:
    """Every message is there; then the streams are let go, or the origin would hold them all."""
    found = 0
    for stream in range(streams):
        path = f"/{prefix}/{stream}"
        offset, is_all = "-1", False
        while not is_all:
            reply = origin.request("GET", f"{path}?offset={offset}")
            found += reply.body.count(b'{"id":')
            offset, is_all = reply.headers["Stream-Next-Offset"], "Stream-Up-To-Date" in reply.headers
        origin.request("DELETE", path)
    assert found == messages, (found, messages)


if __name__ == "__main__":
    main()
