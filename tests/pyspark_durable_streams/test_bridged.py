"""The source reads S2 streams that a gateway presents as Durable Streams, without a change to it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.s2 import protobuf
from gateway.s2.records import AppendInput, AppendRecord, Trim, command_record
from tests.served import forked_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASIN = "spark-basin"


@pytest.fixture(scope="module")
def bridged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """URLs of the S2 origin and of the gateway."""
    config = tmp_path_factory.mktemp("bridge") / "gateway.toml"
    with served(forked_gateway("origin", "--protocol", "s2", "--listen", "127.0.0.1:0"), "origin") as origin:
        config.write_text(
            f"""\
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"

[[route]]
origin = "{origin["origin"]}"
protocol = "s2"
origin_http = "2"
present = "durable-streams"
bridge = {{ basin = "{BASIN}" }}
"""
        )
        basin = json.dumps({"basin": BASIN, "config": {"create_stream_on_append": True}}).encode()
        _post(origin["origin"], "basins", "application/json", basin)
        with served(forked_gateway("serve", "--config", str(config)), "gateway", "admin") as gateway:
            yield {**origin, **gateway}


def _post(origin: str, path: str, content_type: str, body: bytes) -> None:
    headers = {"Content-Type": content_type, "s2-basin": BASIN, "Authorization": "Bearer token"}
    request = urllib.request.Request(f"{origin}/v1/{path}", body, headers, method="POST")
    with urllib.request.urlopen(request) as reply:
        assert reply.status in (200, 201)


def append(urls: Mapping[str, str], stream: str, *records: AppendRecord) -> None:
    """Append as an S2 writer does, past the gateway."""
    body = protobuf.encode_append_input(AppendInput(records))
    _post(urls["origin"], f"streams/{stream}/records", protobuf.CONTENT_TYPE, body)


def numbers(first: int, last: int) -> list[AppendRecord]:
    return [AppendRecord(str(number).encode()) for number in range(first, last)]


def test_a_bridged_stream_is_read(spark: SparkSession, bridged: Mapping[str, str], tmp_path: Path) -> None:
    append(bridged, "m", *numbers(0, 300))
    append(bridged, "m", command_record(Trim(0)), *numbers(300, 600), AppendRecord(b"not JSON"))
    frame = spark.read.format("durable_streams").options(url=bridged["gateway"], stream="m").load()
    rows = frame.orderBy("pos").collect()
    assert [json.loads(row["value"]) for row in rows[:-1]] == list(range(600))
    assert json.loads(rows[-1]["value"])["s2_record"]["body"] == "not JSON"
    again = spark.read.format("durable_streams").options(
        url=bridged["gateway"], stream="m", startingOffsets=json.dumps({"m": rows[400]["offset"]})
    )
    assert again.load().where("value = '400'").count() == 1

    for last in (600, 700):
        query = (
            spark.readStream.format("durable_streams")
            .options(url=bridged["gateway"], stream="m", startingOffsets="earliest")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        written = [json.loads(row["value"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
        assert sorted(value for value in written if isinstance(value, int)) == list(range(last))
        append(bridged, "m", *numbers(600, 700))
