"""Negative caching: which readers get a remembered error, for how long, until which write; and the rate of new ones."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.routes import RouteConfig
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.pending_writes import PendingWrites
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.limits.accounts import Accounts, client_nets
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.upstream.flight import OriginError

GROUP = Group("http://origin", "/s")
KEY = StreamKey(GROUP, "", Partition("route"))
ALICE: CIMultiDict[str] = CIMultiDict({"Authorization": "alice"})
BOB: CIMultiDict[str] = CIMultiDict({"Authorization": "bob"})


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.route = Route(RouteConfig(origin="http://origin", **settings), "node", self.clock)
        self.pending = PendingWrites()
        self.negative_cache = NegativeCache(self.clock.now, self.pending, Accounts(client_nets(32, 64), self.clock.now))

    def write(self) -> SentRequest:
        """A write that is under way."""
        passed = RelayedRequest(
            self.route, GROUP, None, Mode.APPEND, "POST", GROUP.path, "", "", CIMultiDict(), ""
        )  # fmt: skip
        sent = SentRequest(passed, None, self.clock.now())
        self.pending.add_write(sent)
        self.negative_cache.forget_path(GROUP)
        return sent

    def add(
        self,
        key: StreamKey = KEY,
        offset: str | None = None,
        status: int = 404,
        body: bytes = b"",
        asked_s_ago: float = 0.0,
    ) -> None:
        error = OriginError(status, CIMultiDict(), body)
        self.negative_cache.remember(key, offset, error, ALICE, self.route, self.clock.now() - asked_s_ago)


def test_a_missing_stream_answers_every_offset_and_a_trimmed_offset_only_itself() -> None:
    bench = Bench()
    bench.add(offset="5", status=410)
    assert [bench.negative_cache.find(KEY, offset, ALICE) is not None for offset in ("5", "4", None)] == [
        True,
        False,
        False,
    ]
    bench.add()
    assert [bench.negative_cache.find(KEY, offset, ALICE) is not None for offset in ("5", "4", None)] == [True] * 3


def test_an_error_is_repeated_to_equal_credentials_for_absent_s() -> None:
    bench = Bench(absent_s=2)
    bench.add()
    assert bench.negative_cache.find(KEY, "-1", BOB) is None
    bench.clock.advance(1.9)
    assert bench.negative_cache.find(KEY, "-1", ALICE) is not None
    bench.clock.advance(0.2)
    assert bench.negative_cache.find(KEY, "-1", ALICE) is None


def test_an_error_is_repeated_to_requests_by_way_of_other_gateways() -> None:
    bench = Bench()
    bench.add()
    by_other = CIMultiDict({**ALICE, "Via": "1.1 other", "CDN-Loop": "other"})
    assert bench.negative_cache.find(KEY, "-1", by_other) is not None
    assert bench.negative_cache.find(KEY, "-1", CIMultiDict({**BOB, "Via": "1.1 other"})) is None


def test_only_the_errors_from_before_a_write_are_forgotten() -> None:
    bench = Bench(absent_s=2)
    bench.add(offset="5", status=410, asked_s_ago=1.5)
    bench.add(offset="6", status=410)
    bench.negative_cache.forget_path(GROUP, bench.clock.now() - 1)
    assert [bench.negative_cache.find(KEY, offset, ALICE) is not None for offset in ("5", "6")] == [False, True]
    assert (len(bench.negative_cache), bench.negative_cache.entry_count) == (1, 1)
    bench.negative_cache.forget_path(GROUP)
    assert (len(bench.negative_cache), bench.negative_cache.entry_count) == (0, 0)


def test_a_refusal_is_known_for_absent_s_and_of_its_own_stream() -> None:
    bench = Bench(absent_s=2)
    bench.add()
    bench.add(offset="5", status=410)
    other = KEY._replace(partition=Partition("route", readers="bob"))
    assert bench.negative_cache.has_any(KEY)
    assert not bench.negative_cache.has_any(other)
    bench.clock.advance(2.1)
    assert not bench.negative_cache.has_any(KEY)
    assert bench.negative_cache.entry_count == 0
    bench.add()
    assert bench.negative_cache.has_any(KEY)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_a_status_that_does_not_mean_absence_is_not_repeated(status: int) -> None:
    bench = Bench()
    bench.add(offset="5", status=status)
    assert bench.negative_cache.find(KEY, "5", ALICE) is None


def test_the_lifetime_of_an_error_counts_from_its_request() -> None:
    bench = Bench(absent_s=2)
    bench.add(asked_s_ago=1.5)
    bench.clock.advance(0.4)
    assert bench.negative_cache.find(KEY, "-1", ALICE) is not None
    bench.clock.advance(0.2)
    assert bench.negative_cache.find(KEY, "-1", ALICE) is None
    bench.add(asked_s_ago=2.0)
    assert (bench.negative_cache.find(KEY, "-1", ALICE), len(bench.negative_cache)) == (None, 0)


@pytest.mark.parametrize("settings", [{"absent_s": 0}, {"tail": "asked"}])
def test_nothing_is_repeated_if_the_route_disables_it(settings: dict[str, Any]) -> None:
    bench = Bench(**settings)
    bench.add()
    assert bench.negative_cache.find(KEY, "-1", ALICE) is None


def test_nothing_is_remembered_for_a_path_while_a_write_to_it_is_under_way() -> None:
    bench = Bench()
    others = [KEY._replace(query="a=b"), KEY._replace(partition=Partition("other"))]
    for key in (KEY, *others):
        bench.add(key)
    first, second = bench.write(), bench.write()
    assert repr(bench.negative_cache) == "<NegativeCache 0 remembered>"
    bench.pending.remove_write(first)
    for key in (KEY, *others):
        assert bench.negative_cache.find(key, "-1", ALICE) is None
        bench.add(key)
        assert bench.negative_cache.find(key, "-1", ALICE) is None
    bench.pending.remove_write(second)
    bench.add()
    assert bench.negative_cache.find(KEY, "-1", ALICE) is not None


def test_an_error_with_a_long_body_is_not_remembered() -> None:
    bench = Bench()
    bench.add(body=b"x" * 2_000)
    assert bench.negative_cache.find(KEY, "-1", ALICE) is None


def test_memory_is_bounded_for_ever_new_streams() -> None:
    bench = Bench()
    for number in range(45_000):
        bench.add(StreamKey(Group("http://origin", f"/{number}"), "", Partition("route")))
        bench.clock.advance(0.0001)
    assert 10_000 <= len(bench.negative_cache) < 20_000
    assert bench.negative_cache.entry_count <= 2 * len(bench.negative_cache)


def test_memory_is_bounded_in_bytes() -> None:
    bench = Bench()
    for number in range(5_000):
        bench.add(KEY._replace(query=f"q={number}{'x' * 8_000}"))
    assert 1_000 < len(bench.negative_cache) < (16 << 20) / 8_000
    assert bench.negative_cache.entry_count <= 2 * len(bench.negative_cache)


def test_memory_is_bounded_for_ever_new_offsets_of_one_stream() -> None:
    bench = Bench()
    for number in range(45_000):
        bench.add(offset=str(number), status=410)
    assert bench.negative_cache.entry_count <= 2 * len(bench.negative_cache) < 40_000
    bench.negative_cache.forget_path(GROUP)
    assert (bench.negative_cache.entry_count, len(bench.negative_cache)) == (0, 0)


def test_404s_are_limited_to_a_rate() -> None:
    bench = Bench(absent_per_s=10)
    for number in range(50):
        assert bench.negative_cache.may_ask(bench.route)
        bench.add(KEY._replace(query=f"q={number}"))
    assert not bench.negative_cache.may_ask(bench.route)
    bench.clock.advance(0.1)
    assert bench.negative_cache.may_ask(bench.route)
    bench.add()
    assert not bench.negative_cache.may_ask(bench.route)


def test_404s_are_unlimited_if_the_rate_is_zero() -> None:
    bench = Bench(absent_per_s=0)
    for number in range(5_000):
        bench.add(KEY._replace(query=f"q={number}"))
    assert bench.negative_cache.may_ask(bench.route)
