"""From the bytes of replies to messages, however the bytes come."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_durable_streams import framing
from pyspark_durable_streams.errors import BadReply
from pyspark_durable_streams.framing import Elements, GuessedElements, Piece, Unit, WrongGuess

_TEXT = st.text(alphabet=st.sampled_from('ab,[]{}"\\ \n\té€'), max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")])


def elements_of(
    body: bytes,
    size: int,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
    framer: Elements | GuessedElements | None = None,
) -> list[bytes]:
    monkeypatch.setattr(framing, "BLOCK_BYTES", block)
    framer = framer or Elements()
    pieces = [piece for at in range(0, len(body), size) for piece in framer.feed(body[at : at + size])]
    pieces += framer.end()
    for piece in pieces:
        assert piece.data.count(b"\n") == piece.count
        assert piece.data.endswith(b"\n")
    return b"".join(piece.data for piece in pieces).splitlines()


@given(
    st.lists(_VALUES | st.dictionaries(_TEXT, _TEXT, max_size=3)),
    _SEPARATORS,
    st.integers(1, 50),
    st.integers(1, 60),
    st.none() | st.just(1),
    st.booleans(),
)
def test_elements_are_those_of_the_array(
    values: list[object], separators: tuple[str, str], size: int, block: int, indent: int | None, is_ascii: bool
) -> None:
    body = json.dumps(values, separators=separators, indent=indent, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = elements_of(body, size, block, monkeypatch)
    assert [json.loads(element) for element in found] == values


@given(st.lists(st.dictionaries(_TEXT, _VALUES, max_size=3), min_size=1), st.integers(1, 40), st.integers(1, 40))
def test_the_same_lines_come_of_any_cut(values: list[object], size: int, block: int) -> None:
    body = json.dumps(values, separators=(",", ":")).encode()
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert elements_of(body, size, block, monkeypatch) == elements_of(body, len(body), 1 << 20, monkeypatch)


@pytest.mark.parametrize(
    "body",
    [
        b"{}", b"[1", b'["a]', b"[1,]", b"[,1]", b"[1,,2]", b"[{}}", b"[{},]", b"[{}] 1", b"[1]]",
        b"[{},1,]", b"x", b'[{"a":1},{"b":2}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 100])
def test_what_is_no_array_is_no_reply(body: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadReply, match="the reply"):
        elements_of(body, size, 1, monkeypatch)


@pytest.mark.parametrize("body", [b"", b"[]", b" [ ] ", b"\n"])
def test_an_empty_reply_has_no_elements(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert elements_of(body, 1, 1, monkeypatch) == []


@given(st.lists(st.binary(max_size=5).map(lambda line: line.replace(b"\n", b""))), st.integers(0, 9))
def test_a_piece_is_cut_between_messages(lines: list[bytes], count: int) -> None:
    whole = Piece(b"".join(line + b"\n" for line in lines), len(lines))
    first, rest = whole.before(count, Unit.LINE), whole.after(count, Unit.LINE)
    assert first.data + rest.data == whole.data
    assert first.count == min(count, len(lines)) == first.data.count(b"\n")
    assert rest.count == rest.data.count(b"\n")


@pytest.mark.parametrize(
    ("content_type", "messages", "chunks"),
    [
        ("application/json", Unit.ELEMENT, Unit.ELEMENT),
        ("Application/JSON; charset=utf-8", Unit.ELEMENT, Unit.ELEMENT),
        ("application/x-ndjson", Unit.LINE, Unit.BYTE),
        ("text/plain; charset=utf-8", Unit.LINE, Unit.BYTE),
        ("application/octet-stream", None, Unit.BYTE),
        ("application/json-seq", None, Unit.BYTE),
    ],
)
def test_what_a_message_is(content_type: str, messages: Unit | None, chunks: Unit) -> None:
    assert framing.unit_of(content_type, as_chunks=False) is messages
    assert framing.unit_of(content_type, as_chunks=True) is chunks


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.integers()), min_size=1), st.integers(1, 50))
def test_plain_objects_are_guessed_right(values: list[object], size: int) -> None:
    body = json.dumps(values, separators=(",", ":")).encode()
    with pytest.MonkeyPatch.context() as monkeypatch:
        lines = elements_of(body, size, 1 << 20, monkeypatch)
        assert elements_of(body, size, 1 << 20, monkeypatch, GuessedElements()) == lines
        longest = max(len(line) for line in lines) + 3
        assert elements_of(body, size, longest, monkeypatch, GuessedElements()) == lines


@pytest.mark.parametrize("body", [b"", b"[", b"{}", b"[1]", b"[{}", b"[{}] ", b"[[{}]]", b"[ {}]"])
def test_what_is_seen_to_be_guessed_wrong(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongGuess):
        elements_of(body, 3, 2, monkeypatch, GuessedElements())


def test_an_empty_array_is_guessed_to_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert elements_of(b"[]", 1, 100, monkeypatch, GuessedElements()) == []
