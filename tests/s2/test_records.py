"""Metered sizes, command records, and the limits of an append."""

from __future__ import annotations

import pytest
import s2_sdk
from hypothesis import given
from hypothesis import strategies as st

from gateway.s2.records import (
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    MAX_U64,
    AppendInput,
    AppendRecord,
    Fence,
    Header,
    InvalidAppend,
    Record,
    Trim,
    check_append_input,
    command_of,
    command_record,
    is_command,
    metered_bytes,
    total_metered_bytes,
)
from tests.s2 import strategies

commands = st.builds(Trim, strategies.numbers) | st.builds(Fence, st.text(max_size=9))


def command(value: bytes, body: bytes) -> AppendRecord:
    return AppendRecord(body, (Header(b"", value),))


class TestMeteredSize:
    def test_a_record_is_8_and_a_header_2_more_than_their_bytes(self) -> None:
        assert metered_bytes(AppendRecord(b"")) == 8
        assert metered_bytes(AppendRecord(b"body", (Header(b"n", b"val"), Header(b"", b"")))) == 8 + 4 + 2 + 4 + 2

    @given(strategies.appends())
    def test_it_is_that_of_the_sdk(self, append: AppendInput) -> None:
        theirs = [
            s2_sdk.Record(record.body, headers=[(header.name, header.value) for header in record.headers])
            for record in append.records
        ]
        assert total_metered_bytes(append.records) == s2_sdk.metered_bytes(theirs)


class TestCommands:
    @given(commands)
    def test_a_command_survives_its_record(self, command: Fence | Trim) -> None:
        record = command_record(command)
        assert is_command(record)
        assert command_of(record) == command
        assert command_of(Record(1, 2, record.headers, record.body)) == command

    @given(commands)
    def test_the_sdk_makes_the_same_records(self, command: Fence | Trim) -> None:
        match command:
            case Fence(token):
                theirs = s2_sdk.CommandRecord.fence(token)
            case Trim(seq_num):
                theirs = s2_sdk.CommandRecord.trim(seq_num)
        ours = command_record(command)
        assert (theirs.body, theirs.headers) == (ours.body, [(header.name, header.value) for header in ours.headers])

    def test_a_record_of_data_is_none(self) -> None:
        assert command_of(AppendRecord(b"fence", (Header(b"fence", b""),))) is None
        assert command_of(AppendRecord(b"")) is None

    def test_two_headers_are_not_a_command(self) -> None:
        assert command_of(AppendRecord(b"", (Header(b"", b"fence"), Header(b"n", b"")))) is None

    def test_an_empty_fence_clears_the_token(self) -> None:
        assert command_of(command(b"fence", b"")) == Fence("")

    @pytest.mark.parametrize(
        "record",
        [
            command(b"fence", b"t" * 37),
            command(b"fence", b"\xff"),
            command(b"trim", b"1234567"),
            command(b"trim", b"123456789"),
            command(b"drop", b""),
            command(b"", b""),
        ],
    )
    def test_a_bad_command_is_refused(self, record: AppendRecord) -> None:
        with pytest.raises(InvalidAppend):
            command_of(record)
        with pytest.raises(InvalidAppend):
            check_append_input(AppendInput((record,)))

    def test_tokens_and_trim_points_reach_their_limits(self) -> None:
        assert command_of(command(b"fence", "ü".encode() * 18)) == Fence("ü" * 18)
        assert command_of(command_record(Trim(MAX_U64))) == Trim(MAX_U64)


class TestLimits:
    def test_an_append_has_one_to_a_thousand_records(self) -> None:
        check_append_input(AppendInput((AppendRecord(b""),)))
        check_append_input(AppendInput((AppendRecord(b""),) * MAX_BATCH_RECORDS))
        for count in (0, MAX_BATCH_RECORDS + 1):
            with pytest.raises(InvalidAppend, match="1 to 1000 records"):
                check_append_input(AppendInput((AppendRecord(b""),) * count))

    def test_an_append_has_a_mebibyte_of_metered_bytes(self) -> None:
        check_append_input(AppendInput((AppendRecord(bytes(MAX_BATCH_METERED_BYTES - 8)),)))
        with pytest.raises(InvalidAppend, match="1048576 metered bytes"):
            check_append_input(AppendInput((AppendRecord(bytes(MAX_BATCH_METERED_BYTES - 7)),)))
        half = AppendRecord(bytes(MAX_BATCH_METERED_BYTES // 2 - 8))
        check_append_input(AppendInput((half, half)))
        with pytest.raises(InvalidAppend):
            check_append_input(AppendInput((half, half, AppendRecord(b""))))

    def test_a_fencing_token_has_36_bytes(self) -> None:
        check_append_input(AppendInput((AppendRecord(b""),), fencing_token="ü" * 18))
        with pytest.raises(InvalidAppend, match="36 bytes"):
            check_append_input(AppendInput((AppendRecord(b""),), fencing_token="ü" * 18 + "x"))

    def test_only_a_command_has_an_empty_name(self) -> None:
        check_append_input(AppendInput((command_record(Trim(1)), AppendRecord(b"", (Header(b"n", b""),)))))
        with pytest.raises(InvalidAppend, match="empty name"):
            check_append_input(AppendInput((AppendRecord(b"", (Header(b"n", b""), Header(b"", b"fence"))),)))
