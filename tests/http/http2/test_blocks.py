"""Field blocks: what is remembered is what would be read, and what is written says what the head says."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.http2.blocks import BlockReader, FieldList, TooLarge, Undecodable, block_of

_NAMES = st.sampled_from([b":path", b"x", b"cookie", b"user-agent", b"a" * 200])
_VALUES = st.sampled_from([b"", b"/a", b"/b", b"z" * 300, b"y" * 3_000])
_LISTS = st.lists(st.tuples(_NAMES, _VALUES, st.booleans()), max_size=5)


def same(fields: FieldList) -> FieldList:
    return fields


@given(st.lists(st.one_of(_LISTS, st.integers(0, 4_096)), max_size=30), st.data())
def test_a_block_says_what_it_says_to_a_reader_without_memory(steps: list[object], data: st.DataObject) -> None:
    encoder, reader = Encoder(), BlockReader(1 << 20, same)
    lists: list[list[tuple[bytes, bytes, bool]]] = []
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:
                # Set to what it is, the encoder forgets that it has something to say.
                encoder.header_table_size = step
            continue
        assert isinstance(step, list)
        lists.append(step)
        # Some come again, as requests do.
        for fields in (step, data.draw(st.sampled_from(lists))):
            block = encoder.encode(fields)
            assert reader.read(block) == [(name, value) for name, value, _ in fields]


def test_what_comes_again_is_understood_once() -> None:
    understood: list[FieldList] = []

    def understand(fields: FieldList) -> FieldList:
        understood.append(fields)
        return fields

    encoder, reader = Encoder(), BlockReader(1 << 16, understand)
    for _ in range(5):
        reader.read(encoder.encode([(b":path", b"/s"), (b"x", b"y")]))
    # The first fills the table, the second stands on it.
    assert len(understood) == 2


def test_small_blocks_that_say_much_are_not_all_remembered() -> None:
    understood: list[FieldList] = []

    def understand(fields: FieldList) -> FieldList:
        understood.append(fields)
        return fields

    encoder, reader = Encoder(), BlockReader(1 << 17, understand)
    reader.read(encoder.encode([(b"x", b"v" * 3_900)]))
    blocks = []
    for number in range(64):
        block = encoder.encode([(b":path", b"/%d" % number, True), *[(b"x", b"v" * 3_900)] * 15])
        assert len(block) < 30
        reader.read(block)
        blocks.append(block)
    understood.clear()
    # Those that are remembered are not understood anew, the latest of them first to be asked for.
    said = [reader.read(block) for block in reversed(blocks)]
    remembered = [fields for fields in said if not any(fields is one for one in understood)]
    assert sum(len(name) + len(value) for fields in remembered for name, value in fields) <= 1 << 16


def test_trailers_change_what_a_block_says() -> None:
    encoder, reader = Encoder(), BlockReader(1 << 16, same)
    for _ in range(2):
        assert reader.read(encoder.encode([(b"cookie", b"a")])) == [(b"cookie", b"a")]
    # Now the same byte stands for another entry.
    reader.decode(encoder.encode([(b"cookie", b"b")]))
    block = encoder.encode([(b"cookie", b"b")])
    assert block == b"\xbe"
    assert reader.read(block) == [(b"cookie", b"b")]


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x80", id="index 0"),
        pytest.param(b"\xff\xff\xff\xff\xff\x0f", id="an index beyond the table"),
        pytest.param(b"\xbe", id="an entry that is not there"),
        pytest.param(b"\x40\x05ab", id="a name cut short"),
        pytest.param(b"\x00", id="nothing behind the first byte"),
        pytest.param(b"\x40\x81\xff\x00", id="Huffman padding of more than seven bits"),
        pytest.param(b"\x3f\xe2\x1f", id="a table larger than was offered"),
        pytest.param(b"\x82\x20", id="a size behind a field"),
    ],
)
def test_what_is_no_block_cannot_be_read(block: bytes) -> None:
    with pytest.raises(Undecodable):
        BlockReader(1 << 16, same).read(block)


def test_a_bomb_is_not_read_to_its_end() -> None:
    # One entry of 4,000 bytes in the table, and then a byte for each time that it is to be said.
    block = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4_000 + b"\xbe" * 16_000
    with pytest.raises(TooLarge):
        BlockReader(1 << 16, same).read(block)


def test_a_head_is_written_as_a_block_without_what_is_about_the_connection() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
        b"Stream-Next-Offset: 12\r\nX-Empty: \r\nX-Long: " + b"z" * 500 + b"\r\n\r\n"
    )
    assert Decoder().decode(block_of(head), raw=True) == [
        (b":status", b"200"), (b"content-type", b"text/plain"), (b"stream-next-offset", b"12"), (b"x-empty", b""),
        (b"x-long", b"z" * 500),
    ]  # fmt: skip


@pytest.mark.parametrize("status", [100, 200, 204, 206, 304, 400, 404, 409, 413, 500, 503])
def test_every_status_is_written(status: int) -> None:
    decoded = Decoder().decode(block_of(b"HTTP/1.1 %d\r\n\r\n" % status), raw=True)
    assert decoded == [(b":status", b"%d" % status)]
