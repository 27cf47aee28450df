"""Refusals that are repeated: to whom, for how long, and until which write; and the rate of those that are new."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.routes import RouteConfig
from gateway.engine.absences import Absences
from gateway.engine.route import Route
from gateway.protocol.stream_key import Group, Partition, StreamKey
from gateway.upstream.flight import OriginError

GROUP = Group("http://origin", "/s")
KEY = StreamKey(GROUP, "", Partition("route"))
ALICE: CIMultiDict[str] = CIMultiDict({"Authorization": "alice"})
BOB: CIMultiDict[str] = CIMultiDict({"Authorization": "bob"})


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.route = Route(RouteConfig(origin="http://origin", **settings), "node", self.clock)
        self.absences = Absences(self.clock.now)

    def add(
        self,
        key: StreamKey = KEY,
        offset: str | None = None,
        status: int = 404,
        body: bytes = b"",
        asked_s_ago: float = 0.0,
    ) -> None:
        refusal = OriginError(status, CIMultiDict(), body)
        self.absences.add(key, offset, refusal, ALICE, self.route, self.clock.now() - asked_s_ago)


def test_a_stream_that_is_absent_is_so_at_every_offset_and_an_offset_that_has_gone_at_that_one() -> None:
    bench = Bench()
    bench.add(offset="5", status=410)
    assert [bench.absences.find(KEY, offset, ALICE) is not None for offset in ("5", "4", None)] == [True, False, False]
    bench.add()
    assert [bench.absences.find(KEY, offset, ALICE) is not None for offset in ("5", "4", None)] == [True] * 3


def test_it_is_repeated_to_those_who_show_the_same_for_absent_s() -> None:
    bench = Bench(absent_s=2)
    bench.add()
    assert bench.absences.find(KEY, "-1", BOB) is None
    bench.clock.advance(1.9)
    assert bench.absences.find(KEY, "-1", ALICE) is not None
    bench.clock.advance(0.2)
    assert bench.absences.find(KEY, "-1", ALICE) is None


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_what_says_nothing_of_the_stream_is_not_repeated(status: int) -> None:
    bench = Bench()
    bench.add(offset="5", status=status)
    assert bench.absences.find(KEY, "5", ALICE) is None


def test_a_refusal_that_was_long_on_its_way_is_that_much_older() -> None:
    bench = Bench(absent_s=2)
    bench.add(asked_s_ago=1.5)
    bench.clock.advance(0.4)
    assert bench.absences.find(KEY, "-1", ALICE) is not None
    bench.clock.advance(0.2)
    assert bench.absences.find(KEY, "-1", ALICE) is None
    bench.add(asked_s_ago=2.0)
    assert (bench.absences.find(KEY, "-1", ALICE), len(bench.absences)) == (None, 0)


@pytest.mark.parametrize("settings", [{"absent_s": 0}, {"tail": "asked"}])
def test_nothing_is_repeated_where_that_is_not_wanted(settings: dict[str, Any]) -> None:
    bench = Bench(**settings)
    bench.add()
    assert bench.absences.find(KEY, "-1", ALICE) is None


def test_a_write_ends_it_for_every_stream_of_its_path_from_when_it_is_sent_until_it_is_answered() -> None:
    bench = Bench()
    others = [KEY._replace(query="a=b"), KEY._replace(partition=Partition("other"))]
    for key in (KEY, *others):
        bench.add(key)
    bench.absences.write_begins(GROUP)
    bench.absences.write_begins(GROUP)
    bench.absences.write_ends(GROUP)
    for key in (KEY, *others):
        assert bench.absences.find(key, "-1", ALICE) is None
        bench.add(key)
        assert bench.absences.find(key, "-1", ALICE) is None
    bench.absences.write_ends(GROUP)
    bench.add()
    assert bench.absences.find(KEY, "-1", ALICE) is not None


def test_a_long_body_is_not_kept() -> None:
    bench = Bench()
    bench.add(body=b"x" * 2_000)
    assert bench.absences.find(KEY, "-1", ALICE) is None


def test_what_one_party_can_make_grow_is_bounded() -> None:
    bench = Bench()
    for number in range(45_000):
        bench.add(StreamKey(Group("http://origin", f"/{number}"), "", Partition("route")))
        bench.clock.advance(0.0001)
    assert len(bench.absences) <= 10_000
    assert bench.absences.entry_count <= 20_000


def test_ever_new_offsets_of_one_stream_are_bounded_as_well() -> None:
    bench = Bench()
    for number in range(45_000):
        bench.add(offset=str(number), status=410)
    assert bench.absences.entry_count <= 20_000
    bench.absences.write_begins(GROUP)
    assert (bench.absences.entry_count, len(bench.absences)) == (0, 0)


def test_404s_come_at_a_bounded_rate() -> None:
    bench = Bench(absent_per_s=10)
    for number in range(50):
        assert bench.absences.may_ask(bench.route)
        bench.add(KEY._replace(query=f"q={number}"))
    assert not bench.absences.may_ask(bench.route)
    bench.clock.advance(0.1)
    assert bench.absences.may_ask(bench.route)
    bench.add()
    assert not bench.absences.may_ask(bench.route)


def test_without_a_bound_they_come_as_they_like() -> None:
    bench = Bench(absent_per_s=0)
    for number in range(5_000):
        bench.add(KEY._replace(query=f"q={number}"))
    assert bench.absences.may_ask(bench.route)
