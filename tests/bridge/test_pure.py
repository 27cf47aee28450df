"""What the bridge makes of records, offsets and names, without a connection."""

from __future__ import annotations

import base64
import gc
import json
from collections.abc import Callable
from urllib.parse import quote, unquote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.bridge.content as messages_module
from gateway.bridge.content import (
    CLOSE_RECORD,
    BadContent,
    BadMessages,
    BytesContent,
    Content,
    EnvelopeContent,
    JsonContent,
    TooManyContainers,
    is_message,
    page_of,
    split_messages,
)
from gateway.bridge.streams import MOST_NAME_BYTES, BadName, BadOffset, StreamName, offset_at, parse_name, parse_offset
from gateway.protocol.json_body import is_json
from gateway.protocol.names import is_sentinel, is_well_formed
from gateway.s2.records import (
    MAX_U64,
    AppendRecord,
    Fence,
    Header,
    ReadBatch,
    Record,
    Trim,
    command_record,
)
from tests.s2.strategies import batches, data, numbers, text

# -- offsets


@given(numbers, numbers)
def test_offsets_are_in_the_order_of_the_records(left: int, right: int) -> None:
    assert parse_offset(offset_at(left)) == left
    assert (offset_at(left) < offset_at(right)) == (left < right)
    assert is_well_formed(offset_at(left))
    assert not is_sentinel(offset_at(left))
    assert len(offset_at(left)) == len(offset_at(right))


@given(st.text(max_size=25) | st.integers().map(str) | st.from_regex(r"[0-9]{20}", fullmatch=True))
def test_what_is_no_offset_is_refused(offset: str) -> None:
    try:
        seq_num = parse_offset(offset)
    except BadOffset:
        return
    assert offset_at(seq_num) == offset


@pytest.mark.parametrize("offset", ["", "-1", "now", "0", "+" + "0" * 19, "٠" * 20, " " * 20, "0" * 21, "9" * 20])
def test_these_are_no_offsets(offset: str) -> None:
    with pytest.raises(BadOffset):
        parse_offset(offset)


# -- messages

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
space = st.text(" \t\r\n", max_size=2)


@given(st.lists(values, max_size=5), space, space)
def test_an_array_is_cut_into_its_messages_byte_for_byte(messages: list[object], before: str, after: str) -> None:
    texts = [json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass") for message in messages]
    joint = f"{before},{after}".encode()
    body = before.encode() + b"[" + before.encode() + joint.join(texts) + after.encode() + b"]" + after.encode()
    if is_json(body):
        assert split_messages(body) == texts
    else:
        with pytest.raises(BadMessages):
            split_messages(body)


@given(values.filter(lambda value: not isinstance(value, list)), space, space)
def test_anything_else_is_one_message(value: object, before: str, after: str) -> None:
    message = json.dumps(value).encode()
    assert split_messages(before.encode() + message + after.encode()) == [message]


def test_a_message_keeps_what_no_value_can_hold() -> None:
    texts = [b"1.000000000000000000000001", b"1234567890123456789012345", b'{"a":1,"a":2}', b"1e400", rb'"\ud83d"']
    assert split_messages(b"[" + b", ".join(texts) + b"]") == texts


def test_an_envelope_with_half_of_a_surrogate_pair_is_refused_in_one_line() -> None:
    with pytest.raises(BadContent, match="Not a record"):
        EnvelopeContent().records(rb'{"body":"\ud83d"}')


@given(st.binary(max_size=30) | st.text('[]{},:"0 1', max_size=12).map(str.encode))
def test_what_is_cut_is_json_again(body: bytes) -> None:
    try:
        messages = split_messages(body)
    except BadMessages:
        assert not is_message(body)
    else:
        assert json.loads(b"[" + b",".join(messages) + b"]") == (
            found if isinstance(found := json.loads(body), list) else [found]
        )


@given(st.lists(st.integers(), max_size=6), st.integers(0, 5))
def test_of_too_many_messages_one_more_is_cut(messages: list[int], most: int) -> None:
    found = split_messages(json.dumps(messages).encode(), most)
    assert found == [str(message).encode() for message in messages[: most + 1]]


@pytest.mark.parametrize("body", [b"", b" ", b"[1,]", b"[", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000, b"1 2"])
def test_these_are_not_json(body: bytes) -> None:
    with pytest.raises(BadMessages):
        split_messages(body)


def containers(value: object) -> int:
    """Arrays and objects in a value."""
    match value:
        case list():
            return 1 + sum(map(containers, value))
        case dict():
            return 1 + sum(map(containers, value.values()))
        case _:
            return 0


brackets = st.recursive(
    st.text('[]{}"\\é', max_size=6) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3),
)


