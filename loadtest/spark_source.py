"""How fast Spark reads streams: `python -m loadtest.spark_source [--messages 2400000] [--streams 4] [--origin]`.

An in-memory origin and a gateway before it, which has room for all streams, run as programs of their own beside a Spark
of two cores; with `--origin` Spark reads from the origin itself.  Every kind of row is read by a batch and by a query
with AvailableNow, into Spark's `noop` sink, so what is timed is planning, reading and parsing.  Each row of the table
says its best of six, and what a read of one message takes, which is what Spark takes for any; the counts are checked.
Reads that the driver counts by reading, and those that the gateway has counted (`catalogue`), take turns.
The last row is what Arrow takes to parse the same messages on one core, with nothing around it: a machine's own measure
for `typed`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.json

from pyspark_durable_streams.client import Client, ClientConfig
from tests.served import dev_gateway, durable_gateway, served
from tests.spark import MASTER, local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE_BYTES: Final = 125
_APPEND: Final = 5_000
_ROOM: Final = {"DURABLE_GATEWAY_LIMITS__CACHE_BYTES": "1GiB"}
_RUNS: Final = 6
"""The first few warm up Java's compiler."""
_ARROW: Final = pa.schema(
    {"id": pa.int64(), "user": pa.string(), "kind": pa.string(), "amount": pa.float64(), "at": pa.int64()}
)
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
        served(*_programs(with_gateway=not given.origin), environment=os.environ | _ROOM) as urls,
        local_spark(Path(folder), java_flags="", compiles=True) as spark,
    ):
        names = fill(urls["origin"], given.messages, given.streams)
        (one,) = fill(urls["origin"], 1, 1, prefix="one")
        plain = {"url": urls["origin" if given.origin else "gateway"]}
        if given.no_spool:
            plain["spoolBytes"] = "0"
        ways = {"driver": plain} | ({} if given.origin else {"gateway": {**plain, "catalogue": urls["admin"]}})
        print(f"{given.messages:,} messages of {_MESSAGE_BYTES} bytes in {len(names)} streams, Spark {MASTER}")
        checkpoints = (Path(folder) / f"checkpoint{number}" for number in count())

        def seconds(options: dict[str, str], streams: str, rows: int, is_streaming: bool) -> float:
            return read(spark, {**options, "streams": streams, "format": kind}, rows, is_streaming, next(checkpoints))

        for kind in ("chunks", "typed", "messages"):
            for is_streaming in (False, True):
                found: dict[str, list[float]] = {way: [] for way in ways}
                for _, (way, options) in product(range(_RUNS), ways.items()):
                    found[way].append(seconds(options, ",".join(names), given.messages, is_streaming))
                least = min(seconds(plain, one, 1, is_streaming) for _ in range(_RUNS))
                for way, runs in found.items():
                    print(
                        f"{kind:<9} {'AvailableNow' if is_streaming else 'batch':<13} counted by {way:<8}"
                        f"{min(runs):6.2f} s {given.messages / min(runs) / 1e6:6.2f} M rows/s, one {least:5.2f} s",
                        flush=True,
                    )
        best = min(parse(given.messages) for _ in range(_RUNS))
        print(f"{'Arrow':<9} {'alone':<32} {best:6.2f} s {given.messages / best / 1e6:6.2f} M rows/s")


def _programs(*, with_gateway: bool) -> tuple[list[str], *tuple[str, ...]]:
    if not with_gateway:
        return durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin"
    return dev_gateway(), "gateway", "origin", "admin"


def fill(url: str, messages: int, streams: int, *, prefix: str = "bench") -> list[str]:
    """Append the messages to new streams; their names."""
    client = Client(ClientConfig(url))
    names = [f"{prefix}-{number}" for number in range(streams)]
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


def parse(messages: int) -> float:
    """Let Arrow parse so many messages on one core, a megabyte at a time; the seconds it took."""
    number = (1 << 20) // (_MESSAGE_BYTES + 1)
    lines = b"".join(message(n) + b"\n" for n in range(number))
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    parsing = pyarrow.json.ParseOptions(explicit_schema=_ARROW, unexpected_field_behavior="ignore")
    began = time.perf_counter()
    for _ in range(messages // number):
        pyarrow.json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=parsing)
    return (time.perf_counter() - began) * messages / (messages // number * number)


if __name__ == "__main__":
    main()
