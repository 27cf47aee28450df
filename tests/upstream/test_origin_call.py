"""Calls whose head is rendered once are sent the head that would be rendered for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.http.outgoing import RenderedHeaders, request_head
from gateway.upstream.origin_call import RepeatedUrl

HEADERS = [
    RenderedHeaders.of(CIMultiDict({"Accept": "*/*"})),
    RenderedHeaders.of(CIMultiDict({"Accept": "text/plain"})),
    CIMultiDict({"Accept": "*/*", "X-Own": "1"}),
]
CALLS = st.tuples(
    st.sampled_from(HEADERS), st.sampled_from(["a.test", "b.test"]), st.sampled_from([None, 0, 5]), st.booleans()
)


@given(st.lists(CALLS))
def test_the_head_of_a_repeated_call_is_that_of_its_headers_host_and_length(
    calls: list[tuple[CIMultiDict[str], str, int | None, bool]],
) -> None:
    url = RepeatedUrl("route://main/s?a=1")
    _, target, path = url.parts
    assert path == "/s"
    for headers, host, length, is_chunked in calls:
        found = url.head("POST", target, host, headers, length, is_chunked=is_chunked)
        assert found == request_head("POST", target, host, headers, length, is_chunked=is_chunked)
