"""How fast Spark reads streams: `python -m loadtest.spark_source [--messages 2400000] [--streams 4] [--origin]`.

An in-memory origin and a gateway before it run as programs of their own, beside a Spark of two cores; with `--origin`
Spark reads from the origin itself.  Every kind of row is read by a batch and by a query with AvailableNow, into Spark's
`noop` sink, so what is timed is planning, reading and parsing.  Each row of the table says its best of three; the
counts are checked.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_durable_streams.client import Client, ClientConfig
from tests.served import durable_gateway, served
from tests.spark import MASTER, local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE_BYTES: Final = 125
_APPEND: Final = 5_000
_RUNS: Final = 3
_SCHEMA: Final = "id bigint, user string, kind string, amount double, at bigint"


def main() -> None:
    """Fill the streams, read them in every way, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_400_000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--origin", action="store_true", help="read from the origin, without a gateway")
    parser.add_argument("--no-spool", action="store_true", help="tasks walk the streams themselves")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(*_programs(with_gateway=not given.origin)) as urls,
        local_spark(Path(folder)) as spark,
    ):
        names = fill(urls["origin"], given.messages, given.streams)
        options = {"url": urls["origin" if given.origin else "gateway"], "streams": ",".join(names)}
        if given.no_spool:
            options["spoolBytes"] = "0"
        print(f"{given.messages:,} messages of {_MESSAGE_BYTES} bytes in {len(names)} streams, Spark {MASTER}")
        for kind in ("chunks", "typed", "messages"):
            for is_streaming in (False, True):
                seconds = [
                    read(
                        spark, {**options, "format": kind}, given.messages, is_streaming, Path(folder) / f"{kind}{run}"
                    )
                    for run in range(_RUNS)
                ]
                way = "AvailableNow" if is_streaming else "batch"
                rate = given.messages / min(seconds) / 1e6
                print(f"{kind:<10} {way:<13} {min(seconds):6.2f} s {rate:6.2f} M rows/s", flush=True)


def _programs(*, with_gateway: bool) -> tuple[list[str], *tuple[str, ...]]:
    if not with_gateway:
        return durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin"
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")
    return durable_gateway("dev", *ports), "gateway", "origin"


def fill(url: str, messages: int, streams: int) -> list[str]:
    """Append the messages to new streams; their names."""
    client = Client(ClientConfig(url))
    names = [f"bench-{number}" for number in range(streams)]
    header = {"Content-Type": "application/json"}
    for name in names:
        client.request("PUT", f"/{name}", header)
    for number, begin in enumerate(range(0, messages, _APPEND)):
        count = min(_APPEND, messages - begin)
        body = b"[" + b",".join(message(begin + n) for n in range(count)) + b"]"
        reply = client.request("POST", f"/{names[number % streams]}", header, body, retry=False)
        assert reply.status == 204, reply
    client.close()
    return names


def message(number: int) -> bytes:
    """One message, of the length that the table speaks of."""
    row = {"id": number, "user": f"user{number % 1_000}", "kind": "click", "amount": number * 0.25, "at": 1_700_000_000}
    text = json.dumps(row, separators=(",", ":"))
    pad = max(_MESSAGE_BYTES - len(text) - 9, 0)
    return f'{text[:-1]},"pad":"{"x" * pad}"}}'.encode()


def read(spark: SparkSession, options: dict[str, str], messages: int, is_streaming: bool, folder: Path) -> float:
    """Read it all; the seconds it took."""
    schema = _SCHEMA if options["format"] == "typed" else None
    if not is_streaming:
        began = time.perf_counter()
        frame = spark.read.format("durable_streams").options(**options)
        loaded: DataFrame = (frame.schema(schema) if schema else frame).load()
        loaded.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began
    began = time.perf_counter()
    reader = spark.readStream.format("durable_streams").options(**options, startingOffsets="earliest")
    rows = (reader.schema(schema) if schema else reader).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - began
    read_rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert options["format"] == "chunks" or read_rows == messages, read_rows
    return seconds


if __name__ == "__main__":
    main()
