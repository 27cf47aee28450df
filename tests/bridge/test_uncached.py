"""What the bridge itself says and keeps, where no cache stands in front of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.bridge.content import JsonContent
from gateway.origin.s2.calls import Call
from gateway.s2.records import MAX_BATCH_RECORDS
from tests.bridge.clients import STREAM, Bridged, Reader
from tests.s2.edge.clients import BASIN
from tests.waiting import time_passing


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def test_only_the_last_batch_of_a_catch_up_by_sse_is_up_to_date(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(*[b"1"] * MAX_BATCH_RECORDS)
    await bridged.writer.append(b"2")
    events = await plain.events(stream=f"{BASIN}/{STREAM}")
    first, second = await events.control(), await events.control()
    assert (first["streamNextOffset"], first.get("upToDate")) == (at(MAX_BATCH_RECORDS), None)
    assert (second["streamNextOffset"], second.get("upToDate")) == (at(MAX_BATCH_RECORDS + 1), True)
    events.close()


async def test_a_read_from_now_is_not_for_later(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    answer = await plain.read("now", f"{BASIN}/{STREAM}")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "ETag" not in answer.headers


async def test_what_is_known_of_a_stream_is_known_of_it_by_one_token(bridged: Bridged) -> None:
    await bridged.writer.create()
    for token in ("token", "another", "token"):
        await replace(bridged.reader, token=token).read()
    assert repr(bridged.gateway.engine.bridge.sightings) == "<S2Sightings of 2 streams>"


async def test_a_session_confirms_that_the_stream_is_the_same(bridged: Bridged, plain: Reader) -> None:
    stream = f"{BASIN}/{STREAM}"
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    events = await plain.events(stream=stream)
    assert await events.messages(1) == [0]
    await bridged.writer.append(b"1")
    assert await events.messages(1) == [1]
    events.close()
    before = bridged.counters.requests[Call.READ]
    assert (await plain.read(at(0), stream)).json == [0, 1]
    # The records, and that there are no more; without the session the stream would be recognised first.
    assert bridged.counters.requests[Call.READ] - before == 2


async def test_a_fault_of_the_bridge_is_a_502(
    bridged: Bridged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bridged.writer.create()

    def broken(*_: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(JsonContent, "body", broken)
    async with time_passing(bridged.clock):
        assert (await bridged.reader.read()).status == 502
    assert "a bug" in caplog.text


class TestLifetime:
    @pytest.fixture
    def uncached(self) -> dict[str, object]:
        return {"sse_lifetime_s": 1}

    async def test_an_sse_answer_ends_after_its_lifetime(self, bridged: Bridged, plain: Reader) -> None:
        await bridged.writer.create()
        events = await plain.events(stream=f"{BASIN}/{STREAM}")
        assert (await events.control())["upToDate"] is True
        assert await events.next() is None
        await bridged.counters.parked_is(0)


async def test_a_stream_that_is_deleted_here_comes_back_as_another(bridged: Bridged, plain: Reader) -> None:
    """Even if its records have the numbers and the timestamps of those before."""
    stream = f"{BASIN}/{STREAM}"
    tags = []
    for _ in range(2):
        await bridged.writer.create()
        await bridged.writer.append(b"0", timestamp=1_000)
        tags.append((await plain.read(stream=stream)).headers["ETag"])
        assert (await plain.send("DELETE", stream)).status == 204
    assert tags[0] != tags[1]
