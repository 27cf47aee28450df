"""Reads of one stream: with any chunk limit, the pieces join to the bytes written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.origin.positions import FRAME_BYTES, Position, parse_token
from gateway.origin.refusals import BadOffset, Trimmed
from gateway.origin.streams import Lifetime, Slice, Stream
from tests.origin.streams import stream_of

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
BATCHES = st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=5), max_size=6)
LIMITS = st.integers(1, 30)


def slices_of(stream: Stream, limit: int) -> list[Slice]:
    found = [stream.read(None, limit)]
    while not found[-1].up_to_date:
        found.append(stream.read(parse_token(found[-1].end.token), limit))
    return found


@given(BODIES, LIMITS)
def test_chunks_join_to_the_bytes_written(bodies: list[bytes], limit: int) -> None:
    stream = stream_of(bodies)
    found = slices_of(stream, limit)
    assert b"".join(part.body() for part in found) == b"".join(bodies)
    assert all(len(part.body()) <= limit for part in found)


@given(BODIES, LIMITS)
def test_offsets_grow_and_are_as_long_as_each_other(bodies: list[bytes], limit: int) -> None:
    tokens = [part.end.token for part in slices_of(stream_of(bodies), limit)]
    assert tokens == sorted(set(tokens))
    assert len({len(token) for token in tokens}) == 1


@given(BODIES, LIMITS)
def test_every_offset_handed_out_leads_to_the_rest(bodies: list[bytes], limit: int) -> None:
    stream = stream_of(bodies)
    whole = b"".join(bodies)
    read = 0
    for part in slices_of(stream, limit):
        read += len(part.body())
        assert stream.read(part.end, 10_000).body() == whole[read:]


@given(st.lists(st.text(min_size=1, max_size=20), max_size=6), LIMITS)
def test_text_is_cut_between_characters(texts: list[str], limit: int) -> None:
    encodable = [text for text in texts if text.isprintable()]
    parts = slices_of(stream_of([text.encode() for text in encodable], "text/plain"), limit)
    assert "".join(part.body().decode() for part in parts) == "".join(encodable)


@given(BATCHES, LIMITS)
def test_json_is_cut_between_messages(batches: list[list[str]], limit: int) -> None:
    stream = stream_of([json.dumps(batch).encode() for batch in batches], "application/json")
    parts = [json.loads(part.body()) for part in slices_of(stream, limit)]
    assert [message for part in parts for message in part] == [message for batch in batches for message in batch]
    assert all(part for part in parts) or not batches


@given(BODIES.filter(bool), LIMITS, st.data())
def test_a_trimmed_stream_begins_where_it_was_trimmed(bodies: list[bytes], limit: int, data: st.DataObject) -> None:
    stream = stream_of(bodies)
    ends = [part.end for part in slices_of(stream, limit)]
    upto = data.draw(st.sampled_from(ends))
    rest = stream.read(upto, 10_000).body()
    stream.trim(upto)
    assert stream.read(None, 10_000).body() == rest
    assert stream.read(upto, 10_000).body() == rest
    with pytest.raises(Trimmed):
        stream.read(Position(0, 0), 10_000)


@given(BATCHES.filter(bool), LIMITS, st.data())
def test_a_position_inside_a_json_batch_survives_a_trim(
    batches: list[list[str]], limit: int, data: st.DataObject
) -> None:
    stream = stream_of([json.dumps(batch).encode() for batch in batches], "application/json")
    ends = [part.end for part in slices_of(stream, limit)]
    rests = {end: stream.read(end, 10_000).body() for end in ends}
    upto = data.draw(st.sampled_from(ends))
    stream.trim(upto)
    assert {end: stream.read(end, 10_000).body() for end in ends if end >= upto} == {
        end: rest for end, rest in rests.items() if end >= upto
    }


@given(BODIES.filter(bool), st.integers(1, FRAME_BYTES), st.data())
def test_a_token_inside_the_frame_of_a_record_has_the_whole_record(
    bodies: list[bytes], step: int, data: st.DataObject
) -> None:
    # As the Yjs server makes of a snapshot's offset: one more than a position, and never a position itself.
    stream = stream_of(bodies)
    ends = [stream.read(None, 10_000).pieces[number].end for number in range(len(bodies))]
    number = data.draw(st.integers(0, len(bodies) - 1))
    found = stream.read(Position(ends[number].ordinal, ends[number].at + step), 10_000)
    assert (found.body(), found.end, found.up_to_date) == (b"".join(bodies[number + 1 :]), stream.tail, True)


@given(BODIES.filter(bool), st.integers(0, 8), st.integers(0, 400))
def test_any_token_has_every_record_that_ends_after_it(bodies: list[bytes], ordinal: int, at: int) -> None:
    stream = stream_of(bodies)
    asked = Position(ordinal, at)
    whole = [piece for piece in stream.read(None, 10_000).pieces if piece.end > asked]
    found = stream.read(asked, 10_000)
    assert found.end == stream.tail
    assert [piece.end for piece in found.pieces] == [piece.end for piece in whole]
    assert all(piece.payload == full.payload for piece, full in zip(found.pieces[1:], whole[1:], strict=True))
    assert not whole or whole[0].payload.endswith(found.pieces[0].payload)


@pytest.mark.parametrize(("at", "rest"), [(0, [1, "ab"]), (5, [1, "ab"]), (6, ["ab"]), (7, ["ab"]), (99, [1, "ab"])])
def test_a_token_between_two_json_messages_has_whole_messages(at: int, rest: list[object]) -> None:
    stream = stream_of([b'[1,"ab"]'], "application/json")
    assert json.loads(stream.read(Position(0, at), 10).body()) == rest


def test_a_fork_or_a_trim_needs_a_position() -> None:
    stream = stream_of([b'[1,"ab"]', b"[2]"], "application/json")
    for position in (Position(0, 2), Position(0, 7), Position(1, 1), Position(0, 99)):
        with pytest.raises(BadOffset):
            stream.locate(position)
        with pytest.raises(BadOffset):
            stream.trim(position)


def test_an_offset_beyond_the_tail_is_answered_with_the_tail() -> None:
    stream = stream_of([b"abc"])
    found = stream.read(Position(9, 9), 10)
    assert (found.body(), found.end, found.up_to_date) == (b"", stream.tail, True)


def test_a_live_reader_keeps_a_sliding_window_open() -> None:
    stream = Stream("/s", "i", "text/plain", Lifetime(ttl_s=10), now=0.0)
    assert not stream.is_expired(9.9)
    stream.enter(9.9)
    assert not stream.is_expired(1_000.0)
    stream.leave(1_000.0)
    assert not stream.is_expired(1_009.9)
    assert stream.is_expired(1_010.0)


def test_a_live_reader_does_not_put_off_an_absolute_expiry() -> None:
    stream = Stream("/s", "i", "text/plain", Lifetime(expires_at=10.0), now=0.0)
    stream.enter(9.0)
    assert stream.is_expired(10.0)
