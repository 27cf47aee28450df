import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.origin import sse
from gateway.origin.streams import Slice
from tests.origin.streams import stream_of


def parse(text: str) -> list[tuple[str, str]]:
    """Parse events as a browser does (WHATWG HTML, section 9.2.6)."""
    events: list[tuple[str, str]] = []
    name, data = "message", list[str]()
    for line in re.split(r"\r\n|\r|\n", text):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((name, "\n".join(data)))
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


def events_of(found: Slice, *, is_text: bool, is_closed: bool = False) -> list[tuple[str, str]]:
    return parse(sse.batch(found, "7", is_text=is_text, is_closed=is_closed).decode())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4))
def test_text_comes_back_with_every_line_end_as_lf(texts: list[str]) -> None:
    found = stream_of([text.encode() for text in texts], "text/plain").read(None, 10_000)
    events = events_of(found, is_text=True)
    assert [data for name, data in events if name == "data"] == [re.sub(r"\r\n|\r", "\n", text) for text in texts]


@given(st.lists(st.binary(min_size=1), max_size=4))
def test_binary_comes_back_from_base64(bodies: list[bytes]) -> None:
    events = events_of(stream_of(bodies).read(None, 10_000), is_text=False)
    assert [base64.b64decode(data, validate=True) for name, data in events if name == "data"] == bodies


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_control_event_follows_every_data_event(is_closed: bool) -> None:
    stream = stream_of([b"[1,2]", b"[3]"], "application/json")
    events = events_of(stream.read(None, 10_000), is_text=True, is_closed=is_closed)
    assert [name for name, _ in events] == ["data", "control", "data", "control"]
    assert [json.loads(data) for name, data in events if name == "data"] == [[1, 2], [3]]
    first, last = (json.loads(data) for name, data in events if name == "control")
    assert first == {"streamNextOffset": stream.read(None, 3).end.token, "streamCursor": "7"}
    closing = {"streamClosed": True, "upToDate": True} if is_closed else {"streamCursor": "7", "upToDate": True}
    assert last == {"streamNextOffset": stream.tail.token, **closing}


def test_a_batch_short_of_the_tail_is_neither_up_to_date_nor_closed() -> None:
    found = stream_of([b"abc", b"def"]).read(None, 3)
    control = json.loads(events_of(found, is_text=False, is_closed=True)[-1][1])
    assert control == {"streamNextOffset": found.end.token, "streamCursor": "7"}


def test_an_empty_slice_is_one_control_event() -> None:
    stream = stream_of([b"abc"])
    events = events_of(stream.read(stream.tail, 10), is_text=False)
    assert events == [("control", f'{{"streamNextOffset":"{stream.tail.token}","streamCursor":"7","upToDate":true}}')]
