"""Session frames, and the SDK's reading and writing of the same."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from s2_sdk import S2ServerError
from s2_sdk._s2s import _protocol as sdk
from s2_sdk._types import Compression as SdkCompression

from gateway.s2.protobuf import encode_read_batch
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_U64, Header, ReadBatch, Record, total_metered_bytes
from gateway.s2.session import (
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    MIN_COMPRESSED_BYTES,
    BadFrame,
    Compression,
    Frame,
    FrameReader,
    Message,
    Terminal,
    choose_compression,
    encode_message,
    encode_terminal,
)

bodies = st.binary(max_size=60) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 600)
)
messages = st.builds(Message, bodies, st.booleans())
compressions = st.sampled_from(Compression)
GZIPPED = gzip.compress(b"x", mtime=0)
"""The name of a test has these bytes, and every process that collects it has to give it the same name."""


def encode(message: Message, compression: Compression = Compression.NONE) -> bytes:
    return encode_message(message.body, compression, is_reconnect_advised=message.is_reconnect_advised)


def frame(flags: int, body: bytes) -> bytes:
    return (1 + len(body)).to_bytes(3) + bytes((flags,)) + body


def read(data: bytes, cuts: Sequence[int] = ()) -> list[Frame | str]:
    """The frames of a direction that arrives in pieces, then the word "bad" if a bad one ends it."""
    reader = FrameReader()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found: list[Frame | str] = []
    try:
        for start, end in pairwise(edges):
            found += reader.feed(data[start:end])
        reader.finish()
    except BadFrame as error:
        assert "\n" not in str(error)
        found.append("bad")
    return found


def taken(data: bytes) -> list[Frame | str]:
    """The frames of one `feed`, up to a bad one."""
    reader = FrameReader()
    found: list[Frame | str] = []
    try:
        found.extend(reader.feed(data))
    except BadFrame:
        found.append("bad")
    return found


class TestFrames:
    @given(st.lists(st.tuples(messages, compressions), max_size=5), st.lists(st.integers(0, 400), max_size=8))
    def test_frames_survive_in_any_pieces(self, sent: list[tuple[Message, Compression]], cuts: list[int]) -> None:
        data = b"".join(encode(message, compression) for message, compression in sent)
        assert read(data, cuts) == [message for message, _ in sent]

    def test_a_frame_byte_by_byte(self) -> None:
        data = encode_message(b"one") + encode_terminal(503, b"{}")
        assert read(data, range(len(data))) == [Message(b"one"), Terminal(503, b"{}")]

    def test_what_is_on_the_wire(self) -> None:
        assert encode_message(b"ab") == b"\x00\x00\x03\x00ab"
        assert encode_message(b"", is_reconnect_advised=True) == b"\x00\x00\x01\x10"
        assert encode_terminal(416, b"{}") == b"\x00\x00\x05\x80\x01\xa0{}"
        assert encode_message(bytes(2000), Compression.ZSTD)[3] == 0b0010_0000
        assert encode_message(bytes(2000), Compression.GZIP)[3] == 0b0100_0000

    @pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.GZIP])
    def test_small_bodies_and_those_that_do_not_shrink_are_not_compressed(self, compression: Compression) -> None:
        small = bytes(MIN_COMPRESSED_BYTES - 1)
        assert encode_message(small, compression) == encode_message(small)
        assert len(encode_message(bytes(MIN_COMPRESSED_BYTES), compression)) < 100
        noise = random.Random(1).randbytes(5_000)
        assert encode_message(noise, compression) == encode_message(noise)

    def test_nothing_is_read_after_a_terminal_frame(self) -> None:
        reader = FrameReader()
        last = encode_terminal(500, b"{}")
        assert list(reader.feed(last + encode_message(b"x"))) == [Terminal(500, b"{}")]
        assert list(reader.feed(b"\xff\xff\xff\xff")) == []
        reader.finish()

    def test_a_terminal_frame_may_have_no_body(self) -> None:
        assert read(encode_terminal(408, b"")) == [Terminal(408, b"")]

    def test_frames_that_were_not_taken_come_with_the_next_feed(self) -> None:
        reader = FrameReader()
        first = next(iter(reader.feed(encode_message(b"1") + encode_message(b"2"))))
        assert first == Message(b"1")
        assert list(reader.feed(encode_message(b"3"))) == [Message(b"2"), Message(b"3")]

    def test_reserved_bits_are_ignored(self) -> None:
        assert read(frame(0b0000_1111, b"x")) == [Message(b"x")]


class TestBadFrames:
    @pytest.mark.parametrize(
        "bad",
        [
            b"\x00\x00\x00",
            frame(0b0110_0000, b"x"),
            frame(0b1000_0000, b"x"),
            frame(0b0010_0000, b"x"),
            frame(0b0010_0000, zstandard.compress(b"x" * 50)[:-1]),
            frame(0b0010_0000, zstandard.compress(b"x" * 50) + b"x"),
            frame(0b0100_0000, b"x"),
            frame(0b0100_0000, b""),
            frame(0b0100_0000, GZIPPED[:-1]),
            frame(0b0100_0000, GZIPPED + b"x"),
            frame(0b0100_0000, GZIPPED + GZIPPED),
        ],
    )
    def test_it_raises_after_the_frames_before_it(self, bad: bytes) -> None:
        data = encode_message(b"one") + encode_message(b"two") + bad
        assert taken(data) == [Message(b"one"), Message(b"two"), "bad"]
        reader = FrameReader()
        for piece in (data, b""):
            with pytest.raises(BadFrame):
                list(reader.feed(piece))
        with pytest.raises(BadFrame):
            reader.finish()

    @pytest.mark.parametrize("missing", range(1, 7))
    def test_an_end_inside_a_frame_is_bad(self, missing: int) -> None:
        assert read(encode_message(b"one") + encode_message(b"two")[:-missing]) == [Message(b"one"), "bad"]

    def test_a_length_over_2_mib_is_refused_before_its_bytes_arrive(self) -> None:
        largest = frame(0, bytes(MAX_FRAME_BYTES - 1))
        assert read(largest) == [Message(bytes(MAX_BODY_BYTES))]
        assert taken((MAX_FRAME_BYTES + 1).to_bytes(3)) == ["bad"]

    def test_larger_bodies_are_not_encoded(self) -> None:
        assert len(encode_message(bytes(MAX_BODY_BYTES))) == 3 + MAX_FRAME_BYTES
        for compression in Compression:
            with pytest.raises(ValueError, match="at most 2097151 bytes"):
                encode_message(bytes(MAX_BODY_BYTES + 1), compression)

    def test_a_record_of_one_byte_headers_alone_can_pass_the_bound(self) -> None:
        header = Header(b"n", b"v")

        def body(headers: int) -> bytes:
            batch = ReadBatch((Record(MAX_U64, MAX_U64, (header,) * headers),))
            assert total_metered_bytes(batch.records) <= MAX_BATCH_METERED_BYTES
            return encode_read_batch(batch)

        most = (MAX_BATCH_METERED_BYTES - 8) // 4
        assert len(body(most)) > MAX_BODY_BYTES
        assert len(body(most - 10)) <= MAX_BODY_BYTES

    @given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
    def test_bytes_mean_the_same_in_any_pieces(self, data: bytes, cuts: list[int]) -> None:
        assert read(data, cuts) == read(data)


class TestBombs:
    """A body is at most 2 MiB once it is decompressed, however few its bytes are."""

    @staticmethod
    def with_size(size: int) -> bytes:
        return frame(0b0010_0000, zstandard.compress(bytes(size)))

    @staticmethod
    def without_size(size: int) -> bytes:
        coder = zstandard.ZstdCompressor().compressobj()
        return frame(0b0010_0000, coder.compress(bytes(size)) + coder.flush())

    @staticmethod
    def of_gzip(size: int) -> bytes:
        return frame(0b0100_0000, gzip.compress(bytes(size)))

    @pytest.mark.parametrize("kind", ["with_size", "without_size", "of_gzip"])
    def test_2_mib_is_the_most(self, kind: str) -> None:
        make = getattr(self, kind)
        assert read(make(MAX_BODY_BYTES)) == [Message(bytes(MAX_BODY_BYTES))]
        assert read(make(MAX_BODY_BYTES + 1)) == ["bad"]

    @pytest.mark.parametrize("kind", ["with_size", "without_size", "of_gzip"])
    def test_much_more_takes_no_more_memory(self, kind: str) -> None:
        bomb = getattr(self, kind)(64 * 1024 * 1024)
        tracemalloc.start()
        try:
            assert read(bomb) == ["bad"]
            assert tracemalloc.get_traced_memory()[1] < 3 * MAX_FRAME_BYTES
        finally:
            tracemalloc.stop()

    def test_a_claimed_size_alone_takes_no_memory(self) -> None:
        claim = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
        assert zstandard.frame_content_size(claim) == 1 << 40
        assert read(frame(0b0010_0000, claim)) == ["bad"]

    def test_a_window_over_8_mib_is_refused(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=False)
        coder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        assert read(frame(0b0010_0000, coder.compress(bytes(2000)) + coder.flush())) == ["bad"]

    def test_frames_are_decompressed_one_at_a_time(self) -> None:
        many = self.with_size(MAX_BODY_BYTES) * 30
        tracemalloc.start()
        try:
            assert sum(isinstance(one, Message) for one in FrameReader().feed(many)) == 30
            assert tracemalloc.get_traced_memory()[1] < 3 * MAX_FRAME_BYTES
        finally:
            tracemalloc.stop()


class TestChoice:
    @pytest.mark.parametrize(
        ("field", "chosen"),
        [
            (None, Compression.NONE),
            ("", Compression.NONE),
            ("br, identity", Compression.NONE),
            ("gzip", Compression.GZIP),
            ("gzip, zstd", Compression.ZSTD),
            ("ZSTD;q=0.1, gzip", Compression.ZSTD),
            ("zstd;q=0, gzip", Compression.GZIP),
            ("zstd ; q=0.000,gzip ;q=0.0", Compression.NONE),
        ],
    )
    def test_zstd_comes_before_gzip_before_none(self, field: str | None, chosen: Compression) -> None:
        assert choose_compression(field) is chosen


class TestBesideTheSdk:
    @staticmethod
    async def read_by_sdk(data: bytes, size: int) -> list[Message]:
        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), size):
                yield data[at : at + size]

        return [Message(one.body, one.reconnect_advised) async for one in sdk.read_messages(pieces())]

    @given(st.lists(messages, max_size=4), compressions, st.integers(1, 300))
    def test_it_reads_our_frames(self, sent: list[Message], compression: Compression, size: int) -> None:
        data = b"".join(encode(message, compression) for message in sent)
        assert asyncio.run(self.read_by_sdk(data, size)) == sent

    @given(st.lists(messages, max_size=4), st.sampled_from(SdkCompression))
    def test_we_read_its_frames(self, sent: list[Message], compression: SdkCompression) -> None:
        data = b""
        for message in sent:
            body, applied = sdk.maybe_compress(message.body, compression)
            data += sdk.frame_message(sdk.Message(body, False, applied, message.is_reconnect_advised))
        assert read(data) == sent

    def test_it_raises_what_a_terminal_frame_says(self) -> None:
        ended = encode_terminal(503, b'{"code":"unavailable","message":"the origin is gone"}')
        with pytest.raises(S2ServerError) as raised:
            asyncio.run(self.read_by_sdk(encode_message(b"x") + ended, 1000))
        assert (raised.value.status_code, raised.value.code) == (503, "unavailable")
