"""A request whose header section is cached parses like one without the cache."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.http.known import HeaderCache
from gateway.http.request_parser import Event, Mark, RequestHead, RequestParser

SECTIONS = st.sampled_from(
    [
        b"Host: h\r\n",
        b"Host: h\r\nX: y\r\n",
        b"Host: h\r\nContent-Length: 3\r\n",
        b"Host: h\r\nContent-Length: 2\r\nProducer-Seq: 1\r\n",
        b"Producer-Seq: 22\r\nHost: h\r\nContent-Length: 3\r\n",
        b"Host: h\r\ncontent-length: 3\r\nproducer-seq: 0\r\n",
        b"Host: h\r\nProducer-Seq: 1\r\nProducer-Seq: 2\r\nContent-Length: 3\r\n",
        b"Host: h\r\nProducer-Seq: 1x\r\nContent-Length: 3\r\n",
        b"Host: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
        b"Host: h\r\nProducer-Seq: 1\r\n folded\r\nContent-Length: 3\r\n",
        b"Host: h\r\nX: y\nProducer-Seq: 1\r\nContent-Length: 3\r\n",
        b"Host: h\r\nContent-Length: 0\r\n",
        b"Host: h\r\nTransfer-Encoding: chunked\r\n",
        b"Host: h\r\nConnection: close\r\n",
        b"Host: h\r\nUpgrade: x\r\nConnection: upgrade\r\n",
        b"Host: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n",
        b"Host: h\r\nbad line\r\n",
        b"",
    ]
)
LINES = st.sampled_from(
    [
        b"GET /s HTTP/1.1",
        b"GET /other?offset=-1 HTTP/1.1",
        b"POST /s HTTP/1.1",
        b"HEAD /s HTTP/1.1",
        b"GET /s HTTP/1.0",
        b"GET  /s HTTP/1.1",
        b"GET http://h/s HTTP/1.1",
        b"GET /s\xff HTTP/1.1",
        b"CONNECT h:1 HTTP/1.1",
        b"GET /" + b"a" * 8_190 + b" HTTP/1.1",
    ]
)
BODIES = st.sampled_from([b"", b"abc", b"abcd", b"ab", b"3\r\nabc\r\n0\r\n\r\n", b"GET /s HTTP/1.1\r\n\r\n"])
REQUESTS = st.builds(lambda line, section, body: line + b"\r\n" + section + b"\r\n" + body, LINES, SECTIONS, BODIES)


def whole(events: list[Event]) -> list[Event]:
    """The same events, with each body in one piece."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


def meaning(events: list[Event]) -> list[object]:
    """The same events; fields of different names may be in any order."""
    return [
        (event.method, event.target, event.version, sorted(event.headers.items()), event.keeps_alive, event.length)
        if isinstance(event, RequestHead)
        else event
        for event in events
    ]


APPEND_LINES = st.sampled_from(
    [
        b"X: y\r\n",
        b"Producer-Seq: 1\r\n",
        b"Producer-Seq: 2\r\n",
        b"producer-seq: 22\r\n",
        b"Producer-Seq: x\r\n",
        b"Producer-Seq:  1\r\n",
        b" folded\r\n",
        b"Content-Length: 3\r\n",
        b"content-length: 2\r\n",
        b"Content-Length: 2\r\n",
        b"Content-Length: 0\r\n",
    ]
)
APPENDS = st.builds(
    lambda lines, body: b"POST /s HTTP/1.1\r\nHost: h\r\n" + b"".join(lines) + b"\r\n" + body,
    st.lists(APPEND_LINES, max_size=3),
    st.sampled_from([b"", b"ab", b"abc"]),
)


@settings(max_examples=300, deadline=None)
@example(
    [
        b"POST /s HTTP/1.1\r\nHost: h\r\nProducer-Seq: 1\r\nProducer-Seq: x\r\n\r\n",
        b"POST /s HTTP/1.1\r\nHost: h\r\nProducer-Seq: x\r\nContent-Length: 3\r\n\r\nabc",
    ]
)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=12) | st.lists(APPENDS, min_size=6, max_size=24))
def test_a_cached_section_changes_nothing_about_a_request(requests: list[bytes]) -> None:
    cache = HeaderCache()
    for data in requests * 3:
        parser = RequestParser()
        parsed = parser.feed(data)
        found = cache.lookup(data)
        if found is not None:
            assert meaning(found) == meaning(whole(parsed))
        elif parsed and parsed[-1] in (Mark.END, Mark.BROKEN):
            cache.store(data, parsed)


def test_a_section_is_found_again_behind_another_request_line() -> None:
    cache = HeaderCache()
    section = b"Host: h\r\nContent-Length: 3\r\n\r\n"
    first = b"POST /a HTTP/1.1\r\n" + section + b"abc"
    assert cache.lookup(first) is None
    cache.store(first, RequestParser().feed(first))
    found = cache.lookup(b"POST /b?x=y HTTP/1.1\r\n" + section + b"def")
    assert found is not None
    head, *rest = found
    assert isinstance(head, RequestHead)
    assert (head.target, head.headers["Host"], rest) == ("/b?x=y", "h", [b"def", Mark.END])


def test_appends_that_differ_in_their_numbers_share_what_was_derived_from_their_section() -> None:
    cache = HeaderCache()

    def append(number: int, body: bytes) -> bytes:
        head = b"POST /s HTTP/1.1\r\nHost: h\r\nProducer-Seq: %d\r\nX: y\r\nContent-Length: %d\r\n\r\n"
        return head % (number, len(body)) + body

    first = append(0, b"abc")
    cache.store(first, RequestParser().feed(first))
    heads = []
    for number, body in ((1, b"d"), (2, b""), (3, b"efg")):
        found = cache.lookup(append(number, body))
        assert found is not None
        assert meaning(found) == meaning(whole(RequestParser().feed(append(number, body))))
        head = found[0]
        assert isinstance(head, RequestHead)
        assert head.headers["Producer-Seq"] == str(number)
        heads.append(head)
    assert all(head.fields.facts is heads[0].fields.facts for head in heads)
    assert "Producer-Seq" not in heads[0].fields.common


def test_at_most_1024_sections_are_cached() -> None:
    cache = HeaderCache()
    for number in range(3_000):
        data = b"GET /s HTTP/1.1\r\nHost: h\r\nX: %d\r\n\r\n" % number
        cache.store(data, RequestParser().feed(data))
    assert len(cache) == 1_024
