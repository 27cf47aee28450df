import itertools
from typing import Any

import pytest

from gateway.origin.producers import FORGET_AFTER_S, Claim
from gateway.origin.refusals import (
    BadOffset,
    BadRequest,
    Conflict,
    DifferentConfiguration,
    Gone,
    InvalidBody,
    NotFound,
    PathHeld,
    RequestError,
    SequenceConflict,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    TypeMismatch,
)
from gateway.origin.store import AppendParams, CreateParams, ForkParams, Store
from gateway.origin.streams import Lifetime

TEXT = "text/plain"
JSON = "application/json"


@pytest.fixture
def store() -> Store:
    numbers = itertools.count()
    return Store(lambda: f"i{next(numbers)}")


def create(store: Store, path: str = "/s", now: float = 0.0, **order: Any) -> bool:
    return store.create(path, CreateParams(**{"content_type": TEXT, **order}), now)[1]


def append(store: Store, body: bytes, path: str = "/s", now: float = 0.0, **order: Any) -> str:
    return store.append(path, AppendParams(body, **{"content_type": TEXT, **order}), now).tail.token


def content(store: Store, path: str = "/s", now: float = 0.0) -> bytes:
    return store.get(path, now).read(None, 1_000_000).body()


class TestCreate:
    def test_the_same_creation_twice_is_one_stream(self, store: Store) -> None:
        assert create(store, lifetime=Lifetime(ttl_s=60))
        assert not create(store, content_type="Text/Plain; charset=utf-8", lifetime=Lifetime(ttl_s=60), body=b"ignored")
        assert content(store) == b""

    @pytest.mark.parametrize(
        "other",
        [
            {"content_type": JSON},
            {"lifetime": Lifetime(ttl_s=1)},
            {"lifetime": Lifetime(expires_at=9e9, expires_at_text="later")},
            {"is_closed": True},
            {"fork": ForkParams("/s")},
        ],
    )
    def test_another_creation_at_the_same_path_conflicts(self, store: Store, other: dict[str, Any]) -> None:
        create(store)
        with pytest.raises(DifferentConfiguration):
            create(store, **other)

    def test_the_same_instant_may_have_another_spelling(self, store: Store) -> None:
        create(store, lifetime=Lifetime(expires_at=60.0, expires_at_text="1970-01-01T00:01:00Z"))
        assert not create(store, lifetime=Lifetime(expires_at=60.0, expires_at_text="1970-01-01T01:01:00+01:00"))

    def test_an_open_creation_conflicts_with_a_closed_stream(self, store: Store) -> None:
        create(store, body=b"all", is_closed=True)
        assert not create(store, is_closed=True)
        with pytest.raises(DifferentConfiguration):
            create(store)

    def test_a_body_that_is_refused_creates_nothing(self, store: Store) -> None:
        create(store, "/source", content_type=JSON)
        with pytest.raises(InvalidBody):
            create(store, content_type=JSON, body=b"{")
        with pytest.raises(InvalidBody):
            create(store, content_type=JSON, body=b"{", fork=ForkParams("/source"))
        assert store.paths() == ["/source"]
        store.delete("/source", 0.0)
        assert store.paths() == []

    def test_an_empty_array_creates_an_empty_json_stream(self, store: Store) -> None:
        create(store, content_type=JSON, body=b" [ ] ")
        assert content(store) == b"[]"

    def test_a_recreated_stream_is_another_instance(self, store: Store) -> None:
        create(store)
        first = store.get("/s", 0.0).instance
        store.delete("/s", 0.0)
        create(store)
        assert store.get("/s", 0.0).instance != first


class TestAppend:
    def test_a_closed_stream_says_where_it_ends(self, store: Store) -> None:
        create(store)
        tail = append(store, b"a", close=True)
        with pytest.raises(StreamClosed) as refused:
            append(store, b"b", content_type=JSON)
        assert refused.value.headers == {"Stream-Closed": "true", "Stream-Next-Offset": tail}

    def test_closing_again_succeeds(self, store: Store) -> None:
        create(store)
        tail = append(store, b"a", close=True)
        assert append(store, b"", close=True) == tail

    def test_an_append_needs_a_body_and_its_type(self, store: Store) -> None:
        create(store)
        with pytest.raises(InvalidBody):
            append(store, b"")
        with pytest.raises(BadRequest):
            append(store, b"a", content_type=None)
        with pytest.raises(TypeMismatch):
            append(store, b"a", content_type=JSON)

    def test_stream_seq_grows_as_bytes_do(self, store: Store) -> None:
        create(store)
        append(store, b"a", seq="09")
        append(store, b"b", seq="1")
        for late in ("1", "09", ""):
            with pytest.raises(SequenceConflict):
                append(store, b"c", seq=late)
        assert content(store) == b"ab"

    def test_refused_json_changes_nothing(self, store: Store) -> None:
        create(store, content_type=JSON)
        claim = Claim("p", 0, 0)
        for body in (b"[]", b"[1", b"\xff"):
            with pytest.raises(InvalidBody):
                append(store, body, content_type=JSON, claim=claim, seq="9", close=True)
        append(store, b"1", content_type=JSON, claim=claim, seq="1")
        assert content(store) == b"[1]"


