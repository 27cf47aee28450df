"""A request whose header section is cached parses like one without the cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.known import HeaderCache
from gateway.http.request import Event, Mark, RequestHead, RequestParser

SECTIONS = st.sampled_from(
    [
        b"Host: h\r\n",
        b"Host: h\r\nX: y\r\n",
        b"Host: h\r\nContent-Length: 3\r\n",
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


@settings(max_examples=300, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=12))
def test_a_cached_section_changes_nothing_about_a_request(requests: list[bytes]) -> None:
    cache = HeaderCache()
    for data in requests * 3:
        parser = RequestParser()
        parsed = parser.feed(data)
        found = cache.lookup(data)
        if found is not None:
            assert found == whole(parsed)
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


def test_at_most_1024_sections_are_cached() -> None:
    cache = HeaderCache()
    for number in range(3_000):
        data = b"GET /s HTTP/1.1\r\nHost: h\r\nX: %d\r\n\r\n" % number
        cache.store(data, RequestParser().feed(data))
    assert len(cache) == 1_024
