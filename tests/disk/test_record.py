"""Records on disk: whatever is cut off or flipped, nothing wrong is read."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.disk.record import decode, encode
from gateway.tape.block import Block

TOKENS = ["-1", "07", "08", "09", "10"]


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    is_json = draw(st.booleans())
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4))
    block = Block(TOKENS[0], TOKENS[1], pieces[:1], is_json, 3.0)
    for token, piece in zip(TOKENS[2:], pieces[1:], strict=False):
        block.extend(token, [piece])
    return block


@given(blocks())
def test_a_record_is_read_as_it_was_written(block: Block) -> None:
    found = decode(b"".join(encode("5", 12.5, block)))
    assert found is not None
    assert (found.owner, found.written_at) == ("5", 12.5)
    read = found.block
    assert (read.start, read.end, read.is_json, read.marks) == (block.start, block.end, block.is_json, block.marks)
    assert b"".join(read.pieces) == b"".join(block.pieces)


@given(blocks(), st.data())
def test_a_record_that_is_cut_or_changed_is_not_read(block: Block, data: st.DataObject) -> None:
    written = b"".join(encode("5", 12.5, block))
    cut = data.draw(st.integers(0, len(written) - 1))
    assert decode(written[:cut]) is None
    assert decode(written + b"x") is None
    assert decode(written[:cut] + bytes(len(written) - cut)) is None or not any(written[cut:])
    flipped = bytearray(written)
    flipped[cut] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(flipped) is None
