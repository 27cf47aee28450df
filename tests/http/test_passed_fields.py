"""Fields that are passed on with the lines in which they were received read as if they had been rendered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import UpstreamBroken
from gateway.http.passed_fields import Fields, PassedFields
from gateway.http.reply import Head, ReplyParser
from gateway.protocol.forwarded_headers import HOP_BY_HOP, response_headers_for_client
from gateway.server.head import field_lines

LINES = st.sampled_from(
    [
        b"Stream-Next-Offset: 00_01",
        b"stream-next-offset:00_02",
        b"STREAM-NEXT-OFFSET: 00_03",
        b"X-Own: \xe4 \xff",
        b"X-Own:  two spaces ",
        b"X-Tab: a\tb",
        b"Empty: ",
        b"Empty:",
        b"Content-Type: text/plain",
        b"content-type: Text/Event-Stream; charset=utf-8",
        b"Content-Length: 5",
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT",
        b"Vary: ",
        b"Connection: x-own",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authenticate: Basic",
        b"Trailer: x",
        b"Via: 1.1 other",
        b"Cache-Status: other; hit",
        b"Location: http://origin/s",
        b"Server: origin",
    ]
)


@given(st.lists(LINES, max_size=8, unique=True))
def test_lines_passed_on_as_received_are_those_that_would_be_rendered(lines: list[bytes]) -> None:
    parser = ReplyParser()
    parser.expect(is_head=True)
    head = parser.feed(b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""]))[0]
    assert isinstance(head, Head)
    names = {name.lower() for name in head.headers}
    if head.lines is None:
        return
    assert not names & HOP_BY_HOP
    assert not names & {"via", "cache-status", "location"}
    passed = response_headers_for_client(head.headers, node="node", http_version="1.1")
    added = Fields.of(("Via", "1.1 node"))
    assert field_lines(PassedFields.of(head.headers, head.lines, added)) == field_lines(passed)


def test_a_usual_reply_is_passed_on_as_received() -> None:
    parser = ReplyParser()
    parser.expect(is_head=False)
    lines = b"Stream-Next-Offset: 00_01\r\nX-Own: 1\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    head = parser.feed(b"HTTP/1.1 204 No Content\r\n" + lines + b"\r\n")[0]
    assert isinstance(head, Head)
    assert head.lines == lines


CHANGES: list[Callable[[CIMultiDict[str]], object]] = [
    lambda fields: fields.add("C", "3"),
    lambda fields: fields.add("a", "2"),
    lambda fields: fields.extend({"C": "3"}),
    lambda fields: fields.update({"a": "2"}),
    lambda fields: fields.__setitem__("A", "2"),
    lambda fields: fields.__delitem__("A"),
    lambda fields: fields.setdefault("C", "3"),
    lambda fields: fields.pop("A"),
    lambda fields: fields.popone("A"),
    lambda fields: fields.popall("A"),
    lambda fields: fields.popitem(),
    lambda fields: fields.clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_fields_changes_their_lines(change: Callable[[CIMultiDict[str]], object]) -> None:
    plain = CIMultiDict([("A", "1"), ("B", "x")])
    passed = PassedFields.of(CIMultiDictProxy(plain.copy()), field_lines(plain), Fields.of())
    change(plain)
    change(passed)
    assert field_lines(passed) == field_lines(plain)


def test_an_added_value_with_a_line_break_is_refused() -> None:
    passed = PassedFields.of(CIMultiDictProxy(CIMultiDict()), b"", Fields.of())
    passed.add("A", "1\r\nB: 2")
    with pytest.raises(UpstreamBroken):
        field_lines(passed)
