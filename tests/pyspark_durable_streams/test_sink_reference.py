"""The sink's producers before the protocol's own reference server, and before a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
import urllib3

from pyspark_durable_streams.errors import Refused, StreamClosed
from pyspark_durable_streams.sender import Batch, Sender
from pyspark_durable_streams.write_options import WriteOptions
from tests.node_tools import node_packages, node_tools
from tests.pyspark_durable_streams.beside import read_all
from tests.served import forked_dev_gateway, served


@pytest.fixture(scope="module", params=["reference", "gateway"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "gateway":
        with served(forked_dev_gateway(), "gateway") as urls:
            yield urls["gateway"]
        return
    tools = node_tools()
    command = [tools.node, "reference_server.mjs"]
    with served(command, "reference", environment=tools.environment, cwd=node_packages()) as urls:
        yield urls["reference"]


def table(stream: str, *numbers: int) -> pa.Table:
    return pa.table(
        {
            "stream": pa.array([stream] * len(numbers), pa.large_string()),
            "key0": pa.array(numbers, pa.int64()),
            "value": pa.array([str(number).encode() for number in numbers], pa.large_binary()),
        }
    )


def sender(url: str, **options: str) -> Sender:
    return Sender(
        WriteOptions.of(
            {"url": url, "create": "application/json", "orderBy": "n", "maxBatchBytes": "40", **options},
            is_streaming=False,
        )
    )


def numbers(url: str, stream: str) -> list[int]:
    http = urllib3.PoolManager()
    try:
        return [message for piece in read_all(http, f"{url}/{stream}") for message in json.loads(piece)]
    finally:
        http.clear()


def test_a_batch_is_taken_once_however_often_it_comes(url: str) -> None:
    with sender(url) as sends:
        first = sends.send(table("once", *range(100)), Batch("query", 0), may_come_again=True)
        again = sends.send(table("once", *range(100)), Batch("query", 0), may_come_again=True)
        sends.send(table("once", *range(100, 200)), Batch("query", 3), may_come_again=True)

    assert numbers(url, "once") == list(range(200))
    assert first["once"].duplicates == 0
    assert again["once"].duplicates == again["once"].posts > 5


def test_a_run_that_was_overtaken_is_refused(url: str) -> None:
    with sender(url) as sends:
        sends.send(table("overtaken", 1), Batch("query", 4), may_come_again=True)
        with pytest.raises(Refused, match="already has batch 4 of this query, and this is batch 3"):
            sends.send(table("overtaken", 2), Batch("query", 3), may_come_again=True)

    assert numbers(url, "overtaken") == [1]


def test_a_save_that_closes_can_be_run_again_and_nobody_else_can_write(url: str) -> None:
    for _ in range(2):
        with sender(url, close="true", writeId="load") as sends:
            sent = sends.send(table("closed", *range(50)), Batch("load", 0), may_come_again=True)
            sends.close({stream: by.posts for stream, by in sent.items()}, Batch("load", 0))

    assert numbers(url, "closed") == list(range(50))
    with sender(url) as sends, pytest.raises(StreamClosed, match="closed: the stream is closed"):
        sends.send(table("closed", 1), Batch("query", 0), may_come_again=True)