@given(brackets, st.integers(0, 4), st.booleans())
def test_arrays_and_objects_are_bounded_and_brackets_in_strings_are_none(
    value: object, most: int, is_ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_module, "MOST_CONTAINERS", most)
        if containers(value) > most:
            with pytest.raises(TooManyContainers):
                split_messages(body)
        else:
            split_messages(body)


@pytest.mark.parametrize("read", [is_message, split_messages])
def test_the_collector_does_not_look_through_what_a_parser_makes(read: Callable[[bytes], object]) -> None:
    body = b"[" + b",".join([b"[[]]"] * 20_000) + b"]"
    phases: list[str] = []

    def collected(phase: str, _: object) -> None:
        phases.append(phase)

    gc.collect()
    gc.callbacks.append(collected)
    try:
        orjson.loads(body)
        assert phases
        phases.clear()
        assert read(body)
        assert not phases
        assert gc.isenabled()
        gc.disable()
        read(body)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.callbacks.remove(collected)


# -- content


@given(batches(data, min_size=1))
def test_no_record_breaks_a_json_stream(batch: ReadBatch) -> None:
    records = batch.records
    messages = json.loads(JsonContent().body(records))
    assert len(messages) == len(records)
    for record, message in zip(records, messages, strict=True):
        if is_message(record.body):
            assert message == json.loads(record.body)
        else:
            assert _record(message["s2_record"]) == record


@given(batches(data | text, min_size=1))
def test_an_envelope_holds_all_of_a_record(batch: ReadBatch) -> None:
    records = batch.records
    assert [_record(message) for message in orjson.loads(EnvelopeContent().body(records))] == list(records)


def _record(message: dict[str, object]) -> Record:
    def plain(text: str) -> bytes:
        return base64.b64decode(text) if message.get("format") == "base64" else text.encode()

    headers = tuple(Header(plain(name), plain(value)) for name, value in message["headers"])  # type: ignore[attr-defined]
    return Record(message["seq_num"], message["timestamp"], headers, plain(message["body"]))  # type: ignore[arg-type]


@given(batches(data | text, min_size=1))
def test_what_an_envelope_shows_can_be_appended_again(batch: ReadBatch) -> None:
    records = batch.records
    content = EnvelopeContent()
    body = content.body(records)
    if any(not header.name for record in records for header in record.headers):
        with pytest.raises(BadContent):
            content.records(body)
    else:
        assert content.records(body) == tuple(
            AppendRecord(record.body, record.headers, record.timestamp) for record in records
        )


@given(st.binary(max_size=40) | st.text('[]{},:"bodyhers0', max_size=30).map(str.encode))
def test_no_body_is_more_than_refused(body: bytes) -> None:
    for content in (JsonContent(), EnvelopeContent(), BytesContent("text/plain")):
        try:
            content.records(body)
        except BadContent as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "message",
    [b"1", b'"text"', b'{"format":"hex"}', b'{"format":[]}', b'{"headers":[["",""]]}', b'{"headers":[["a"]]}',
     b'{"body":1}', b'{"format":"base64","body":"?"}', b'{"timestamp":-1}'],
)  # fmt: skip
def test_these_are_no_envelopes(message: bytes) -> None:
    with pytest.raises(BadContent):
        EnvelopeContent().records(message)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_bytes_follow_each_other(bodies: list[bytes]) -> None:
    records = [Record(number, 0, (), body) for number, body in enumerate(bodies)]
    assert BytesContent("text/plain").body(records) == b"".join(bodies)
    assert BytesContent("text/plain").records(bodies[0]) == ((AppendRecord(bodies[0]),) if bodies[0] else ())


