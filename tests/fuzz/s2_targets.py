"""The targets of S2's formats: each decoder raises its one error, and what it reads is read again from its encoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.commands.s2_events import BadEvent, EventReader
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import FencingTokenMismatch, Other, SeqNumMismatch, Unwritten, parse_error
from gateway.s2.json_format import BadJson, Format
from gateway.s2.protobuf import BadProtobuf
from gateway.s2.read_query import BadQuery, encode_read_query, parse_read_query
from gateway.s2.records import (
    AppendInput,
    InvalidAppend,
    ReadBatch,
    check_append_input,
    command_of,
    command_record,
    total_metered_bytes,
)
from gateway.s2.session import (
    MAX_BODY_BYTES,
    BadFrame,
    Compression,
    FrameReader,
    Message,
    choose_compression,
    encode_message,
    encode_terminal,
)
from gateway.s2.sse import encode_event
from tests.fuzz.invariants import is_bounded, same_in_slices

TARGETS: Final[dict[str, Callable[[bytes], None]]] = {}


def _target(fuzzed: Callable[[bytes], None]) -> Callable[[bytes], None]:
    TARGETS[fuzzed.__name__] = fuzzed
    return fuzzed


def _refused(error: ValueError) -> None:
    assert "\n" not in str(error)


def _append(append: AppendInput) -> None:
    """An append is the same in every exact encoding, and so is what is wrong with it."""
    assert protobuf.decode_append_input(protobuf.encode_append_input(append)) == append
    encoded = json_format.encode_append_input(append, Format.BASE64)
    assert json_format.decode_append_input(encoded, Format.BASE64) == append
    try:
        check_append_input(append)
    except InvalidAppend as error:
        _refused(error)
        return
    for record in append.records:
        command = command_of(record)
        if command is not None:
            assert command_record(command, record.timestamp) == record


def _batch(batch: ReadBatch) -> None:
    assert protobuf.decode_read_batch(protobuf.encode_read_batch(batch)) == batch
    encoded = json_format.encode_read_batch(batch, Format.BASE64)
    assert json_format.decode_read_batch(encoded, Format.BASE64) == batch


@_target
def s2_json(data: bytes) -> None:
    """`s2/json_format.py` and the bodies of `s2/errors.py`."""
    for format_ in Format:
        try:
            append = json_format.decode_append_input(data, format_)
        except BadJson as error:
            _refused(error)
        else:
            is_bounded(total_metered_bytes(append.records), data, 4, 0)
            _append(append)
        try:
            _batch(json_format.decode_read_batch(data, format_))
        except BadJson as error:
            _refused(error)
    try:
        ack = json_format.decode_append_ack(data)
    except BadJson as error:
        _refused(error)
    else:
        assert json_format.decode_append_ack(json_format.encode_append_ack(ack)) == ack
        assert protobuf.decode_append_ack(protobuf.encode_append_ack(ack)) == ack
    for status in (412, 416, 500):
        assert isinstance(parse_error(status, data), FencingTokenMismatch | Other | SeqNumMismatch | Unwritten)


@_target
def s2_protobuf(data: bytes) -> None:
    """`s2/protobuf.py`."""
    try:
        append = protobuf.decode_append_input(data)
    except BadProtobuf as error:
        _refused(error)
    else:
        is_bounded(total_metered_bytes(append.records), data, 4, 0)
        _append(append)
    try:
        batch = protobuf.decode_read_batch(data)
    except BadProtobuf as error:
        _refused(error)
    else:
        _batch(batch)
    try:
        ack = protobuf.decode_append_ack(data)
    except BadProtobuf as error:
        _refused(error)
    else:
        assert protobuf.decode_append_ack(protobuf.encode_append_ack(ack)) == ack


@_target
def s2_session(data: bytes) -> None:
    """`s2/session.py`: frames are the same however they are cut, also before a bad one, and are encoded to the same."""

    def run(pieces: list[bytes]) -> list[object]:
        reader = FrameReader()
        found: list[object] = []
        try:
            for piece in pieces:
                found.extend(reader.feed(piece))
            reader.finish()
        except BadFrame as error:
            _refused(error)
            found.append("bad")
        return found

    frames = same_in_slices(data, run)
    for number, frame in enumerate(frames):
        if isinstance(frame, Message):
            assert len(frame.body) <= MAX_BODY_BYTES
            for compression in Compression:
                again = encode_message(frame.body, compression, is_reconnect_advised=frame.is_reconnect_advised)
                assert run([again]) == [frame]
        else:
            assert number == len(frames) - 1
            assert frame == "bad" or run([encode_terminal(frame.status, frame.body)]) == [frame]
    choose_compression(data.decode("utf-8", "surrogateescape"))


@_target
def s2_sse(data: bytes) -> None:
    """`s2/sse_reader.py`: events survive being encoded and read again."""

    def run(pieces: list[bytes]) -> list[object]:
        reader = EventReader(Format.BASE64)
        found: list[object] = []
        try:
            for piece in pieces:
                found.extend(reader.feed(piece))
        except BadEvent as error:
            _refused(error)
            return ["bad"]
        return found

    for event in same_in_slices(data, run):
        if event != "bad":
            assert run([encode_event(event, Format.BASE64)]) == [event]


@_target
def s2_query(data: bytes) -> None:
    """`s2/read_query.py`: the canonical form means the same."""
    try:
        query = parse_read_query(data.decode("utf-8", "surrogateescape"))
    except BadQuery as error:
        _refused(error)
        return
    assert parse_read_query(encode_read_query(query)) == query
    assert query.unary().unary() == query.unary()
