"""An origin that says what cannot be: the bridge passes on none of it."""

from __future__ import annotations

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from gateway.s2.records import AppendAck, StreamPosition
from tests.bridge.clients import STREAM, Bridged

PROTOBUF = {"content-type": protobuf.CONTENT_TYPE}
JSON = "application/json"


def ack(start: int, end: int) -> bytes:
    return protobuf.encode_append_ack(
        AppendAck(StreamPosition(start, 1), StreamPosition(end, 1), StreamPosition(end, 1))
    )


@pytest.fixture
def settings() -> dict[str, object]:
    return {"retry_attempts": 0}


@pytest.mark.parametrize("body", [b"", ack(0, 0), ack(0, 2), ack(1, 0)], ids=["empty", "none", "more", "backwards"])
@pytest.mark.parametrize("closes", [False, True])
async def test_an_acknowledgement_of_other_records_is_none(bridged: Bridged, body: bytes, closes: bool) -> None:
    await bridged.writer.create()
    bridged.faults.replace(200, PROTOBUF, body, kind=Call.APPEND)
    if closes:
        answer = await bridged.reader.send("POST", STREAM, None, Stream_Closed="true")
    else:
        answer = await bridged.reader.send("POST", STREAM, b"1", Content_Type=JSON)
    assert answer.status == 502
