"""A valid field list of HTTP/2 has exactly one meaning, which HTTP/1.1 can express; any other is rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.http2.blocks import FieldList
from gateway.http.http2.head import Http2Request
from gateway.http.request_parser import LONGEST_LINE, MOST_FIELDS, Mark, RequestHead, RequestParser

GET: FieldList = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"edge"), (b":path", b"/s?offset=-1")]
POST: FieldList = [(b":method", b"POST"), *GET[1:]]


def without(name: bytes) -> FieldList:
    return [field for field in GET if field[0] != name]


def having(name: bytes, value: bytes) -> FieldList:
    return [(known, value if known == name else was) for known, was in GET]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(without(b":method"), id="no method"),
        pytest.param(without(b":scheme"), id="no scheme"),
        pytest.param(without(b":path"), id="no path"),
        pytest.param(without(b":authority"), id="no authority and no host"),
        pytest.param([], id="nothing"),
        pytest.param([*GET, (b":path", b"/t")], id="two paths"),
        pytest.param([*GET, (b":method", b"GET")], id="two methods"),
        pytest.param([*GET, (b":status", b"200")], id="an answer's pseudo field"),
        pytest.param([*GET, (b":protocol", b"websocket")], id="a pseudo field that was not offered"),
        pytest.param([*GET[:3], (b"x", b"y"), GET[3]], id="a pseudo field behind another"),
        pytest.param([(b"cookie", b"a=b"), *GET], id="pseudo fields behind a cookie"),
        pytest.param([(b"host", b"edge"), *GET], id="pseudo fields behind the host"),
        pytest.param(having(b":method", b"GE T"), id="a blank in the method"),
        pytest.param(having(b":method", b""), id="an empty method"),
        pytest.param(having(b":method", b"GET / HTTP/1.1\r\nHost: a"), id="a line end in the method"),
        pytest.param(having(b":path", b""), id="an empty path"),
        pytest.param(having(b":path", b"s"), id="a path without a slash"),
        pytest.param(having(b":path", b"http://edge/s"), id="an absolute path"),
        pytest.param(having(b":path", b"*"), id="an asterisk that is not for OPTIONS"),
        pytest.param(having(b":path", b"/s HTTP/1.1\r\nX: y"), id="a line end in the path"),
        pytest.param(having(b":path", b"/s HTTP/1.1"), id="a blank in the path"),
        pytest.param(having(b":path", b"/s\t"), id="a tab in the path"),
        pytest.param(having(b":path", b"/s\x00"), id="NUL in the path"),
        pytest.param(having(b":path", b"/s#t"), id="a fragment"),
        pytest.param(having(b":path", "/ä".encode()), id="a path that is not ASCII"),
        pytest.param(having(b":authority", b""), id="an empty authority"),
        pytest.param(having(b":authority", b"user@edge"), id="an authority with a user"),
        pytest.param(having(b":authority", b"edge/t"), id="an authority with a path"),
        pytest.param(having(b":authority", b"edge other"), id="an authority with a blank"),
        pytest.param(having(b":authority", b"edge\r\nX: y"), id="a line end in the authority"),
        pytest.param([*GET, (b"host", b"other")], id="a host that is not the authority"),
        pytest.param([*GET, (b"host", b"edge"), (b"host", b"edge")], id="two hosts"),
        pytest.param([*GET, (b"X", b"y")], id="upper case"),
        pytest.param([*GET, (b"", b"y")], id="no name"),
        pytest.param([*GET, (b"x y", b"z")], id="a blank in a name"),
        pytest.param([*GET, (b"x:", b"z")], id="a colon in a name"),
        pytest.param([*GET, (b"x\r\ny", b"z")], id="a line end in a name"),
        pytest.param([*GET, (b"x\x00", b"z")], id="NUL in a name"),
        pytest.param([*GET, (b"x\xe4", b"z")], id="a name that is not ASCII"),
        pytest.param([*GET, (b"x", b"y\r\nz: a")], id="a line end in a value"),
        pytest.param([*GET, (b"x", b"y\nz: a")], id="LF in a value"),
        pytest.param([*GET, (b"x", b"y\rz")], id="CR in a value"),
        pytest.param([*GET, (b"x", b"y\n")], id="LF at the end of a value"),
        pytest.param([*GET, (b"x", b"y\x00z")], id="NUL in a value"),
        pytest.param([*GET, (b"x", b"y\x7f")], id="DEL in a value"),
        pytest.param([*GET, (b"x", b" y")], id="a blank before a value"),
        pytest.param([*GET, (b"x", b"y\t")], id="a tab behind a value"),
        pytest.param([*GET, (b"connection", b"close")], id="Connection"),
        pytest.param([*GET, (b"keep-alive", b"5")], id="Keep-Alive"),
        pytest.param([*GET, (b"proxy-connection", b"close")], id="Proxy-Connection"),
        pytest.param([*GET, (b"upgrade", b"h2c")], id="Upgrade"),
        pytest.param([*POST, (b"transfer-encoding", b"chunked")], id="Transfer-Encoding"),
        pytest.param([*POST, (b"transfer-encoding", b"identity")], id="another Transfer-Encoding"),
        pytest.param([*GET, (b"te", b"gzip")], id="TE beside trailers"),
        pytest.param([*POST, (b"content-length", b"3"), (b"content-length", b"4")], id="two lengths"),
        pytest.param([*POST, (b"content-length", b"3, 3")], id="a list of lengths"),
        pytest.param([*POST, (b"content-length", b"+3")], id="a length with a sign"),
        pytest.param([*POST, (b"content-length", b"-1")], id="a length below zero"),
        pytest.param([*POST, (b"content-length", b"0x3")], id="a length in hexadecimal"),
        pytest.param([*POST, (b"content-length", b"")], id="an empty length"),
        pytest.param([*POST, (b"content-length", b"9" * 30)], id="a length beyond all bounds"),
    ],
)
def test_an_ambiguous_request_is_malformed(fields: FieldList) -> None:
    request = Http2Request(fields)
    assert request.is_malformed
    assert not request.is_answered
    assert request.alias is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param([(b":method", b"CONNECT"), (b":authority", b"edge:443")], Mark.BROKEN, id="CONNECT"),
        pytest.param(having(b":scheme", b"ftp"), Mark.BROKEN, id="a scheme of another protocol"),
        pytest.param([*GET, *[(b"x", b"y")] * (MOST_FIELDS + 1)], Mark.HEAD_TOO_LARGE, id="too many fields"),
        pytest.param([*GET, (b"x", b"y" * LONGEST_LINE)], Mark.HEAD_TOO_LARGE, id="too long a field"),
        pytest.param(having(b":path", b"/" + b"s" * LONGEST_LINE), Mark.TARGET_TOO_LONG, id="too long a path"),
        pytest.param([*GET, *[(b"x", b"y" * 1_000)] * 33], Mark.HEAD_TOO_LARGE, id="too much in all"),
        pytest.param([*GET, *[(b"cookie", b"a=" + b"b" * 900)] * 10], Mark.HEAD_TOO_LARGE, id="too large a cookie"),
    ],
)
def test_an_unsupported_request_is_refused(fields: FieldList, why: Mark) -> None:
    request = Http2Request(fields)
    assert not request.is_malformed
    assert not request.is_answered
    assert request.refusal is why


def test_a_request_has_the_form_of_http_1_1() -> None:
    request = Http2Request(
        [*GET, (b"user-agent", b"x"), (b"cookie", b"a=1"), (b"te", b"trailers"), (b"cookie", b"b=2")]
    )
    head = request.head(has_body=False)
    assert (head.method, head.target, head.version, head.length) == ("GET", "/s?offset=-1", "2.0", 0)
    assert list(head.headers.items()) == [
        ("Host", "edge"), ("user-agent", "x"), ("te", "trailers"), ("cookie", "a=1; b=2")
    ]  # fmt: skip


@pytest.mark.parametrize("host", [b"edge", b"EDGE"])
def test_a_host_may_repeat_the_authority(host: bytes) -> None:
    assert Http2Request([*GET, (b"host", host)]).head(has_body=False).headers.getall("Host") == ["edge"]


def test_a_host_may_replace_the_authority() -> None:
    assert Http2Request([*without(b":authority"), (b"host", b"edge")]).head(has_body=False).headers["Host"] == "edge"


@pytest.mark.parametrize(
    ("fields", "length"),
    [(POST, None), ([*POST, (b"content-length", b"3")], 3), ([*POST, (b"content-length", b"0")], 0)],
)
def test_a_body_has_the_announced_length(fields: FieldList, length: int | None) -> None:
    assert Http2Request(fields).head(has_body=True).length == length


def test_a_repeated_equal_length_counts_once() -> None:
    request = Http2Request([*POST, (b"content-length", b"3"), (b"content-length", b"3")])
    assert request.head(has_body=True).headers.getall("Content-Length") == ["3"]


def test_a_plain_get_has_an_alias() -> None:
    request = Http2Request([*GET, (b"accept-encoding", b"br"), (b"if-none-match", b'"a"')])
    assert request.alias == (
        b'GET /s?offset=-1 HTTP/1.1\r\nHost: edge\r\nAccept-Encoding: br\r\nIf-None-Match: "a"\r\n\r\n'
    )


@pytest.mark.parametrize("fields", [POST, [*GET, (b"content-length", b"0")], [*GET, (b"expect", b"100-continue")]])
def test_no_other_request_has_an_alias(fields: FieldList) -> None:
    assert Http2Request(fields).alias is None


_BYTES = st.text(st.characters(max_codepoint=255), max_size=12).map(lambda text: text.encode("latin-1"))
_NAMES = st.one_of(
    _BYTES, st.sampled_from([b"x", b"host", b"te", b"cookie", b"content-length", b":path", b"connection"])
)


@given(st.lists(st.tuples(_NAMES, _BYTES), max_size=6), _BYTES, _BYTES)
def test_every_valid_request_is_one_request_to_the_http_1_1_parser(
    more: FieldList, path: bytes, authority: bytes
) -> None:
    request = Http2Request([GET[0], GET[1], (b":authority", authority), (b":path", b"/" + path), *more])
    if request.alias is None:
        return
    head, end = RequestParser().feed(request.alias)
    assert end is Mark.END
    assert isinstance(head, RequestHead)
    mine = request.head(has_body=False)
    assert (head.method, head.target) == (mine.method, mine.target)
    assert [(name.lower(), value) for name, value in head.headers.items()] == [
        (name.lower(), value) for name, value in mine.headers.items()
    ]
