"""The origin's replies to a follower, by plain values."""

from __future__ import annotations

import base64

import pytest

from gateway.errors import UpstreamBroken, UpstreamUnavailable
from gateway.live.replies import FollowingEnded, ReplyEvents, refusal
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.sse import SseTooLarge
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape

CONTROL = b'event: control\ndata: {"streamNextOffset":"%d"}\n\n'


def data(*values: bytes) -> bytes:
    return b"".join(b"event: data\ndata:%s\n\n" % base64.b64encode(value) for value in values)


@pytest.fixture
def stream() -> Stream:
    return Stream(StreamKey(Group("http://origin", "/s"), "", Partition("")), Tape())


@pytest.fixture
def events() -> ReplyEvents:
    return ReplyEvents(Tape(), 20_000, is_base64=True)


def read(events: ReplyEvents, chunk: bytes) -> list[tuple[str, list[bytes]]]:
    return [(control.next_offset, pieces) for control, pieces in events.read_chunk(chunk)]


def test_data_counts_once_its_control_event_has_arrived(events: ReplyEvents) -> None:
    assert read(events, data(b"a") + CONTROL % 1 + data(b"b", b"", b"c")) == [("1", [b"a"])]
    assert events.is_waiting
    assert read(events, CONTROL % 3) == [("3", [b"b", b"c"])]
    assert not events.is_waiting


def test_only_a_comment_between_events_is_silent(events: ReplyEvents) -> None:
    for chunk, is_silent in (
        (b": still here\n\n", True),
        (data(b"a"), False),
        (b": still here\n\n", False),
        (CONTROL % 1, False),
        (b"event: da", False),
    ):
        read(events, chunk)
        assert events.is_silent is is_silent, chunk


def test_a_large_binary_event_makes_the_stream_one_of_bulk(events: ReplyEvents) -> None:
    read(events, data(b"a") + CONTROL % 1)
    assert not events.is_bulk
    read(events, data(b"a" * 8_192) + CONTROL % 2)
    assert events.is_bulk


@pytest.mark.parametrize("flood", [data(b"a" * 10_000, b"a" * 10_000), data(*[b""] * 400), b"data:" + b"a" * 50_000])
def test_what_was_complete_before_too_much_data_is_kept(events: ReplyEvents, flood: bytes) -> None:
    read_before = events.read_chunk(data(b"a") + CONTROL % 1 + data(b"b"))
    assert next(read_before)[1] == [b"a"]
    assert next(read_before, None) is None
    with pytest.raises(SseTooLarge):
        read(events, flood)


@pytest.mark.parametrize(
    ("status", "at", "expected"),
    [
        (404, "0", End.DELETED),
        (410, "5", End.GONE),
        (410, None, End.GONE),
        (410, "0", UpstreamUnavailable),
        (429, "0", UpstreamUnavailable),
        (503, None, UpstreamUnavailable),
        (500, "0", UpstreamBroken),
        (403, "0", UpstreamBroken),
    ],
)
def test_a_refusal_ends_the_stream_only_if_it_is_of_the_stream(
    stream: Stream, status: int, at: str | None, expected: End | type[Exception]
) -> None:
    stream.tape.reached("5", is_closed=False)
    error = refusal(status, at, stream, stream.version)
    assert error.why is expected if isinstance(error, FollowingEnded) else type(error) is expected


@pytest.mark.parametrize("status", [404, 410])
def test_a_refusal_from_before_an_acknowledged_write_ends_nothing(stream: Stream, status: int) -> None:
    asked = stream.version
    stream.acknowledged("5", is_closed=False, query="")
    assert isinstance(refusal(status, None, stream, asked), UpstreamUnavailable)
