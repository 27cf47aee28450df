"""The merged answers of several workers, and their merged samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.ops.admin.controls import Draining
from gateway.ops.admin.counts import CountedRun, Counts
from gateway.ops.admin.directory import Name, id_of
from gateway.ops.admin.endpoint import ApiRequest, Nothing
from gateway.ops.admin.origins import ShownOrigin, ShownOrigins
from gateway.ops.admin.streams import StreamPage, StreamRow, StreamsQuery, TopQuery, TopStreams
from gateway.ops.admin.tails import Tails, TailsQuery
from gateway.ops.gathering.answers import (
    merge_counts,
    merge_drains,
    merge_origins,
    merge_pages,
    merge_tail_pages,
    merge_tails,
    merge_tops,
)
from gateway.ops.gathering.samples import add_samples, merge_samples
from gateway.ops.history import Sample
from gateway.ops.spared import Tally
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode


def asked(query: object = None) -> ApiRequest[Any, Any]:
    return ApiRequest(query if query is not None else Nothing(), Nothing(), {})


def row(path: str, **more: Any) -> StreamRow:
    name = Name(path, "", "http://a", "p")
    found = StreamRow(
        id=id_of(name),
        origin=name.origin,
        path=path,
        query="",
        partition="p",
        is_private=False,
        route="main",
        protocol="durable-streams",
        content_type="text/plain",
        tail="1",
        is_closed=False,
        is_followed=False,
        bytes=10,
        records=None,
        blocks=1,
        readers=1,
        reads=4,
        hits=2,
        hit_ratio=0.5,
        sent_bytes=40,
        contacted_s=5.0,
    )
    return replace(found, **more)


def paths(page: StreamPage | TopStreams) -> list[str]:
    return [one.path for one in page.streams]


def test_copies_of_a_stream_are_one_row_with_the_state_of_the_copy_that_was_in_contact_last() -> None:
    owner = row("/a", tail="9", is_followed=True, readers=2, contacted_s=0.1, content_type="text/html")
    pages = [StreamPage([row("/a", is_closed=True)], None), StreamPage([owner], None)]
    (merged,) = merge_pages(asked(StreamsQuery()), pages).streams
    assert merged == replace(owner, bytes=20, blocks=2, readers=3, reads=8, hits=4, sent_bytes=80)


def test_a_copy_without_a_tail_is_not_asked_for_one() -> None:
    pages = [StreamPage([row("/a", tail=None, contacted_s=0.0)], None), StreamPage([row("/a", tail="7")], None)]
    assert merge_pages(asked(StreamsQuery()), pages).streams[0].tail == "7"


def test_pages_are_merged_in_order_and_go_on_where_the_page_ends() -> None:
    pages = [StreamPage([row("/a"), row("/d")], "next"), StreamPage([row("/b"), row("/d")], None)]
    page = merge_pages(asked(StreamsQuery(limit=2)), pages)
    assert (paths(page), page.next) == (["/a", "/b"], Name("/b", "", "http://a", "p").cursor)
    last = merge_pages(asked(StreamsQuery(limit=3)), [replace(one, next=None) for one in pages])
    assert (paths(last), last.next) == (["/a", "/b", "/d"], None)
    more = merge_pages(asked(StreamsQuery(limit=3)), pages)
    assert more.next == Name("/d", "", "http://a", "p").cursor


def test_no_streams_are_an_empty_last_page() -> None:
    assert merge_pages(asked(StreamsQuery()), [StreamPage([], None)] * 2) == StreamPage([], None)


def test_the_busiest_streams_are_ranked_by_their_sums() -> None:
    tops = [
        TopStreams("requests", [row("/a", reads=5), row("/b", reads=4)]),
        TopStreams("requests", [row("/b", reads=4), row("/c", reads=6)]),
    ]
    assert paths(merge_tops(asked(TopQuery(limit=2)), tops)) == ["/b", "/c"]


def test_of_several_tails_the_furthest_counts() -> None:
    answers = [Tails({"/a": "01", "/b": None, "/n": "9"}, None), Tails({"/a": "02", "/b": None, "/n": "10"}, None)]
    assert merge_tails(asked(), answers) == Tails({"/a": "02", "/b": None, "/n": "10"}, None)
    assert merge_tails(asked(), answers[::-1]) == merge_tails(asked(), answers)


def test_pages_of_tails_go_on_where_the_page_ends() -> None:
    answers = [Tails({"/a": "1", "/c": "1"}, "/c"), Tails({"/b": "1"}, None)]
    assert merge_tail_pages(asked(TailsQuery(limit=2)), answers) == Tails({"/a": "1", "/b": "1"}, "/b")
    assert merge_tail_pages(asked(TailsQuery(limit=3)), answers) == Tails({"/a": "1", "/b": "1", "/c": "1"}, "/c")
    ended = [replace(one, next=None) for one in answers]
    assert merge_tail_pages(asked(TailsQuery(limit=3)), ended).next is None


def test_counts_are_those_of_the_longest_part() -> None:
    run = CountedRun("0", "1", 1, 10, 7)
    assert merge_counts(asked(), [Counts([]), Counts([run, run]), Counts([run])]) == Counts([run, run])


def test_an_origin_is_as_bad_as_its_worst_state() -> None:
    well = ShownOrigin("http://a", ["main"], 1, "closed", False, None, 9.0, None, 5, 0, 0, 2, 3.0)
    open_ = replace(well, state="open", reason="refused", since_s=1.0, retry_in_s=0.5, failures=5, last_heard_s=None)
    (merged,) = merge_origins(asked(), [ShownOrigins([well]), ShownOrigins([open_])]).origins
    assert merged == replace(open_, requests=10, failures=5, in_flight=4, last_heard_s=3.0)


def test_the_gateway_drains_if_a_worker_does() -> None:
    assert merge_drains(asked(), [Draining(False), Draining(True)]).is_draining


def sample(at: float, count: int) -> Sample:
    return Sample(
        now=at,
        at=1_000 + at,
        tally=Tally(count, count, count, count),
        requests={Outcome.HIT: count},
        upstream_requests=count,
        upstream_bytes=count,
        downstream_bytes=count,
        subscribers={Mode.SSE: count, Mode.LONGPOLL: 0},
        delivery_delays=(count, 0),
    )


def test_samples_are_added_up() -> None:
    assert add_samples([sample(1, 2), sample(1.5, 3)]) == sample(1, 5)


def test_a_history_has_each_workers_latest_sample_at_each_moment() -> None:
    first = [sample(at, count) for at, count in ((0, 1), (2, 2), (4, 3))]
    # The second worker has started later.
    second = [sample(at, count) for at, count in ((1.5, 10), (3.5, 20))]
    assert merge_samples([second, first]) == [sample(0, 1), sample(2, 12), sample(4, 23)]
    assert merge_samples([[], []]) == []