class TestProducers:
    def test_a_duplicate_is_accepted_and_not_stored(self, store: Store) -> None:
        create(store)
        for seq, body in enumerate((b"a", b"b", b"c")):
            append(store, body, claim=Claim("p", 0, seq))
        again = store.append("/s", AppendParams(b"b", TEXT, claim=Claim("p", 0, 1)), 0.0)
        assert (again.is_duplicate, again.highest_seq) == (True, 2)
        assert content(store) == b"abc"

    def test_a_gap_says_what_was_expected(self, store: Store) -> None:
        create(store)
        with pytest.raises(SequenceGap):
            append(store, b"x", claim=Claim("p", 0, 1))
        append(store, b"a", claim=Claim("p", 0, 0))
        with pytest.raises(SequenceGap) as refused:
            append(store, b"x", claim=Claim("p", 0, 5))
        assert refused.value.headers == {"Producer-Expected-Seq": "1", "Producer-Received-Seq": "5"}

    def test_a_later_epoch_fences_the_earlier_one(self, store: Store) -> None:
        create(store)
        append(store, b"a", claim=Claim("p", 0, 0))
        with pytest.raises(BadRequest):
            append(store, b"x", claim=Claim("p", 3, 1))
        append(store, b"b", claim=Claim("p", 3, 0))
        with pytest.raises(StaleEpoch) as refused:
            append(store, b"x", claim=Claim("p", 0, 1))
        assert refused.value.headers == {"Producer-Epoch": "3"}
        assert content(store) == b"ab"

    def test_only_the_request_that_closed_may_close_again(self, store: Store) -> None:
        create(store)
        append(store, b"a", claim=Claim("p", 0, 0), close=True)
        assert store.append("/s", AppendParams(b"a", TEXT, close=True, claim=Claim("p", 0, 0)), 0.0).is_duplicate
        for body, claim in ((b"a", Claim("q", 0, 0)), (b"", Claim("p", 0, 1)), (b"a", None)):
            with pytest.raises(StreamClosed):
                append(store, body, close=True, claim=claim)

    def test_a_producer_that_was_idle_for_a_week_is_forgotten(self, store: Store) -> None:
        create(store)
        append(store, b"a", claim=Claim("p", 7, 0))
        append(store, b"b", claim=Claim("p", 0, 0), now=FORGET_AFTER_S + 1)
        assert content(store) == b"ab"


class TestExpiry:
    def test_reads_of_metadata_do_not_renew(self, store: Store) -> None:
        create(store, lifetime=Lifetime(ttl_s=10))
        store.get("/s", 9.0)
        with pytest.raises(NotFound):
            store.get("/s", 10.0)

    def test_every_write_renews(self, store: Store) -> None:
        create(store, lifetime=Lifetime(ttl_s=10))
        append(store, b"a", now=9.0, claim=Claim("p", 0, 0))
        append(store, b"a", now=18.0, claim=Claim("p", 0, 0))
        append(store, b"", now=27.0, close=True)
        append(store, b"", now=36.0, close=True)
        assert content(store, now=45.0) == b"a"
        with pytest.raises(NotFound):
            store.get("/s", 46.0)

    def test_an_expired_path_is_free(self, store: Store) -> None:
        create(store, lifetime=Lifetime(expires_at=5.0, expires_at_text="soon"), body=b"old")
        assert create(store, now=5.0)
        assert content(store, now=5.0) == b""

    def test_an_expired_stream_with_forks_is_gone_and_keeps_its_path(self, store: Store) -> None:
        create(store, lifetime=Lifetime(ttl_s=10), body=b"abc")
        create(store, "/fork", fork=ForkParams("/s"), lifetime=Lifetime(ttl_s=1000))
        with pytest.raises(PathHeld):
            create(store, now=10.0)
        with pytest.raises(Gone):
            store.get("/s", 10.0)
        assert content(store, "/fork", now=10.0) == b"abc"


