"""Streams from a real gateway's admin API: which there are, and which have moved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import DurableStreamsError
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader

_SCHEMA: Final = StructType().add("stream", StringType()).add("value", StringType())
_JSON: Final = {"content-type": "application/json"}


def append(gateway: Client, name: str, value: object) -> None:
    gateway.request("PUT", f"/{name}", _JSON)
    assert gateway.request("POST", f"/{name}", _JSON, json.dumps([value]).encode(), retry=False).status == 204
    assert gateway.request("GET", f"/{name}?offset=-1").status == 200


def reads(urls: Mapping[str, str], prefix: str) -> int:
    """Reads that the gateway has answered below a prefix."""
    admin = Client(ClientConfig(urls["admin"]))
    page = json.loads(admin.request("GET", f"/api/streams?prefix=/{prefix}&limit=1000").body)
    admin.close()
    return sum(row["reads"] for row in page["streams"])


def reader(urls: Mapping[str, str], **options: str) -> StreamReader:
    given = {
        "url": urls["gateway"],
        "catalogue": urls["admin"],
        "startingOffsets": "earliest",
        "maxPollDelay": "0s",
        **options,
    }
    return StreamReader(_SCHEMA, read_options(given, is_streaming=True))


def test_streams_below_a_prefix_and_those_that_come_later(
    urls: Mapping[str, str], gateway: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a/1", "a/2", "b/1"):
        append(gateway, name, name)
    read = reader(urls, streamsPrefix="a/")
    end = read.latestOffset(read.initialOffset(), ReadAllAvailable())
    assert sorted(end["streams"]) == ["a/1", "a/2"]
    assert "which lacks streams that were not read through it" in caplog.text
    append(gateway, "a/é 3", 3)
    later = read.latestOffset(end, ReadAllAvailable())
    assert sorted(later["batch"]) == ["a/é 3"]
    assert [row for task in read.partitions(end, later) for batch in read.read(task) for row in batch.to_pylist()] == [
        {"stream": "a/é 3", "value": "3"}
    ]
    read.stop()


def test_streams_that_have_not_moved_are_not_asked(urls: Mapping[str, str], gateway: Client) -> None:
    names = [f"q/{number}" for number in range(20)]
    for name in names:
        append(gateway, name, name)
    read = reader(urls, streams=",".join(names), tails="catalogue")
    end = read.latestOffset(read.initialOffset(), ReadAllAvailable())
    assert len(end["batch"]) == 20
    before = reads(urls, "q/")
    assert read.latestOffset(end, ReadAllAvailable()) == end
    assert reads(urls, "q/") == before
    append(gateway, "q/7", "more")
    assert sorted(read.latestOffset(end, ReadAllAvailable())["batch"]) == ["q/7"]
    read.stop()


def test_available_now_reads_streams_that_the_gateway_has_forgotten(urls: Mapping[str, str], gateway: Client) -> None:
    append(gateway, "f/1", 1)
    known = reader(urls, streams="f/1", tails="catalogue")
    end = known.latestOffset(known.initialOffset(), ReadAllAvailable())
    known.stop()
    append(gateway, "f/1", 2)
    # One that lists others only is as good as one that has been started anew.
    read = reader(urls, streamsPrefix="forgotten/", catalogue=urls["admin"])
    read.prepareForTriggerAvailableNow()
    last = read.latestOffset(end, ReadAllAvailable())
    batches = [batch for task in read.partitions(end, last) for batch in read.read(task)]
    assert [row["value"] for batch in batches for row in batch.to_pylist()] == ["2"]
    append(gateway, "f/1", 3)
    assert read.latestOffset(last, ReadAllAvailable()) == last
    read.stop()


def test_what_is_no_admin_port_is_told(urls: Mapping[str, str]) -> None:
    read = reader(urls, streamsPrefix="a/", catalogue=urls["gateway"])
    with pytest.raises(DurableStreamsError, match="catalogue"):
        read.latestOffset(read.initialOffset(), ReadAllAvailable())
    read.stop()
