"""Frames that are kept for the next readers are bounded, those of one stream and those of all."""

from __future__ import annotations

from gateway.live.frames import Frames, KeptFrames
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape

BODY = b"x" * 100_000


def frames_of(number: int, all_kept: KeptFrames) -> Frames:
    """The frames of a stream, one of which is kept."""
    stream = Stream(StreamKey(Group("http://o", f"/{number}"), "", Partition("")), Tape())
    stream.learn_type("application/octet-stream")
    stream.tape.store("-1", "0001", (BODY,), 0.0)
    frames = Frames(stream, all_kept)
    frames.frame("-1", stream.tape.read("-1", 1 << 20), is_current=True, is_closed=False, cursor="1")
    return frames


def test_frames_of_many_streams_are_kept_within_one_bound() -> None:
    all_kept = KeptFrames(10 * len(BODY))
    found = [frames_of(number, all_kept) for number in range(30)]
    assert all_kept.size == sum(frames.kept_bytes for frames in found) <= 10 * len(BODY)
    assert found[0].kept_bytes == 0
    assert found[-1].kept_bytes > len(BODY)


def test_a_stream_whose_readers_have_left_is_not_counted() -> None:
    all_kept = KeptFrames(10 * len(BODY))
    found = [frames_of(number, all_kept) for number in range(3)]
    for frames in found:
        all_kept.forget_frames(frames)
    assert all_kept.size == 0


def test_readers_at_two_places_are_sent_frames_of_their_own() -> None:
    stream = Stream(StreamKey(Group("http://o", "/s"), "", Partition("")), Tape())
    stream.learn_type("application/octet-stream")
    stream.tape.store("-1", "0001", (b"a",), 0.0)
    stream.tape.store("0001", "0002", (b"b",), 0.0)
    frames = Frames(stream, KeptFrames(1_000))

    def frame(start: str) -> object:
        return frames.frame(start, stream.tape.read(start, 10), is_current=True, is_closed=False, cursor="1")

    assert frame("-1") != frame("0001")


def test_a_frame_is_its_data_event_and_a_control_event_with_where_it_ends() -> None:
    stream = Stream(StreamKey(Group("http://o", "/s"), "", Partition("")), Tape())
    stream.learn_type("text/plain")
    stream.tape.store("-1", "0001", (b"a",), 0.0)
    frames = Frames(stream, KeptFrames(1_000))
    reading = stream.tape.read("-1", 10)
    for is_current, is_closed in ((False, False), (True, False), (True, True)):
        frame = frames.frame("-1", reading, is_current=is_current, is_closed=is_closed, cursor="7")
        assert isinstance(frame, bytes)
        data, control = frame.split(b"event: ")[1:]
        assert data.startswith(b"data")
        assert control.startswith(b"control")
        assert b'"streamNextOffset":"0001"' in control
        assert (b'"upToDate":true' in control, b'"streamClosed":true' in control) == (is_current, is_closed)
