"""Request heads: the output is one request, whatever its parts contain."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.http.outgoing import InvalidRequest, RenderedHeaders, request_head


def head(*fields: tuple[str, str], method: str = "GET", target: str = "/s?x=1", length: int | None = None) -> bytes:
    return request_head(method, target, "h:1", CIMultiDict(fields), length)


def test_a_head_contains_what_it_was_given() -> None:
    assert head(("Accept", "*/*"), ("X-A", "é")) == (
        "GET /s?x=1 HTTP/1.1\r\nHost: h:1\r\nAccept: */*\r\nX-A: é\r\n\r\n".encode()
    )
    assert b"Host: other\r\n" in head(("Host", "other"))
    assert b"h:1" not in head(("Host", "other"))
    # Bytes that are not UTF-8 leave as they came.
    assert b"X-A: \xe9\r\n" in head(("X-A", "\udce9"))


@pytest.mark.parametrize(
    ("method", "length", "said"),
    [("GET", None, b""), ("HEAD", None, b""), ("POST", None, b"0"), ("DELETE", None, b"0"), ("POST", 7, b"7")],
)
def test_framing_follows_the_body_and_not_the_headers(method: str, length: int | None, said: bytes) -> None:
    for fields in ([], [("content-length", "99")], [("Transfer-Encoding", "chunked")]):
        raw = head(*fields, method=method, length=length)
        assert raw.lower().count(b"content-length: " + said + b"\r\n" if said else b"content-length") == bool(said)
        assert b"chunked" not in raw
    raw = request_head("POST", "/s", "h", CIMultiDict({"Content-Length": "9"}), None, is_chunked=True)
    assert raw.endswith(b"Transfer-Encoding: chunked\r\n\r\n")
    assert b"Content-Length" not in raw


@pytest.mark.parametrize(
    "parts",
    [
        {"method": "GET /evil HTTP/1.1\r\nX:"},
        {"method": "G T"},
        {"method": ""},
        {"target": "/s HTTP/1.1\r\nX: y"},
        {"target": "/s x"},
        {"target": "/s\nx"},
        {"target": ""},
    ],
)
def test_an_ambiguous_request_line_is_refused(parts: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        head(**parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "X ", "X:", "X\r\nY", "X\n", "é", "Content-Length "])
def test_a_name_that_is_not_a_token_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        head((name, "y"))


@pytest.mark.parametrize(
    "value", ["a\r\nX: y", "a\nX: y", "a\rX: y", "a\r\n", "a\x00", "a\x7f", "a\r\n\r\nGET / HTTP/1.1"]
)
@pytest.mark.parametrize("name", ["X-Any", "Accept"])
def test_a_value_with_control_characters_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest):
        head((name, value))
    with pytest.raises(InvalidRequest):
        request_head("GET", "/", "h", RenderedHeaders.of(CIMultiDict({name: value})), None)
    with pytest.raises(InvalidRequest):
        request_head("GET", "/", value, CIMultiDict(), None)


ANY = st.text(st.sampled_from("aé: \t\r\n\x00\x0b\x7f\x85\u2028Z-,"), max_size=8)


@settings(max_examples=300, deadline=None)
@given(method=ANY, target=ANY, fields=st.lists(st.tuples(st.one_of(ANY, st.just("Accept")), ANY), max_size=4))
def test_a_head_parses_as_one_request_with_the_same_fields(
    method: str, target: str, fields: list[tuple[str, str]]
) -> None:
    try:
        raw = head(*fields, method=method or "GET", target="/" + target)
    except InvalidRequest:
        return
    lines = raw.split(b"\r\n")
    framing = (method or "GET") not in ("GET", "HEAD", "OPTIONS", "TRACE")
    assert len(lines) == len(fields) + 4 + framing
    assert raw.count(b"\n") == raw.count(b"\r") == len(lines) - 1
    if raw.isascii() and (method or "GET") == "GET":
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(raw)
        read = connection.next_event()
        assert isinstance(read, h11.Request)
        assert len(read.headers) == len(fields) + 1
        assert isinstance(connection.next_event(), h11.EndOfMessage)


def test_a_copy_of_rendered_headers_is_written_with_its_changes() -> None:
    copied = RenderedHeaders.of(CIMultiDict({"Accept": "*/*"})).copy()
    copied["Accept"] = "text/event-stream"
    head = request_head("GET", "/s", "origin", copied, 0, is_chunked=False)
    assert b"Accept: text/event-stream\r\n" in head
    assert b"*/*" not in head
