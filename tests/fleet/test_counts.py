"""What an owner concludes from the counts that other members send."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.aio.clock import ManualClock
from gateway.engine.fleet_processes import MemberProcesses, Met
from gateway.engine.fleet_writes import CountedWrites, HeardAppends, SeenWrites
from gateway.engine.relayed_request import NO_CHANGE, SentRequest
from gateway.protocol.fleet_headers import ACKNOWLEDGED, MemberAnswer, MemberField, WriteCount, moved
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group
from gateway.protocol.worker_headers import HOP_RECORD, HopSaid, Remembered
from gateway.server.hop_statements import HopStatements
from gateway.upstream.reply import Reply
from gateway.workers.member_owners import MemberOwners
from gateway.workers.shared_memory import MOST_WORKERS
from tests.engine.bench import EngineBench, part_of_stream

GROUP = Group("http://origin", "/s")
FIRST = MemberField("b", "1" * 16, "2" * 16)


class Effects:
    """Takes the place of the writes in memory."""

    def __init__(self) -> None:
        self.appends: list[str] = []
        self.anything: list[Group] = []
        self.earlier: list[float] = []
        self.apply_anything = self.anything.append
        self.seen = SeenWrites(lambda: self, lambda: 5.0, most=4)

    def apply_appends(self, group: Group, acknowledged_by: float | None) -> None:
        self.appends.append("appends" if acknowledged_by is None else "acknowledged appends")

    def apply_earlier(self, group: Group, before: float) -> None:
        self.earlier.append(before)

    def after(
        self,
        appends: int,
        others: int = 0,
        sender: MemberField = FIRST,
        group: Group = GROUP,
        *,
        is_successor: bool = False,
    ) -> str:
        """The effects of one request."""
        self.appends.clear()
        self.anything.clear()
        self.earlier.clear()
        self.seen.look(sender._replace(writes=WriteCount(appends, others)), group, Met(7.0, is_successor))
        assert set(self.earlier) <= {7.0}
        found = ["earlier"] * len(self.earlier) + self.appends + ["anything"] * len(self.anything)
        return " and ".join(found)


def test_the_first_count_and_each_greater_one_have_an_effect() -> None:
    effects = Effects()
    assert [effects.after(*counts) for counts in ((0,), (0,), (1,), (1,), (1, 1), (1, 1), (2, 1))] == [
        "earlier", "", "appends", "", "anything", "", "appends"
    ]  # fmt: skip
    assert effects.after(1, 0) == "", "an earlier request that has arrived late"
    assert effects.after(2, 1) == ""


def test_an_owner_is_told_whether_an_append_was_acknowledged() -> None:
    effects = Effects()
    assert [effects.after(count) for count in (ACKNOWLEDGED, ACKNOWLEDGED + 1, 2 * ACKNOWLEDGED + 1)] == [
        "earlier and acknowledged appends", "appends", "acknowledged appends"
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "number"), [(204, ACKNOWLEDGED), (503, 1), (409, 1)])
def test_only_an_acknowledged_append_counts_as_one(status: int, number: int) -> None:
    counts = CountedWrites(MemberOwners(["a", "b"], 0, b"the key of cells"))
    request = SimpleNamespace(group=GROUP, mode=Mode.APPEND)
    write = SimpleNamespace(request=request, change=NO_CHANGE, is_overtaken=False, is_cut_short=False)
    counts.answered(cast(SentRequest, write), cast(Reply, SimpleNamespace(status=status)))
    latest = int(number == ACKNOWLEDGED)
    assert (counts.count(GROUP), counts.appended()) == (WriteCount(number, 0, latest), latest)


def test_each_path_and_each_member_counts_for_itself() -> None:
    effects = Effects()
    other = FIRST._replace(name="c")
    assert effects.after(1) == effects.after(1, sender=other) == "earlier and appends"
    assert effects.after(1, group=Group("http://origin", "/t")) == "earlier and appends"
    assert effects.after(1) == effects.after(1, sender=other) == ""


def test_the_paths_of_a_member_that_was_replaced_are_asked_for_once() -> None:
    effects, second = Effects(), FIRST._replace(instance="3" * 16)
    assert effects.after(5) == "earlier and appends"
    # The earlier process may be relaying writes to its end.
    found = [effects.after(0, sender=second, is_successor=True) for _ in range(2)]
    assert found == ["earlier and acknowledged appends", ""]
    assert effects.after(1, sender=second) == "appends"
    assert effects.after(0, 1, sender=second) == "anything"


def test_a_process_is_a_successor_if_another_one_of_its_member_was_met() -> None:
    processes = MemberProcesses(lambda: 7.0)
    assert [processes.met("b", one).is_successor for one in "112"] == [False, False, True]
    assert not processes.met("c", "3").is_successor


def test_a_forgotten_count_costs_a_question() -> None:
    effects = Effects()
    groups = [Group("http://origin", f"/{number}") for number in range(6)]
    assert {effects.after(1, group=group) for group in groups} == {"earlier and appends"}
    assert repr(effects.seen) == "<SeenWrites 4 counts>"
    assert [effects.after(1, group=groups[number]) for number in (5, 0)] == ["", "earlier and appends"]


@given(
    name=st.from_regex(r"[A-Za-z0-9._-]{1,63}", fullmatch=True),
    counts=st.tuples(*[st.integers(0, (1 << 64) - 1)] * 4),
    worker=st.integers(0, MOST_WORKERS - 1),
    workers=st.lists(st.integers(0, MOST_WORKERS - 1), min_size=1, unique=True).map(tuple),
    is_leaving=st.booleans(),
    knows_all=st.booleans(),
)
def test_the_fields_survive(
    name: str,
    counts: tuple[int, int, int, int],
    worker: int,
    workers: tuple[int, ...],
    is_leaving: bool,
    knows_all: bool,
) -> None:
    field = MemberField(name, "0" * 16, "f" * 16, "e" * 16, WriteCount(*counts[:3]), worker, "c" * 16, counts[3])
    assert MemberField.parse(field.rendered()) == field
    answer = MemberAnswer(
        name, "0" * 16, "f" * 16, is_leaving, "d" * 16, "e" * 16, worker, workers, knows_all, "b" * 16
    )
    assert MemberAnswer.parse(answer.rendered()) == answer


@pytest.mark.parametrize("text", ["", "x", FIRST.rendered()[:-1], FIRST.rendered() + " 1"])
def test_a_malformed_field_is_no_members(text: str) -> None:
    assert MemberField.parse(text) is None


def test_times_of_another_clock_are_moved() -> None:
    facts = Remembered("a/b", "1", False, -5.0, False, False, (), ())
    said = HopSaid("b", -2.0, remembered=facts, lifetime=Lifetime(60, 30.0))
    found = moved(said, 100.0, 7_000.0)
    assert found.remembered is not None
    assert (found.as_of, found.remembered.contacted_at) == (98.0, 95.0)
    assert found.lifetime == Lifetime(60, 7_030.0)


def test_a_time_by_which_an_append_was_acknowledged_is_that_of_the_first_later_number() -> None:
    clock = ManualClock()
    heard, began = HeardAppends(clock.now), clock.now()
    for number in (0, 3, 3, 7, 5):
        heard.hear(FIRST._replace(appended=number))
        clock.advance(1)
    found = [heard.by("b", FIRST.instance, number) - began for number in (1, 3, 4, 7)]
    assert found == [1, 1, 3, 3]
    # Of these, nothing was heard.
    asked = [("b", FIRST.instance, 8), ("b", FIRST.instance, 0), ("b", "3" * 16, 1), ("c", FIRST.instance, 1)]
    assert [heard.by(*one) - began for one in asked] == [5] * 4
    # The numbers of the next process have begun anew.
    heard.hear(FIRST._replace(instance="3" * 16, appended=2))
    assert [heard.by("b", one, 1) - began for one in (FIRST.instance, "3" * 16)] == [5, 5]
    clock.advance(1)
    assert [heard.by("b", one, 1) - began for one in (FIRST.instance, "3" * 16)] == [6, 5]


def test_the_times_of_many_appends_are_remembered_in_part_and_are_never_too_early() -> None:
    clock = ManualClock()
    heard, times = HeardAppends(clock.now), {}
    for number in range(1, 2_001):
        clock.advance(1)
        times[number] = clock.now()
        heard.hear(FIRST._replace(appended=number))
    late = {number: heard.by("b", FIRST.instance, number) - at for number, at in times.items()}
    assert min(late.values()) >= 0
    assert late[2_000] == 0
    assert len({at + late[number] for number, at in times.items()}) <= 64
    for number in range(300):
        heard.hear(FIRST._replace(name=f"m{number}", appended=1))
    assert repr(heard) == "<HeardAppends of 256 members>"


async def test_an_owner_states_an_expiry_relative_to_its_own_wall_clock() -> None:
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        (await bench.engine.catch_up(bench.read("/s?offset=-1"))).close()
        for left_s in (30.0, -2.0):
            bench.stream.expiry.know(Lifetime(None, bench.clock.wall() + left_s))
            said = HopStatements(bench.engine, "b", is_relative=True).said(bench.stream)
            assert said.lifetime == Lifetime(None, left_s)
            read = HopSaid.of({HOP_RECORD: said.rendered()})
            assert read is not None
            assert read.lifetime == said.lifetime
    finally:
        await bench.close()


def test_what_is_remembered_of_a_path_does_not_grow_with_the_path() -> None:
    effects = Effects()
    paths = [f"/{number}/" + "x" * 8_000 for number in range(4)]
    tracemalloc.start()
    try:
        for path in paths:
            assert effects.after(1, group=Group("http://origin", path)) == "earlier and appends"
            effects.earlier.clear()
            effects.appends.clear()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 8_000
    assert [effects.after(1, group=Group("http://origin", path)) for path in paths] == [""] * 4


def test_the_cells_of_few_paths_are_remembered() -> None:
    counts = CountedWrites(MemberOwners(["a", "b"], 0, b"secret"))
    for number in range(2_000):
        counts.count(Group("http://origin", f"/{number}"))
    assert counts.index_of.cache_info().currsize <= 1_024
