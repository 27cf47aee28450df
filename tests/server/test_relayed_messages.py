"""A relayed reply's fields, of which most are made once for all replies that share them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.config.routes import CorsConfig
from gateway.http.outgoing import field_lines
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import ReplyParser
from gateway.server.context import ResponseRecorder
from gateway.server.relayed_messages import relayed_fields

RECORDER = ResponseRecorder("node", *cast("Any", [None] * 4))
ALLOWED = "https://app.example"

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
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT",
        b"Vary: ",
        b"Connection: x-own",
        b"Connection: keep-alive",
        b"Transfer-Encoding: chunked",
        b"Access-Control-Allow-Origin: *",
        b"Vary: Accept",
        b"X-Request-Id: 1",
        b"X-Request-Id: 2",
        b"Producer-Seq: 17",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authenticate: Basic",
        b"Trailer: x",
        b"Via: 1.1 other",
        b"Server: origin",
        b"Cache-Status: other; hit",
        b"Location: http://origin/s",
        b"Cache-Control: public, max-age=9, s-maxage=99",
        b"CDN-Cache-Control: max-age=99",
    ]
)


class FakeRoute:
    def __init__(self, cors: CorsConfig | None, guard: Any = None) -> None:
        self.cors = cors
        self.guard = guard

    def public_location(self, location: str, public: str) -> str:
        return f"{public} {location}"


ROUTES = [
    *(FakeRoute(cors) for cors in (None, CorsConfig(allow_origins=(ALLOWED,)), CorsConfig(allow_origins=("*",)))),
    FakeRoute(None, SimpleNamespace(vary=("Authorization", "Cookie"))),
]


def head_of(lines: list[bytes]) -> Head:
    parser = ReplyParser()
    parser.expect(is_head=True)
    head = parser.feed(b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""]))[0]
    assert isinstance(head, Head)
    return head


def passed(head: Head, origin: str | None, route: FakeRoute) -> list[bytes]:
    """The lines that a client gets, in the order of their names."""
    request = SimpleNamespace(method="POST", headers=CIMultiDict({"Origin": origin} if origin else {}), scheme="http")
    request.host = "public"
    context: Any = SimpleNamespace(request=request, route=route, why_alone=None, is_public=False)
    lines = field_lines(relayed_fields(RECORDER, context, head)).splitlines()
    return sorted(lines, key=lambda line: line.partition(b":")[0].lower())


@given(
    st.lists(LINES, max_size=8, unique=True),
    st.sampled_from([None, ALLOWED, "https://other.example"]),
    st.sampled_from(ROUTES),
)
def test_fields_made_for_a_shape_are_those_that_would_be_made_for_the_reply(
    lines: list[bytes], origin: str | None, route: FakeRoute
) -> None:
    for _ in range(3):
        head = head_of(lines)
        found = passed(head, origin, route)
        alone = Head(head.status, head.reason, head.headers, head.content_length, head.is_delimited)
        assert found == passed(alone, origin, route)
        if route.guard is not None:
            said = [line.lower() for line in found if line.lower().startswith((b"cache-control:", b"cdn-cache"))]
            assert [b"private" in line and b"public" not in line and b"s-max" not in line for line in said] == [True]
            assert any(b"authorization" in line.lower() for line in found if line.startswith(b"Vary:"))


def test_replies_that_differ_in_lines_of_their_own_have_one_shape() -> None:
    shared = [b"X-Own: 1", b"Connection: keep-alive", b"Vary: Accept"]

    def own(number: int) -> list[bytes]:
        return [b"Stream-Next-Offset: %d" % number, b"Date: %d" % number, b"X-Request-Number: %d" % number]

    heads = [head_of([*shared, *own(number)]) for number in range(4)]
    assert heads[2].shape is heads[3].shape is not None
    assert heads[3].headers.getall("Date") == ["3"]
    assert heads[3].headers.getall("X-Request-Number") == ["3"]


def test_an_event_stream_that_may_be_buffered_keeps_the_origins_word_for_it() -> None:
    for _ in range(2):
        head = head_of([b"Content-Type: text/event-stream", b"X-Accel-Buffering: yes"])
        lines = [line for line in passed(head, None, ROUTES[0]) if line.startswith(b"X-Accel-Buffering")]
        assert lines == [b"X-Accel-Buffering: yes"]


def test_origins_that_an_answer_does_not_name_do_not_crowd_out_its_fields() -> None:
    for route in ROUTES:
        head = head_of([b"Vary: crowd"])
        assert head.shape is not None
        passed(head, "https://0.example", route)
        head.shape.derived("kept", True)
        for number in range(20):
            passed(head, f"https://{number}.example", route)
        assert head.shape.facts.get("kept")
