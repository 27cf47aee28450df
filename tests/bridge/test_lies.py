"""An origin that says what cannot be: the bridge passes on none of it."""

from __future__ import annotations

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf, session
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.s2.records import AppendAck, ReadBatch, Record, StreamPosition
from tests.bridge.clients import STREAM, Bridged, Reader
from tests.s2.edge.clients import BASIN

PROTOBUF = {"content-type": protobuf.CONTENT_TYPE}
JSON = "application/json"


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


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


@pytest.mark.parametrize("status", [0, 99, 200, 204, 304, 412, 416, 600, 65535])
async def test_a_session_ends_with_an_error_of_http(bridged: Bridged, plain: Reader, status: int) -> None:
    await bridged.writer.create()
    frame = session.encode_terminal(status, error_body(S2ErrorCode.OTHER, "a lie"))
    bridged.faults.replace(200, {"content-type": session.CONTENT_TYPE}, frame, kind=Call.READ_SESSION)
    assert (await plain.read(stream=f"{BASIN}/{STREAM}", live="sse")).status == 502


@pytest.mark.parametrize("status", [412, 416])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"tail":1}', b'{"seq_num_mismatch":-1}'])
async def test_a_condition_that_nothing_was_said_of_is_no_answer(bridged: Bridged, status: int, body: bytes) -> None:
    await bridged.writer.create()
    bridged.faults.replace(status, {"content-type": JSON}, body, times=None)
    assert (await bridged.reader.read()).status == 502
    assert (await bridged.reader.send("HEAD")).status == 502
    assert (await bridged.reader.send("POST", STREAM, b"1", Content_Type=JSON)).status == 502


async def test_a_401_says_what_is_wanted(bridged: Bridged) -> None:
    await bridged.writer.create()
    bridged.faults.replace(401, {"content-type": JSON}, b'{"code":"x","message":"no"}', times=None)
    answer = await bridged.reader.read()
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_reads_that_bring_nothing_are_no_answer(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    empty = protobuf.encode_read_batch(ReadBatch(()))
    bridged.faults.replace(200, PROTOBUF, empty, kind=Call.READ, times=None)
    assert (await bridged.reader.read()).status == 502


async def test_a_session_that_goes_back_is_of_another_stream(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1", b"2")
    frame = session.encode_message(protobuf.encode_read_batch(ReadBatch((Record(0, 1, (), b"0"),))))
    bridged.faults.replace(200, {"content-type": session.CONTENT_TYPE}, frame, kind=Call.READ_SESSION)
    assert (await plain.read(at(2), f"{BASIN}/{STREAM}", "sse")).status == 410


async def test_a_redirect_is_not_followed(bridged: Bridged) -> None:
    await bridged.writer.create()
    bridged.faults.replace(307, {"location": f"{bridged.reader.url}/elsewhere"}, b"", times=None)
    assert (await bridged.reader.read()).status == 502
    assert (await bridged.reader.send("POST", STREAM, b"1", Content_Type=JSON)).status == 502


async def test_what_the_origin_says_of_coming_back_is_passed_on(bridged: Bridged) -> None:
    for status, code in ((409, "transaction_conflict"), (429, "rate_limited"), (503, "unavailable")):
        headers = {"content-type": JSON, "retry-after": "7"}
        bridged.faults.replace(status, headers, b'{"code":"%s","message":"no"}' % code.encode(), times=1)
        assert (await bridged.reader.send("PUT", STREAM)).headers["Retry-After"] == "7"


class TestSilence:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"retry_attempts": 0, "first_byte_timeout_s": 0.1, "live_first_byte_timeout_s": 0.1}

    async def test_an_origin_that_does_not_answer_is_a_504(self, bridged: Bridged) -> None:
        await bridged.writer.create()
        bridged.faults.hold()
        assert (await bridged.reader.read()).status == 504
        assert (await bridged.reader.send("HEAD")).status == 504
        assert (await bridged.reader.send("PUT", STREAM)).status == 504
        assert (await bridged.reader.send("POST", STREAM, b"1", Content_Type=JSON)).status == 504
        assert (await bridged.reader.send("DELETE")).status == 504
        assert repr(bridged.gateway.engine.tasks) == "0 tasks: "
