"""Streams that a real gateway has counted, and readers that plan by it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pyspark_durable_streams.batch import BatchReader
from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader

MESSAGES: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", StringType())
CHUNKS: Final = StructType().add("stream", StringType()).add("pos", LongType()).add("value", BinaryType())
JSON: Final = {"content-type": "application/json"}
APPEND: Final = 1_000
PAD: Final = "x" * 950
MESSAGE_BYTES: Final = 980
LONG: Final = 20_000
"""Messages of about 20 MB: five of the gateway's replies, and more than one answer speaks of."""
Row = dict[str, Any]


def message(number: int) -> dict[str, Any]:
    return {"n": number, "pad": PAD}


def append(gateway: Client, name: str, begin: int, end: int, make: Callable[[int], Any] = message) -> None:
    for at in range(begin, end, APPEND):
        body = json.dumps([make(n) for n in range(at, min(at + APPEND, end))], separators=(",", ":")).encode()
        assert gateway.request("POST", f"/{name}", JSON, body, retry=False).status == 204


def fill(gateway: Client, name: str, count: int = LONG, make: Callable[[int], Any] = message) -> None:
    """A new stream that the gateway holds all of."""
    assert gateway.request("PUT", f"/{name}", JSON).status == 201
    append(gateway, name, 0, count, make)
    walk(gateway, name)


def walk(gateway: Client, name: str) -> None:
    token, is_at_tail = "-1", False
    while not is_at_tail:
        reply = gateway.request("GET", f"/{name}?offset={token}")
        assert reply.status == 200
        token, is_at_tail = reply.headers["Stream-Next-Offset"], "Stream-Up-To-Date" in reply.headers


def sent(urls: Mapping[str, str], name: str) -> int:
    """Bytes of a stream that the gateway has sent to its readers."""
    admin = Client(ClientConfig(urls["admin"]))
    (row,) = json.loads(admin.request("GET", f"/api/streams?prefix=/{name}").body)["streams"]
    admin.close()
    found: int = row["sent_bytes"]
    return found


def batch(urls: Mapping[str, str], name: str, schema: StructType = MESSAGES, **more: str) -> BatchReader:
    given = {"url": urls["gateway"], "catalogue": urls["admin"], "stream": name, "minPartitions": "3", **more}
    return BatchReader(schema, read_options(given, is_streaming=False))


def following(urls: Mapping[str, str], name: str, **more: str) -> StreamReader:
    given = {
        "url": urls["gateway"],
        "catalogue": urls["admin"],
        "stream": name,
        "startingOffsets": "earliest",
        "maxPollDelay": "0s",
        **more,
    }
    return StreamReader(MESSAGES, read_options(given, is_streaming=True))


def rows(reader: BatchReader | StreamReader, tasks: Sequence[InputPartition]) -> list[Row]:
    there = pickle.loads(pickle.dumps(reader))
    return [
        row for task in tasks for batch in there.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()
    ]


def numbers(found: Sequence[Row]) -> list[int]:
    assert [row["pos"] for row in found] == list(range(found[0]["pos"], found[0]["pos"] + len(found)))
    return [json.loads(row["value"])["n"] for row in found]