class TestForks:
    def test_a_fork_is_independent_of_its_source(self, store: Store) -> None:
        create(store, body=b"one")
        middle = append(store, b"two")
        append(store, b"three")
        create(store, "/fork", fork=ForkParams("/s", middle))
        append(store, b"!", "/fork")
        append(store, b"four")
        assert content(store, "/fork") == b"onetwo!"
        assert content(store) == b"onetwothreefour"

    def test_source_and_fork_share_offsets_up_to_the_fork(self, store: Store) -> None:
        create(store, body=b"one")
        middle = append(store, b"two")
        append(store, b"three")
        stream, _ = store.create("/fork", CreateParams(fork=ForkParams("/s", middle)), 0.0)
        assert stream.tail.token == middle
        assert stream.read(None, 3).end == store.get("/s", 0.0).read(None, 3).end

    def test_a_fork_may_begin_inside_a_chunk(self, store: Store) -> None:
        create(store, body=b"abcdef")
        inside = store.get("/s", 0.0).read(None, 4).end.token
        create(store, "/fork", fork=ForkParams("/s", inside))
        append(store, b"!", "/fork")
        assert content(store, "/fork") == b"abcd!"
        create(store, "/deeper", fork=ForkParams("/fork", inside, 1))
        assert content(store, "/deeper") == b"abcd!"

    def test_a_sub_offset_divides_one_append(self, store: Store) -> None:
        zero = store.create("/s", CreateParams(content_type=JSON), 0.0)[0].tail.token
        append(store, b'[1,"two",{"a":3}]', content_type=JSON)
        append(store, b"4", content_type=JSON)
        create(store, "/fork", content_type=None, fork=ForkParams("/s", zero, 2), body=b"[5]")
        assert content(store, "/fork") == b'[1,"two",5]'
        with pytest.raises(BadRequest):
            create(store, "/other", content_type=None, fork=ForkParams("/s", zero, 4))

    @pytest.mark.parametrize(
        ("fork", "error"),
        [
            (ForkParams("/nowhere"), NotFound),
            (ForkParams("/s", "9999999999999999_9999999999999999"), BadRequest),
            (ForkParams("/s", "0000000000000000_0000000000000004"), BadRequest),
            (ForkParams("/s", "junk"), BadRequest),
            (ForkParams("/s", None, 1), BadRequest),
        ],
    )
    def test_a_fork_without_source_is_refused(self, store: Store, fork: ForkParams, error: type[RequestError]) -> None:
        create(store, body=b"abc")
        with pytest.raises(error):
            create(store, "/fork", fork=fork)
        store.delete("/s", 0.0)
        assert store.paths() == []

    def test_a_fork_has_the_type_of_its_source(self, store: Store) -> None:
        create(store)
        with pytest.raises(Conflict):
            create(store, "/fork", content_type=JSON, fork=ForkParams("/s"))

    def test_a_fork_inherits_lifetime_but_neither_closure_nor_writers(self, store: Store) -> None:
        create(store, lifetime=Lifetime(ttl_s=10))
        append(store, b"a", seq="5", claim=Claim("p", 4, 0), close=True)
        create(store, "/fork", fork=ForkParams("/s"))
        append(store, b"b", "/fork", seq="1", claim=Claim("p", 0, 0))
        fork = store.get("/fork", 0.0)
        assert (fork.lifetime.ttl_s, fork.is_closed) == (10, False)

    def test_a_repeated_fork_may_leave_out_the_same_parameters(self, store: Store) -> None:
        create(store, body=b"abc", lifetime=Lifetime(ttl_s=10))
        order = CreateParams(fork=ForkParams("/s"))
        assert store.create("/fork", order, 0.0)[1]
        append(store, b"more")
        assert not store.create("/fork", order, 0.0)[1]
        with pytest.raises(DifferentConfiguration):
            store.create("/fork", CreateParams(fork=ForkParams("/s", None, 1)), 0.0)


class TestDelete:
    def test_a_source_is_hidden_until_its_last_fork_goes(self, store: Store) -> None:
        create(store, body=b"abc")
        create(store, "/fork", fork=ForkParams("/s"))
        create(store, "/deeper", fork=ForkParams("/fork"))
        store.delete("/s", 0.0)
        store.delete("/fork", 0.0)
        for hidden in ("/s", "/fork"):
            with pytest.raises(Gone):
                store.delete(hidden, 0.0)
            with pytest.raises(PathHeld):
                create(store, hidden)
            with pytest.raises(Conflict):
                create(store, "/new", fork=ForkParams(hidden))
        assert content(store, "/deeper") == b"abc"
        store.delete("/deeper", 0.0)
        assert len(store) == 0

    def test_watchers_learn_of_every_change(self, store: Store) -> None:
        create(store)
        heard: list[int] = []
        store.get("/s", 0.0).watchers.add(lambda: heard.append(1))
        append(store, b"a")
        append(store, b"", close=True)
        store.delete("/s", 0.0)
        assert len(heard) == 3


def test_trimming_needs_a_valid_offset(store: Store) -> None:
    create(store, body=b"abc")
    for offset in ("junk", "0000000000000009_0000000000000009", "0000000000000001_0000000000000001"):
        with pytest.raises(BadOffset):
            store.trim("/s", offset, 0.0)
    assert content(store) == b"abc"
