"""The registry of origins: their states, the choice of an origin, pinned streams, and operator messages."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.aio.clock import ManualClock
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.errors import CircuitOpen, UpstreamUnreachable
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_pool import OriginPool, Origins, route_url, state_of
from gateway.upstream.origin_state import Origin, OriginRequest

A, B, C = "http://a", "http://b", "http://c"


class Bench:
    """A registry, its clock, and its messages."""

    def __init__(self, *routes: dict[str, Any], **config: Any) -> None:
        self.clock = ManualClock()
        self.said: list[str] = []
        self.origins = Origins(self.clock, random.Random(1), self.said.append)
        self.config = OriginsConfig(**config)
        self.take(*routes)

    def take(self, *routes: dict[str, Any], **credentials: tuple[str, str]) -> tuple[str, ...]:
        configs = [RouteConfig.model_validate(route) for route in routes]
        return self.origins.configure(configs, self.config, credentials)

    def pool(self, route: str = "default") -> OriginPool:
        return self.origins.pool(route_url(route))

    def origin(self, authority: str) -> Origin:
        found = self.origins.find(authority)
        assert found is not None
        return found

    def send(self, path: str = "/s", method: str = "GET", **more: Any) -> OriginRequest:
        return self.pool().admit(method, path, is_live=more.pop("is_live", False), **more)

    def path_of(self, authority: str) -> str:
        """A path that belongs to this origin while all are healthy."""
        for number in range(1_000):
            sent = self.send(f"/s{number}")
            sent.close()
            if sent.origin.authority == authority:
                return f"/s{number}"
        raise AssertionError(authority)

    def fail(self, authority: str, times: int = 5, reason: str = "connection refused") -> None:
        origin = self.origin(authority)
        for _ in range(times):
            sent = origin.admit(self.clock.now(), is_live=False)
            assert sent is not None
            sent.record_failure(reason, self.clock.now())
            sent.close()


def several(*urls: str, **more: Any) -> dict[str, Any]:
    return {"origins": list(urls or (A, B)), **more}


def test_an_origin_is_one_for_all_routes_that_lead_to_it() -> None:
    bench = Bench({"origin": A}, {"name": "more", "prefix": "/m", **several("http://a:80", B)})
    assert [(state.origin, state.routes, state.weight) for state in bench.origins.snapshot()] == [
        (A, ("default", "more"), 1),
        (B, ("more",), 1),
    ]


def test_a_reload_keeps_what_is_known_and_drops_what_no_route_leads_to() -> None:
    bench = Bench(several(A, B))
    bench.fail(A)
    known = bench.origin(A)
    bench.take(several(A, C), default=("authorization", "secret"))
    assert bench.origin(A) is known
    assert bench.origin(A).breaker.state is BreakerState.OPEN
    assert bench.origins.find(B) is None
    assert bench.take(several(A, C), default=("authorization", "secret")) == ()
    assert bench.take(several(A, C), default=("authorization", "other")) == ("default",)
    pool = weakref.ref(bench.pool())
    bench.take({"name": "other", "origin": C})
    # Requests in progress may still need the removed route.
    assert bench.pool() is pool()
    bench.clock.advance(301)
    with pytest.raises(UpstreamUnreachable):
        bench.pool("default")
    gc.collect()
    assert pool() is None, "the route's secret is kept no longer"


def test_removed_routes_are_kept_in_bounded_number() -> None:
    names = [f"r{number}" for number in range(1_001)]
    bench = Bench(*({"name": name, "prefix": f"/{name}", "origin": A} for name in names))
    bench.take({"origin": A})
    with pytest.raises(UpstreamUnreachable):
        bench.pool(names[0])
    assert all(bench.pool(name).route == name for name in names[1:])


def test_an_outage_is_reported_once_at_its_start_and_once_at_its_end() -> None:
    bench = Bench({"origin": A}, breaker_open_s=1, breaker_longest_open_s=1)
    bench.fail(A, 5)
    for _ in range(10):
        with pytest.raises(CircuitOpen):
            bench.send()
    bench.clock.advance(1)
    bench.fail(A, 1)
    bench.clock.advance(11)
    sent = bench.send()
    sent.status_arrived(404, bench.clock.now())
    sent.close()
    assert bench.said == [
        "origin http://a is unreachable: connection refused",
        "origin http://a answers again after 12 s",
    ]
    (state,) = bench.origins.snapshot()
    assert (state.reason, state.requests, state.failures, state.refused) == (None, 7, 6, 10)


@pytest.mark.parametrize(("status", "counts"), [(502, True), (503, True), (504, True), (500, False), (429, False)])
def test_only_some_statuses_count_as_failures(status: int, counts: bool) -> None:
    bench = Bench({"origin": A})
    for _ in range(5):
        sent = bench.send()
        sent.status_arrived(status, bench.clock.now())
        sent.close()
    (state,) = bench.origins.snapshot()
    assert (state.state is BreakerState.OPEN) is counts
    assert (state.failures == 5) is counts
    assert bench.said == ([f"origin http://a fails: answered {status}"] if counts else [])


def test_a_client_that_leaves_is_neither_success_nor_failure() -> None:
    bench = Bench({"origin": A})
    bench.fail(A, 4)
    bench.send().close()
    (state,) = bench.origins.snapshot()
    assert (state.failures, state.in_flight, state.waiting) == (4, 0, 0)
    bench.fail(A, 1)
    assert bench.origin(A).breaker.state is BreakerState.OPEN


# -- lost connections of requests that are in progress together


def lose(sent: OriginRequest, bench: Bench) -> None:
    sent.record_failure("connection reset", bench.clock.now(), is_loss=True)
    sent.close()


def answer(sent: OriginRequest, bench: Bench) -> None:
    sent.status_arrived(200, bench.clock.now())
    sent.close()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(50, 120), st.sampled_from(["losses first", "losses last", "two halves", "mixed"])),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_bursts_with_every_fifth_connection_lost_do_not_open_the_breaker_in_any_order(
    bursts: list[tuple[int, str]], seed: int, is_answered_before: bool
) -> None:
    bench = Bench({"origin": A})
    origin, rng = bench.origin(A), random.Random(seed)
    if is_answered_before:
        answer(bench.send(), bench)
    for size, order in bursts:
        sent = [(bench.send(), lose if number < size // 5 else answer) for number in range(size)]
        match order:
            case "losses last":
                sent.reverse()
            case "two halves":
                sent = [*sent[size // 2 :], *sent[: size // 2]]
            case "mixed":
                rng.shuffle(sent)
        for one, end in sent:
            end(one, bench)
            assert origin.breaker.state is BreakerState.CLOSED
    assert origin.waiting == 0


@pytest.mark.parametrize("size", [1, 10, 50, 200])
def test_an_origin_that_loses_all_connections_opens_the_breaker_however_many_requests_are_in_progress(
    size: int,
) -> None:
    """The window has many successes: the series of losses opens the breaker on its own."""
    bench = Bench({"origin": A})
    origin = bench.origin(A)
    for _ in range(2_000):
        answer(bench.send(), bench)
    lost = 0
    sent = [bench.send() for _ in range(size)]
    while origin.breaker.state is BreakerState.CLOSED:
        lose(sent.pop(0), bench)
        lost += 1
        if origin.breaker.state is BreakerState.CLOSED:
            sent.append(bench.send())
    assert lost == max(10, size - 1)


def test_bodies_cut_off_count_but_for_those_of_live_requests() -> None:
    bench = Bench({"origin": A}, breaker_requests=4)
    for is_live, state in ((True, BreakerState.CLOSED), (False, BreakerState.OPEN)):
        for _ in range(4):
            sent = bench.send(is_live=is_live)
            sent.status_arrived(200, bench.clock.now())
            sent.broke(bench.clock.now())
            sent.close()
        assert bench.origin(A).breaker.state is state


def test_an_open_breaker_tells_the_time_of_the_next_probe() -> None:
    bench = Bench({"origin": A}, breaker_open_s=8, breaker_longest_open_s=8)
    bench.fail(A)
    retry_in_s = bench.origin(A).breaker.retry_in_s(bench.clock.now())
    assert retry_in_s is not None
    with pytest.raises(CircuitOpen) as refused:
        bench.send()
    assert retry_in_s <= refused.value.retry_after_s < retry_in_s + 1
    assert (refused.value.status, refused.value.is_unsent) == (503, True)


def test_waiting_requests_are_bounded_per_origin() -> None:
    bench = Bench({"origin": A}, {"name": "b", "prefix": "/b", "origin": B}, waiting_requests=3)
    waiting = [bench.send() for _ in range(3)]
    with pytest.raises(CircuitOpen):
        bench.send()
    live = bench.send(is_live=True)
    bench.pool("b").admit("GET", "/s", is_live=False).close()
    waiting.pop().status_arrived(200, bench.clock.now())
    bench.send().close()
    assert bench.origins.snapshot()[0].overflows == 1
    for sent in (*waiting, live):
        sent.close()
    assert bench.origins.snapshot()[0].waiting == 0


# -- several -----------------------------------------------------------------------------------------------------------


def where(bench: Bench, paths: Sequence[str]) -> list[str]:
    found = []
    for path in paths:
        sent = bench.send(path)
        sent.close()
        found.append(sent.origin.authority)
    return found


PATHS = [f"/stream/{number}" for number in range(50)]


def test_a_stream_moves_on_while_its_origin_is_open_and_comes_back() -> None:
    bench = Bench(several(A, B, C), breaker_open_s=1, breaker_longest_open_s=1)
    before = where(bench, PATHS)
    assert set(before) == {A, B, C}
    bench.fail(A)
    during = where(bench, PATHS)
    assert [old for old, new in zip(before, during, strict=True) if old != new] == [A] * before.count(A)
    assert A not in during
    bench.clock.advance(1)
    probe = bench.send(PATHS[before.index(A)])
    assert probe.origin.authority == A
    # One probe is under way: all other streams stay where they moved.
    assert where(bench, PATHS) == during
    probe.status_arrived(200, bench.clock.now())
    probe.close()
    assert where(bench, PATHS) == before


def test_a_stream_moves_on_while_its_origin_is_ejected_and_comes_back() -> None:
    bench = Bench(several(A, B, C))
    before = where(bench, PATHS)
    bench.origins.eject(B, "check", "timed out")
    during = where(bench, PATHS)
    assert [old for old, new in zip(before, during, strict=True) if old != new] == [B] * before.count(B)
    state = state_of(bench.origin(B), bench.clock.now())
    assert (state.is_ejected, state.is_up, state.reason, state.ejections) == (True, False, "timed out", 1)
    bench.origins.readmit(B, "check")
    assert where(bench, PATHS) == before
    assert bench.said == [
        "origin http://b is ejected by its health checks: timed out",
        "origin http://b is taken back by its health checks after 1 s",
    ]


def test_if_all_are_ejected_they_are_used_all_the_same() -> None:
    bench = Bench(several(A, B))
    before = where(bench, PATHS)
    for origin in (A, B):
        bench.origins.eject(origin, "check", "timed out")
    assert where(bench, PATHS) == before
    assert bench.said[-1] == "route default: all its origins are ejected; requests go to them anyway"


def test_an_ejected_origin_is_used_if_no_other_may_be() -> None:
    bench = Bench(several(A, B))
    bench.origins.eject(A, "check", "timed out")
    bench.fail(B)
    assert set(where(bench, PATHS)) == {A}
    bench.fail(A)
    with pytest.raises(CircuitOpen):
        bench.send()


def test_a_request_is_not_sent_again_to_an_origin_that_refused_it() -> None:
    bench = Bench(several(A, B))
    first = bench.send()
    second = bench.send(tried=[first.origin])
    assert {first.origin.authority, second.origin.authority} == {A, B}
    assert bench.pool().has_untried([first.origin])
    assert not bench.pool().has_untried([first.origin, second.origin])
    first.close()
    second.close()


def test_a_streams_requests_follow_its_open_live_request() -> None:
    bench = Bench(several(A, B), breaker_open_s=1, breaker_longest_open_s=1)
    path = bench.path_of(A)
    bench.fail(A)
    live = bench.send(path, is_live=True)
    assert live.origin.authority == B
    bench.clock.advance(1)
    other = bench.send(next(one for one in PATHS if one != path and where(bench, [one]) == [A]))
    other.status_arrived(200, bench.clock.now())
    other.close()
    assert bench.origin(A).breaker.state is BreakerState.CLOSED
    assert where(bench, [path]) == [B]
    again = bench.send(path, is_live=True)
    assert again.origin.authority == B
    live.close()
    assert where(bench, [path]) == [B]
    again.close()
    assert where(bench, [path]) == [A]


@pytest.mark.parametrize("trouble", ["open", "ejected"])
def test_live_requests_are_ended_when_their_origin_goes_and_another_is_there(trouble: str) -> None:
    bench = Bench(several(A, B))
    path = bench.path_of(A)
    live, ended = bench.send(path, is_live=True), []
    live.on_end = lambda: ended.append(True)
    if trouble == "open":
        bench.fail(A)
    else:
        bench.origins.eject(A, "check", "timed out")
    assert (ended, live.has_ended) == ([True], True)
    moved = bench.send(path, is_live=True)
    assert moved.origin.authority == B
    live.close()
    # No other origin is left.
    moved.on_end = lambda: ended.append(True)
    bench.fail(B)
    assert ended == [True]
    moved.close()


def test_live_requests_end_if_a_reload_removes_their_origin() -> None:
    bench = Bench(several(A, B), {"name": "b", "prefix": "/b", "origin": B})
    path = bench.path_of(B)
    ended: list[str] = []
    moved, stays = bench.send(path, is_live=True), bench.pool("b").admit("GET", "/s", is_live=True)
    moved.on_end, stays.on_end = (lambda: ended.append("moved")), (lambda: ended.append("stays"))
    bench.take(several(A, C), {"name": "b", "prefix": "/b", "origin": B})
    assert ended == ["moved"]
    again = bench.send(path, is_live=True)
    assert again.origin.authority in (A, C)
    for sent in (moved, stays, again):
        sent.close()


def test_a_request_ended_here_is_not_a_failure_of_the_origin() -> None:
    bench = Bench(several(A, B))
    live = bench.send(bench.path_of(A), is_live=True)
    bench.origins.eject(A, "check", "timed out")
    failures = bench.origin(A).failures
    live.record_failure("timed out", bench.clock.now())
    live.close()
    assert bench.origin(A).failures == failures


# -- leaders -----------------------------------------------------------------------------------------------------------


def lead(bench: Bench, location: str | None, method: str = "POST", path: str = "/s?x=1") -> Origin | None:
    sent = bench.send(path.partition("?")[0], method)
    sent.close()
    return bench.pool().leader(sent, method, path, location)


@pytest.mark.parametrize(
    "location",
    [
        None,
        "",
        "http://elsewhere/s?x=1",
        "https://l/s?x=1",
        "http://l:81/s?x=1",
        "http://l/other?x=1",
        "http://l/s",
        "http://l@elsewhere/s?x=1",
        "/s?x=1",
        "http://[/",
        "http://l:99999999/",
        "//elsewhere/s?x=1",
        "javascript:alert(1)",
    ],
)
def test_a_redirect_to_an_unknown_host_is_not_followed(location: str | None) -> None:
    bench = Bench({"origin": A, "leaders": ["http://l"]})
    assert lead(bench, location) is None
    assert where(bench, ["/s"]) == [A]


def test_a_leader_is_remembered_for_a_while_for_the_stream_and_for_writes_alone() -> None:
    bench = Bench({"origin": A, "leaders": ["http://l"]})
    leader = lead(bench, "http://l:80/s?x=1")
    assert leader is bench.origin("http://l")
    assert leader.weight == 0
    for path, method, origin in (
        ("/s", "POST", "http://l"),
        ("/s", "PUT", "http://l"),
        ("/s", "GET", A),
        ("/t", "POST", A),
    ):
        sent = bench.send(path, method)
        sent.close()
        assert sent.origin.authority == origin, (path, method)
    bench.clock.advance(61)
    sent = bench.send("/s", "POST")
    sent.close()
    assert sent.origin.authority == A


def test_an_unreachable_leader_is_forgotten() -> None:
    bench = Bench({"origin": A, "leaders": ["http://l"]})
    lead(bench, "http://l/s?x=1")
    bench.fail("http://l")
    sent = bench.send("/s", "POST")
    sent.close()
    assert sent.origin.authority == A


def test_remembered_leaders_are_bounded() -> None:
    bench = Bench({"origin": A, "leaders": ["http://l"]})
    for number in range(10_100):
        assert lead(bench, f"http://l/s{number}", path=f"/s{number}") is not None
    assert "10000 led" in repr(bench.pool())
