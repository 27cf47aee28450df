"""Records in protobuf, held to the messages that S2's SDK generates from S2's own definitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import s2_sdk._generated.s2.v1.s2_pb2 as theirs
from hypothesis import given
from hypothesis import strategies as st
from s2_sdk import _mappers as mappers

from gateway.s2 import protobuf, s2_pb2
from gateway.s2.protobuf import BadProtobuf, InvalidProtobuf
from gateway.s2.records import (
    MAX_BATCH_RECORDS,
    AppendAck,
    AppendInput,
    ReadBatch,
    StreamPosition,
)
from tests.s2 import messages, strategies

MOST_HEADERS = 100_000
"""A bound in place of the real one, which takes seconds to reach."""


class TestRoundTrips:
    @given(strategies.appends())
    def test_appends(self, append: AppendInput) -> None:
        assert protobuf.decode_append_input(protobuf.encode_append_input(append)) == append

    @given(strategies.acks)
    def test_acks(self, ack: AppendAck) -> None:
        assert protobuf.decode_append_ack(protobuf.encode_append_ack(ack)) == ack

    @given(strategies.batches())
    def test_batches(self, batch: ReadBatch) -> None:
        assert protobuf.decode_read_batch(protobuf.encode_read_batch(batch)) == batch


class TestBesideTheSdk:
    @given(strategies.appends())
    def test_appends_are_the_same_bytes(self, append: AppendInput) -> None:
        message = theirs.AppendInput(
            records=[
                theirs.AppendRecord(
                    timestamp=record.timestamp,
                    headers=[theirs.Header(name=header.name, value=header.value) for header in record.headers],
                    body=record.body,
                )
                for record in append.records
            ],
            match_seq_num=append.match_seq_num,
            fencing_token=append.fencing_token,
        )
        encoded = protobuf.encode_append_input(append)
        assert message.SerializeToString(deterministic=True) == encoded
        assert theirs.AppendInput.FromString(encoded) == message

    @given(strategies.acks)
    def test_acks_are_read_as_they_were_written(self, ack: AppendAck) -> None:
        read = mappers.append_ack_from_proto(theirs.AppendAck.FromString(protobuf.encode_append_ack(ack)))
        pairs = [(read.start, ack.start), (read.end, ack.end), (read.tail, ack.tail)]
        assert all((a.seq_num, a.timestamp) == (b.seq_num, b.timestamp) for a, b in pairs)

    @given(strategies.batches(), st.lists(st.sampled_from([0, 1, 4_095, 4_096, 70_000]), max_size=4))
    def test_batches_are_the_same_bytes(self, batch: ReadBatch, sizes: list[int]) -> None:
        # Bodies of each length follow one another, because large ones are joined with the message as they are.
        sized = [replace(record, body=bytes(size)) for record, size in zip(batch.records, sizes, strict=False)]
        batch = ReadBatch((*sized, *batch.records[len(sized) :]), batch.tail)
        message = theirs.ReadBatch(
            records=[
                theirs.SequencedRecord(
                    seq_num=record.seq_num,
                    timestamp=record.timestamp,
                    headers=[theirs.Header(name=header.name, value=header.value) for header in record.headers],
                    body=record.body,
                )
                for record in batch.records
            ],
            tail=None
            if batch.tail is None
            else theirs.StreamPosition(seq_num=batch.tail.seq_num, timestamp=batch.tail.timestamp),
        )
        encoded = protobuf.encode_read_batch(batch)
        assert message.SerializeToString(deterministic=True) == encoded
        assert theirs.ReadBatch.FromString(encoded) == message
        assert protobuf.decode_read_batch(message.SerializeToString()) == batch

    def test_our_definitions_are_theirs(self) -> None:
        for name, theirs_of in theirs.DESCRIPTOR.message_types_by_name.items():
            ours_of = s2_pb2.DESCRIPTOR.message_types_by_name[name]
            shown = [
                [(field.name, field.number, field.type, field.is_repeated, field.has_presence) for field in one.fields]
                for one in (ours_of, theirs_of)
            ]
            assert shown[0] == shown[1]


class TestBadProtobuf:
    @given(st.binary(max_size=100))
    def test_bytes_are_read_or_refused(self, data: bytes) -> None:
        for decode in (protobuf.decode_append_input, protobuf.decode_append_ack, protobuf.decode_read_batch):
            try:
                decode(data)
            except BadProtobuf:
                pass

    @pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\xff" * 11, b"\x1a\x01\xff"])
    def test_what_is_no_append_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadProtobuf):
            protobuf.decode_append_input(data)

    def test_a_message_has_at_most_a_thousand_records(self) -> None:
        empty = b"\x0a\x00"
        assert len(protobuf.decode_append_input(empty * MAX_BATCH_RECORDS).records) == MAX_BATCH_RECORDS
        assert len(protobuf.decode_read_batch(empty * MAX_BATCH_RECORDS).records) == MAX_BATCH_RECORDS
        with pytest.raises(InvalidProtobuf):
            protobuf.decode_append_input(empty * (MAX_BATCH_RECORDS + 1))
        with pytest.raises(InvalidProtobuf):
            protobuf.decode_read_batch(empty * (MAX_BATCH_RECORDS + 1))

    @pytest.mark.parametrize("in_each", [1, 1_000])
    def test_headers_are_counted_before_they_are_read(self, in_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(protobuf, "MAX_BATCH_HEADERS", MOST_HEADERS)

        def body(field: bytes, headers: int) -> bytes:
            record = (field + b"\x00") * (headers // in_each)
            assert 2**7 <= len(record) < 2**21
            length = bytes((len(record) & 127 | 128, len(record) >> 7 & 127 | 128, len(record) >> 14))
            return (b"\x0a" + length + record) * in_each

        most = MOST_HEADERS - MOST_HEADERS % in_each
        for decode, field in ((protobuf.decode_append_input, b"\x12"), (protobuf.decode_read_batch, b"\x1a")):
            assert sum(len(record.headers) for record in decode(body(field, most)).records) == most
            with pytest.raises(InvalidProtobuf, match=f"{MOST_HEADERS} headers"):
                decode(body(field, most + in_each))

    def test_absent_positions_are_zero(self) -> None:
        zero = StreamPosition(0, 0)
        assert protobuf.decode_append_ack(b"") == AppendAck(zero, zero, zero)
        assert protobuf.decode_read_batch(b"") == ReadBatch(())
        assert protobuf.decode_read_batch(b"\x12\x00") == ReadBatch((), zero)


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    messages.generate(tmp_path)
    for name in messages.GENERATED:
        assert (tmp_path / name).read_text() == (messages.ROOT / name).read_text(), "run make proto"