@pytest.mark.parametrize(
    ("content", "is_base64"),
    [
        (JsonContent(), False),
        (EnvelopeContent(), False),
        (BytesContent("text/plain"), False),
        (BytesContent("application/octet-stream"), True),
    ],
)
def test_sse_carries_what_is_not_text_in_base64(content: Content, is_base64: bool) -> None:
    assert content.is_base64 is is_base64


# -- pages

commands = st.sampled_from(
    [
        CLOSE_RECORD,
        command_record(Fence("another")),
        command_record(Fence("")),
        command_record(Trim(2)),
        command_record(Trim(MAX_U64)),
        AppendRecord(b"", (Header(b"", b"unknown"),)),
        AppendRecord(b"short", (Header(b"", b"trim"),)),
    ]
)


@given(st.lists(st.binary(max_size=3).map(AppendRecord) | commands, min_size=1, max_size=12), st.integers(0, 5))
def test_commands_are_left_out_and_the_mark_ends_the_stream(appended: list[AppendRecord], first: int) -> None:
    records = [Record(first + at, 0, one.headers, one.body) for at, one in enumerate(appended)]
    page = page_of(records)
    end = next((record.seq_num for record, one in zip(records, appended, strict=True) if one is CLOSE_RECORD), None)
    assert page.is_closed is (end is not None)
    assert page.end == (end if end is not None else first + len(records))
    assert list(page.records) == [record for record in records if not record.headers and record.seq_num < page.end]
    # A trim removes no record after it, wherever the mark is.
    trims = {command_record(Trim(seq_num)): seq_num for seq_num in (2, MAX_U64)}
    left = [min(trims[one], record.seq_num + 1) for record, one in zip(records, appended, strict=True) if one in trims]
    assert page.trimmed == min(max(left, default=0), page.end)


@given(st.lists(st.binary(max_size=3).map(AppendRecord) | commands, min_size=2, max_size=12), st.data())
def test_pages_do_not_depend_on_where_they_are_cut(appended: list[AppendRecord], draw: st.DataObject) -> None:
    records = [Record(at, 0, one.headers, one.body) for at, one in enumerate(appended)]
    cut = draw.draw(st.integers(1, len(records) - 1))
    whole, head = page_of(records), page_of(records[:cut])
    rest = None if head.is_closed else page_of(records[cut:])
    assert whole.records == head.records + (rest.records if rest is not None else ())
    last = rest or head
    assert (whole.end, whole.is_closed) == (last.end, last.is_closed)


# -- names


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_a_path_names_a_stream(stream: str) -> None:
    name = parse_name(f"/basin-of-tests/{quote(stream, safe='/')}")
    assert name == StreamName("basin-of-tests", stream)
    assert unquote(name.path.removeprefix("/v1/streams/")) == stream
    assert "/" not in name.path.removeprefix("/v1/streams/")


@pytest.mark.parametrize(
    "path",
    ["/", "/basin", "/basin/", "//stream", "/Basin/stream", "/basin%2Fa/stream", "/basin/a%2Fb", "/basin/a%2fb",
     "/basin/%FF", "/basin/" + "x" * (MOST_NAME_BYTES + 1)],
)  # fmt: skip
def test_these_paths_name_no_stream(path: str) -> None:
    with pytest.raises(BadName):
        parse_name(path)


def test_the_longest_name() -> None:
    assert parse_name("/basin/" + "x" * MOST_NAME_BYTES).stream == "x" * MOST_NAME_BYTES
