"""Parsing of requests: one meaning, in whatever pieces they arrive; ambiguous requests are refused."""

from __future__ import annotations

from collections.abc import Sequence

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.framing import State
from gateway.http.request_parser import LONGEST_HEAD, LONGEST_LINE, MOST_FIELDS, Event, Mark, RequestHead, RequestParser

GET = b"GET /s HTTP/1.1\r\nHost: h\r\n"
POST = b"POST /s HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes) -> tuple[list[Event], State]:
    parser = RequestParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return joined(events), parser.state


def joined(events: Sequence[Event]) -> list[Event]:
    """The same events, with the pieces of each body joined."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


def head_of(events: Sequence[Event]) -> RequestHead:
    head = events[0]
    assert isinstance(head, RequestHead)
    return head


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"GET /s HTTP/1.1\nHost: h\n\n", id="bare LF"),
        pytest.param(b"GET /s HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", id="one bare LF"),
        pytest.param(GET + b"X: a\r\n b\r\n\r\n", id="obs-fold"),
        pytest.param(GET + b"X : a\r\n\r\n", id="space before colon"),
        pytest.param(GET + b": a\r\n\r\n", id="no name"),
        pytest.param(GET + b"X: a\x00b\r\n\r\n", id="NUL in a value"),
        pytest.param(GET + b"X: a\x7f\r\n\r\n", id="DEL in a value"),
        pytest.param(GET + b"X: a\rb\r\n\r\n", id="CR in a value"),
        pytest.param(GET + b"X\x00: a\r\n\r\n", id="NUL in a name"),
        pytest.param(POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", id="length and chunked"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", id="chunked and length"),
        pytest.param(POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", id="length twice"),
        pytest.param(POST + b"Content-Length: 3, 3\r\n\r\nabc", id="a list of lengths"),
        pytest.param(POST + b"Content-Length: +3\r\n\r\nabc", id="length with a sign"),
        pytest.param(POST + b"Content-Length: 3 3\r\n\r\nabc", id="length with a blank"),
        pytest.param(POST + b"Content-Length: 0x3\r\n\r\nabc", id="length in hex"),
        pytest.param(POST + b"Content-Length:\r\n\r\nabc", id="no length"),
        pytest.param(POST + b"Content-Length: 99999999999999999999\r\n\r\nabc", id="length without bound"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="another coding"),
        pytest.param(POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="chunked not last"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="twice"),
        pytest.param(b"POST /s HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunked in 1.0"),
        pytest.param(b"GET /s\r\n\r\n", id="0.9"),
        pytest.param(b"GET /s HTTP/1.2\r\nHost: h\r\n\r\n", id="1.2"),
        pytest.param(b"get /s HTTP/1.1\r\nHost: h\r\n\r\n", id="method in lower case"),
        pytest.param(b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n", id="control character in the target"),
        pytest.param(b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", id="CONNECT"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2's preface"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
def test_an_invalid_request_ends_the_connection_without_an_event(raw: bytes) -> None:
    ends_with(raw, Mark.BROKEN)


def ends_with(raw: bytes, mark: Mark) -> None:
    for pieces in ((raw + GET + b"\r\n",), tuple(bytes([byte]) for byte in raw + GET + b"\r\n")):
        events, state = read(*pieces)
        assert events == [mark]
        assert state is State.CLOSED


def test_a_target_that_is_too_long_ends_the_connection() -> None:
    ends_with(b"GET /" + b"x" * LONGEST_LINE + b" HTTP/1.1\r\nHost: h\r\n\r\n", Mark.TARGET_TOO_LONG)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(GET + b"X: " + b"y" * LONGEST_LINE + b"\r\n\r\n", id="long field"),
        pytest.param(GET + b"X: y\r\n" * MOST_FIELDS + b"\r\n", id="many fields"),
        pytest.param(GET + (b"X: " + b"y" * 999 + b"\r\n") * 33 + b"\r\n", id="large head"),
    ],
)
def test_a_head_that_is_too_large_ends_the_connection(raw: bytes) -> None:
    ends_with(raw, Mark.HEAD_TOO_LARGE)


def test_a_head_may_be_as_large_as_the_bound() -> None:
    # The names and values of GET, which is the line of the target and a Host, count as well.
    of_get = len(b"/s") + len(b"Hosth")
    fields = (b"X: " + b"y" * 999 + b"\r\n") * 32
    rest = LONGEST_HEAD - of_get - 32 * 1_000
    assert head_of(read(GET + fields + b"X: " + b"y" * (rest - 1) + b"\r\n\r\n")[0]).target == "/s"
    assert read(GET + fields + b"X: " + b"y" * rest + b"\r\n\r\n")[0] == [Mark.HEAD_TOO_LARGE]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"g\r\n", id="no hex"),
        pytest.param(b"-1\r\nx\r\n", id="a sign"),
        pytest.param(b"0x1\r\nx\r\n", id="a prefix"),
        pytest.param(b"1 \r\nx\r\n", id="a blank"),
        pytest.param(b"1\nx\n", id="bare LF"),
        pytest.param(b"1;a\nx\r\n", id="bare LF behind an extension"),
        pytest.param(b"1;a\x00\r\nx\r\n", id="NUL in an extension"),
        pytest.param(b"1\r\nxy\r\n", id="more than announced"),
        pytest.param(b"0\r\nX : y\r\n\r\n", id="broken trailer"),
        pytest.param(b"0\r\n" + b"X: y\r\n" * (MOST_FIELDS + 1) + b"\r\n", id="many trailers"),
        pytest.param(b"ffffffffffffffffff\r\n", id="a size without bound"),
    ],
)
def test_a_body_with_an_ambiguous_end_is_refused(body: bytes) -> None:
    events, state = read(CHUNKED + b"1\r\na\r\n" + body + GET + b"\r\n")
    assert isinstance(events[0], RequestHead)
    assert events[-1] is Mark.BROKEN
    assert Mark.END not in events
    assert state is State.CLOSED


@pytest.mark.parametrize(
    ("raw", "length", "body"),
    [
        (POST + b"Content-Length: 3\r\n\r\nabc", 3, b"abc"),
        (POST + b"Content-Length: 3 \r\n\r\nabc", 3, b"abc"),
        (CHUNKED + b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX: trailer\r\n\r\n", None, b"abc"),
        (POST + b"Content-Length: 0\r\n\r\n", 0, b""),
        (GET + b"\r\n", 0, b""),
    ],
)
def test_bodies_end_as_announced(raw: bytes, length: int | None, body: bytes) -> None:
    events, state = read(raw + GET + b"\r\n")
    head = head_of(events)
    assert (head.length, head.keeps_alive, state) == (length, True, State.IDLE)
    assert b"".join(event for event in events if isinstance(event, bytes)) == body
    assert [type(event) for event in events].count(RequestHead) == events.count(Mark.END) == 2
    assert "X" not in head.headers


def test_an_upgrade_is_ignored() -> None:
    upgrade = b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    events, state = read(GET + upgrade + b"\r\n" + GET + b"\r\n")
    assert (events.count(Mark.END), state) == (2, State.IDLE)
    for framed in (b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"):
        events, state = read(POST + upgrade + framed + GET + b"\r\n")
        assert (events[1:3], events.count(Mark.END), state) == ([b"abc", Mark.END], 2, State.IDLE)
        assert isinstance(events[3], RequestHead)


@pytest.mark.parametrize(
    ("raw", "keeps"),
    [
        (GET + b"\r\n", True),
        (GET + b"Connection: keep-alive\r\n\r\n", True),
        (GET + b"Connection: close\r\n\r\n", False),
        (GET + b"Connection: keep-alive\r\nConnection: x, close\r\n\r\n", False),
        (b"GET /s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET /s HTTP/2.0\r\nHost: h\r\n\r\n", False),
    ],
)
def test_bytes_after_the_last_request_are_ignored(raw: bytes, keeps: bool) -> None:
    events, state = read(raw, b"\x00nonsense")
    assert head_of(events).keeps_alive is keeps
    assert events[1:] == ([Mark.END, Mark.BROKEN] if keeps else [Mark.END])
    assert state is State.CLOSED


def test_text_that_is_not_utf_8_is_unchanged() -> None:
    events, _ = read(GET + b"X: \xff\xc3\xa9\r\n\r\n")
    assert head_of(events).headers["X"].encode("utf-8", "surrogateescape") == b"\xff\xc3\xa9"


def test_a_head_that_never_ends_is_bounded() -> None:
    parser = RequestParser()
    fed = 0
    while parser.state is not State.CLOSED:
        parser.feed(b"X: y\r\n" if fed else GET)
        fed += 6
        assert fed < LONGEST_HEAD + 100
    parser = RequestParser()
    fed = len(GET + b"X: ")
    parser.feed(GET + b"X: ")
    while parser.state is not State.CLOSED:
        parser.feed(b"y" * 100)
        fed += 100
        assert fed < LONGEST_HEAD + len(GET) + 200


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"1;x=", b"0\r\nX"])
def test_endless_body_framing_is_bounded(begun: bytes) -> None:
    parser = RequestParser()
    parser.feed(CHUNKED + b"1\r\na\r\n" + begun)
    fed = 0
    while parser.state is not State.CLOSED:
        parser.feed(b"y" * 100)
        fed += 100
        assert fed < LONGEST_HEAD + 200


# -- any input ---------------------------------------------------------------------------------------------------------

_LINES = [
    b"Host: h\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"X: a\tb\r\n",
    b"X:\r\n",
    b" folded\r\n",
    b"X : y\r\n",
    b"X: \x01\r\n",
    b"X: \xc3\xa9\r\n",
]
_BODIES = [b"", b"abcde", b"5\r\nabcde\r\n0\r\n\r\n", b"5;x\r\nabcde\r\n0\r\nT: u\r\n\r\n", b"05\r\nabcde\r\n0\r\n\r\n"]
_STARTS = [b"GET /s?a=b HTTP/1.1\r\n", b"POST /s HTTP/1.1\r\n", b"HEAD /s HTTP/1.0\r\n", b"\r\nDELETE /s HTTP/1.1\r\n"]


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """One or two requests, some of them corrupted."""
    raw = b""
    for _ in range(draw(st.integers(1, 2))):
        lines = draw(st.lists(st.sampled_from(_LINES), max_size=4))
        raw += draw(st.sampled_from(_STARTS)) + b"".join(lines) + b"\r\n" + draw(st.sampled_from(_BODIES))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + draw(st.sampled_from([b"\x00", b"\r", b"\n", b" ", b":", b"5", b"", b"\r\n"])) + raw[at + 1 :]
    return raw


@given(messages(), st.lists(st.integers(1, 12), max_size=30))
def test_pieces_change_nothing(raw: bytes, sizes: list[int]) -> None:
    pieces, rest = [], raw
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert read(*pieces, rest) == read(raw)


@given(messages())
def test_an_accepted_request_is_the_same_to_another_parser(raw: bytes) -> None:
    """h11 accepts more, such as bare LF.  What counts is that no request means something else to it."""
    events, _ = read(raw)
    other = h11.Connection(h11.SERVER)
    # Empty lines before a request are skipped (RFC 9112 section 2.2); h11 does not do so.
    other.receive_data(raw.lstrip(b"\r\n"))
    for event in events:
        if event is Mark.BROKEN:
            return
        try:
            theirs = other.next_event()
        except h11.RemoteProtocolError:
            # h11 has its own rules on Host, versions and codings beside chunked; in the gateway the handler decides on
            # all of these.
            head = next(one for one in reversed(events[: events.index(event) + 1]) if isinstance(one, RequestHead))
            hosts, coding = head.headers.getall("Host", []), head.headers.get("Transfer-Encoding", "chunked")
            assert len(hosts) != 1 or coding != "chunked" or any(ord(c) > 127 for v in head.headers.values() for c in v)
            return
        if isinstance(event, RequestHead):
            assert isinstance(theirs, h11.Request)
            assert (theirs.method.decode(), theirs.target.decode()) == (event.method, event.target)
            assert [name.decode().lower() for name, _ in theirs.headers] == [
                name.lower() for name, _ in event.headers.items()
            ]
        elif isinstance(event, bytes):
            assert isinstance(theirs, h11.Data)
            body = bytes(theirs.data)
            while len(body) < len(event):
                theirs = other.next_event()
                assert isinstance(theirs, h11.Data)
                body += theirs.data
            assert body == event
        else:
            assert isinstance(theirs, h11.EndOfMessage)
            if other.our_state is h11.MUST_CLOSE or other.their_state is h11.MUST_CLOSE:
                return
            other.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            other.send(h11.EndOfMessage())
            if other.our_state is not h11.DONE or other.their_state is not h11.DONE:
                return
            other.start_next_cycle()
