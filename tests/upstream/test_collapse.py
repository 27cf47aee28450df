"""Which readers share a fetch, by plain values."""

from __future__ import annotations

from gateway.upstream.collapse import Collapse, FetchEnd, Follow, Lead, SharedFetch


class Table:
    """A table of fetches for one key."""

    def __init__(self) -> None:
        self.fetches: Collapse[str, SharedFetch] = Collapse()

    def join(self) -> Lead[SharedFetch] | Follow[SharedFetch]:
        return self.fetches.join_fetch("key", "net", lambda: SharedFetch("net"))


def test_readers_share_a_fetch_until_it_is_sent() -> None:
    table = Table()
    first = table.join()
    assert isinstance(first, Lead)
    second = table.join()
    assert isinstance(second, Follow)
    assert second.fetch is first.fetch
    first.fetch.is_sent = True
    # Its answer may be older than the next reader's request.
    third = table.join()
    assert isinstance(third, Lead)
    assert third.fetch is not first.fetch


def test_a_fetch_that_is_over_is_not_joined() -> None:
    table = Table()
    first = table.join()
    first.fetch.land(FetchEnd.LANDED)
    assert isinstance(table.join(), Lead)


def test_a_fetch_without_a_result_is_given_up_and_the_later_one_stays() -> None:
    table = Table()
    first = table.join().fetch
    first.is_sent = True
    second = table.join().fetch
    table.fetches.work_ended("key", first)
    assert first.end is FetchEnd.GIVEN_UP
    assert table.fetches.pending("key") is second
