"""Reads of bridged streams: catch-up, long-poll and SSE, cached and collapsed."""

from __future__ import annotations

from tests.bridge.clients import Bridged


async def test_records_are_read_as_messages(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b'{"n": 1}', b"2")
    answer = await bridged.reader.read()
    assert answer.json == [{"n": 1}, 2]
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.end == "00000000000000000002"
    assert answer.is_up_to_date
