"""A Spark query of a trimmed stream, through a gateway that still holds some of the trimmed messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader
from tests.pyspark_durable_streams.beside import JSON, Beside, beside, read_all
from tests.pyspark_durable_streams.test_stream import MESSAGES, values
from tests.pyspark_durable_streams.test_stream import follow as batches_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Through:
    """The origin, as seen through a gateway."""

    def __init__(self, origin: Beside, url: str) -> None:
        self.origin = origin
        self.url = url
        self._token = ""

    def append(self, stream: str, *values: int) -> None:
        """Append messages one by one through the gateway."""
        for value in values:
            reply = self.origin.http.request(
                "POST", f"{self.url}/{stream}", headers={"Content-Type": JSON}, body=json.dumps([value]).encode()
            )
            assert reply.status in (200, 204)
            self._token = reply.headers["Stream-Next-Offset"]

    def trim(self, stream: str) -> None:
        """Trim all earlier messages at the origin."""
        token = self._token
        self.origin.do(lambda origin: origin.store.trim(f"/{stream}", token, 0.0))

    def read(self, stream: str) -> list[int]:
        pieces = read_all(self.origin.http, f"{self.url}/{stream}")
        return [message for piece in pieces for message in json.loads(piece)]


@pytest.fixture
def through() -> Iterator[Through]:
    with beside() as origin:
        config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=0.5)
        gateway = origin.run(start_gateway(config))
        try:
            yield Through(origin, gateway.gateway_url)
        finally:
            origin.run(gateway.stop())


def follow(through: Through, at: dict[str, Any] | None = None, **options: str) -> tuple[list[int], dict[str, Any]]:
    """Return the messages that a streaming query reads in one run, and the query's position after the run."""
    given = {"url": through.url, "stream": "s", "startingOffsets": "earliest", "maxPollDelay": "0s", **options}
    reader = StreamReader(MESSAGES, read_options(given, is_streaming=True))
    try:
        batches, end = batches_of(reader, at)
    finally:
        reader.stop()
    return values(batches), end


def test_what_a_trim_has_left_is_read(spark: SparkSession, through: Through) -> None:
    """A query from the start reads all messages that are left.  A query that has missed trimmed messages fails, or
    continues with the messages that are left."""
    through.origin.create("s")
    through.append("s", 1, 2, 3, 4)
    read, at = follow(through)
    assert read == [1, 2, 3, 4]
    through.append("s", 5, 6)
    through.trim("s")
    through.append("s", 7, 8)
    assert through.read("s") == [7, 8]

    frame = spark.read.format("durable_streams").options(url=through.url, stream="s", failOnDataLoss="false").load()
    assert sorted(int(row["value"]) for row in frame.collect()) == [7, 8]
    assert follow(through)[0] == [7, 8]

    with pytest.raises(DataLost, match=r"stream s.*; failOnDataLoss=false continues") as lost:
        follow(through, at)
    assert "\n" not in str(lost.value)
    read, at = follow(through, at, failOnDataLoss="false")
    assert read == [7, 8]
    through.append("s", 9)
    assert follow(through, at)[0] == [9]
