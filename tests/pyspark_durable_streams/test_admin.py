"""What is believed of a gateway's counts, and how often one that tells none is asked."""

from __future__ import annotations

import json
from typing import Any, cast

from pyspark_durable_streams.admin import AdminApi
from pyspark_durable_streams.client import Client, Reply
from pyspark_durable_streams.errors import Unreachable

RUN = {"offset": "-1", "next": "5", "messages": 3, "bytes": 30, "crc32": 7}


class Gateway:
    """Answers as the test sets it, or not at all."""

    def __init__(self) -> None:
        self.runs: list[Any] | None = [RUN]
        self.paths: list[str] = []

    def request(self, method: str, path: str, **more: Any) -> Reply:
        self.paths.append(path)
        if self.runs is None:
            raise Unreachable("nobody there")
        return Reply(200, {}, json.dumps({"runs": self.runs}).encode())


def told(api: AdminApi, *, is_json: bool = True) -> list[int]:
    return [run.units for run in api.runs("a b", "-1", 1_024, '"x"', is_json=is_json)]


def test_runs_are_asked_for_by_the_origins_path_and_a_replys_tag() -> None:
    gateway = Gateway()
    api = AdminApi(cast("Client", gateway), "/below/", print)
    assert told(api) == [3]
    assert gateway.paths == ["/api/counts?stream=%2Fbelow%2Fa%2520b&etag=%22x%22&offset=-1&run_bytes=1024"]


def test_messages_of_what_is_no_json_and_bytes_of_what_is_are_nobodys() -> None:
    gateway = Gateway()
    api = AdminApi(cast("Client", gateway), "", print)
    assert told(api, is_json=False) == []
    gateway.runs = [{**RUN, "messages": None}]
    assert told(api, is_json=False) == [30]
    assert told(api) == []
    # Neither is a reason to ask no more.
    assert len(gateway.paths) == 3


def test_who_tells_no_counts_is_spoken_of_once_and_asked_ever_more_seldom_until_it_does() -> None:
    gateway, said = Gateway(), list[str]()
    api = AdminApi(cast("Client", gateway), "", said.append)
    gateway.runs = None

    def asked(batches: int) -> list[int]:
        found = []
        for number in range(batches):
            before = len(gateway.paths)
            api.begin_batch()
            assert told(api) == told(api)
            if len(gateway.paths) > before:
                found.append(number)
        return found

    assert asked(20) == [0, 1, 3, 7, 15]
    assert len(said) == 1
    seldom = asked(200)
    assert [later - sooner for sooner, later in zip(seldom[-3:], seldom[-2:], strict=False)] == [33, 33]
    gateway.runs = [RUN]
    asked(33)
    assert told(api) == [3]
    assert asked(2) == [0, 1]
    gateway.runs = None
    assert asked(3) == [0, 1]
    assert len(said) == 2


def test_who_tells_counts_of_some_streams_alone_is_spoken_of_once_all_the_same() -> None:
    gateway, said = Gateway(), list[str]()
    api = AdminApi(cast("Client", gateway), "", said.append)
    for _ in range(20):
        api.begin_batch()
        gateway.runs = [RUN]
        told(api)
        gateway.runs = None
        told(api)
    assert len(said) == 1
    assert len(gateway.paths) == 2 * 5
