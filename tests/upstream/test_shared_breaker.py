"""The breaker that workers share opens, probes and closes as that of one process."""

from __future__ import annotations

import multiprocessing
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.breaker import Breaker, BreakerState, Permit, Policy
from gateway.upstream.failures import RequestFailure
from gateway.upstream.shared_breaker import PROBE_S, SharedBreaker
from gateway.workers.shared_memory import SharedMemory
from gateway.workers.shared_origins import OriginRow, SharedOrigins
from tests.workers.locks import held, hold_lock

WORKERS = 4
NAME = "http://a"
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
SMALL = Policy(failures=3, window_s=10.0, least_requests=8, open_s=1.0, longest_open_s=4.0, probes=2)


class Longest(random.Random):
    """Always draws the longest open time."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Crew:
    """The breakers of the workers of one gateway."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now = 1_000.0
        self.policy = policy or Policy()
        self.shared = SharedMemory.create(WORKERS)
        self.changes: list[int] = []
        """The workers that have found the breaker opened or closed by another."""
        self.rows: dict[int, OriginRow] = {}
        self.breakers = [self._start(slot) for slot in range(WORKERS)]

    def _start(self, slot: int) -> SharedBreaker:
        row = SharedOrigins(self.shared, slot).join(NAME)
        assert row is not None
        self.rows[slot] = row
        return SharedBreaker(self.policy, Longest(), self.now, row, lambda: self.changes.append(slot))

    def restart(self, slot: int) -> None:
        """Start a worker in the slot of one that was killed while it was replacing the state."""
        row = self.rows[slot]
        row._copies[(row.version + 1) % 2][:] = bytes(range(100, 228))
        SharedOrigins(self.shared, slot).clear()
        self.breakers[slot] = self._start(slot)

    def ask(self, slot: int, **kind: bool) -> Permit:
        permit = self.breakers[slot].admit(self.now, **kind)
        assert permit is not None
        return permit

    def fail(self, slot: int, permit: Permit | None = None, **how: Any) -> None:
        self.breakers[slot].record_failure(permit or self.ask(slot), self.now, RequestFailure(**how))

    def succeed(self, slot: int, permit: Permit | None = None) -> None:
        self.breakers[slot].succeeded(permit or self.ask(slot), self.now)

    @property
    def states(self) -> list[BreakerState]:
        for breaker in self.breakers:
            breaker.refresh()
        return [breaker.state for breaker in self.breakers]

    def open(self) -> None:
        """Open it, and let the open time pass."""
        for slot in range(5):
            self.fail(slot % WORKERS)
        self.breakers[0].watched(self.now)
        assert self.states == [OPEN] * WORKERS
        self.now += 1.0


def test_losses_at_all_workers_are_one_series() -> None:
    crew = Crew()
    for number in range(10):
        assert crew.states == [CLOSED] * WORKERS, number
        crew.fail(number % WORKERS, is_loss=True)
    assert crew.states == [OPEN] * WORKERS
    assert [breaker.transitions[OPEN] for breaker in crew.breakers] == [0, 1, 0, 0]
    assert sorted(crew.changes) == [0, 2, 3]
    assert all(breaker.admit(crew.now) is None for breaker in crew.breakers)


def test_an_answer_at_one_worker_ends_the_series_of_all() -> None:
    crew = Crew()
    for _ in range(3):
        for number in range(9):
            crew.fail(number % WORKERS, is_loss=True)
        crew.succeed(3)
    assert crew.states == [CLOSED] * WORKERS


def test_all_workers_fill_one_window() -> None:
    crew = Crew(Policy(failures=100, least_requests=8))
    for number in range(3):
        crew.succeed(number)
        crew.fail(3)
    crew.succeed(0)
    assert crew.states[0] is CLOSED
    crew.fail(1)
    assert crew.states == [OPEN] * WORKERS
    # After the recovery, the window is empty.
    crew.now += 1.0
    crew.succeed(2)
    crew.fail(0)
    assert crew.states == [CLOSED] * WORKERS


def test_requests_that_wait_at_other_workers_count_as_successes_until_their_worker_dies() -> None:
    crew = Crew()
    crew.rows[3].set_waiting(100)
    for number in range(20):
        crew.fail(number % 3, is_loss=True)
    assert crew.states == [CLOSED] * WORKERS
    crew.restart(3)
    crew.fail(0, is_loss=True)
    assert crew.states == [OPEN] * WORKERS


def test_one_own_probe_is_sent_at_a_time_and_one_client_passes() -> None:
    crew = Crew()
    crew.open()
    own = crew.ask(2, is_own=True)
    for _ in range(3):
        assert [breaker.admit(crew.now, is_own=True) for breaker in crew.breakers] == [None] * WORKERS
        crew.now += 0.5
    crew.now += 0.5
    client = crew.ask(1)
    assert [breaker.admit(crew.now) for breaker in crew.breakers] == [None] * WORKERS
    crew.succeed(2, own)
    assert crew.states == [HALF_OPEN] * WORKERS
    # After a pause, any worker may send the next.
    assert crew.breakers[3].admit(crew.now, is_own=True) is None
    crew.now += 1.0
    crew.ask(3, is_own=True)
    # The term of the earlier client has ended with the first good probe.
    crew.succeed(1, client)
    assert crew.states == [HALF_OPEN] * WORKERS
    crew.now += 1.0
    crew.succeed(0)
    assert crew.states == [CLOSED] * WORKERS


def test_a_worker_that_dies_while_it_probes_is_replaced() -> None:
    crew = Crew()
    crew.open()
    crew.ask(0, is_own=True)
    crew.restart(0)
    crew.now += PROBE_S
    assert [breaker.admit(crew.now, is_own=True) for breaker in crew.breakers] == [None] * WORKERS
    crew.now += crew.breakers[0].first_pause_s
    crew.succeed(1, crew.ask(1, is_own=True))


def test_a_worker_that_notices_late_does_not_delay_clients_probes() -> None:
    crew = Crew()
    crew.open()
    crew.now += 1.0
    crew.breakers[1].watched(crew.now)
    assert crew.breakers[2].would_admit(crew.now)


def test_an_answer_proves_own_probes_right_for_all_workers() -> None:
    crew = Crew()
    for _ in range(2):
        crew.open()
        for slot in range(2):
            crew.succeed(slot, crew.ask(slot, is_own=True))
            crew.now += 1.0
        assert crew.states == [CLOSED] * WORKERS
        crew.succeed(3)
        crew.now += 2.0


def test_a_probe_without_a_result_lets_the_next_be_sent() -> None:
    crew = Crew()
    crew.open()
    crew.breakers[0].abandoned(crew.ask(0, is_own=True))
    crew.ask(1, is_own=True)


@pytest.mark.parametrize("per_s", [20, 1_000])
def test_a_network_that_loses_every_fifth_connection_does_not_open_it(per_s: int) -> None:
    crew, rng = Crew(), random.Random(per_s)
    for _ in range(10_000):
        crew.now += 1 / per_s
        slot = rng.randrange(WORKERS)
        if rng.random() < 0.2:
            crew.fail(slot, is_loss=True)
        else:
            crew.succeed(slot)
        if rng.random() < 0.01:
            crew.restart(slot)
    assert crew.states == [CLOSED] * WORKERS
    assert not any(breaker.transitions for breaker in crew.breakers)


# -- the same as one process


@dataclass
class Sent:
    """A request of a worker, with its permits from the shared breaker and from the single one."""

    slot: int
    shared: Permit
    single: Permit
    is_live: bool


class Both:
    """A crew, and the breaker of one process that lives through the same."""

    def __init__(self) -> None:
        self.crew = Crew(SMALL)
        self.single = Breaker(SMALL, Longest(), self.crew.now)
        self.sent: list[Sent] = []

    def waiting(self, slot: int | None = None) -> int:
        return sum(not one.is_live for one in self.sent if slot is None or one.slot == slot)

    def do(self, action: str, slot: int, which: int) -> None:
        crew, now = self.crew, self.crew.now
        worker = crew.breakers[slot]
        if action in ("ask", "ask live", "probe"):
            kind = {"is_own": action == "probe", "is_live": action == "ask live"}
            permit = worker.admit(now, **kind)
            if permit is None and action == "probe":
                # Another own probe is under way.  A single process waits for its result by itself.
                return
            single = self.single.admit(now, **kind)
            assert (permit is None) is (single is None)
            if permit is not None and single is not None:
                self.sent.append(Sent(slot, permit, single, kind["is_live"] or kind["is_own"]))
                self.tell_waiting()
        elif action == "kill":
            self.sent = [one for one in self.sent if one.slot != slot]
            crew.restart(slot)
        elif self.sent:
            one = self.sent.pop(which % len(self.sent))
            self.tell_waiting()
            worker, pairs = crew.breakers[one.slot], ((self.single, one.single), (crew.breakers[one.slot], one.shared))
            opened = self.single.transitions[OPEN]
            for breaker, permit in pairs:
                self.end(breaker, permit, action, self.waiting(one.slot) if breaker is worker else self.waiting())
            if self.single.transitions[OPEN] != opened and not one.single.is_probe:
                self.single.watched(now)
                worker.watched(now)

    def tell_waiting(self) -> None:
        for slot, row in self.crew.rows.items():
            row.set_waiting(self.waiting(slot))

    def end(self, breaker: Breaker, permit: Permit, how: str, waiting: int) -> None:
        now = self.crew.now
        match how:
            case "succeed":
                breaker.succeeded(permit, now)
            case "fail":
                breaker.record_failure(permit, now, RequestFailure(in_progress=waiting))
            case "lose":
                breaker.record_failure(permit, now, RequestFailure(is_loss=True, in_progress=waiting))
            case "cut off":
                breaker.succeeded(permit, now)
                breaker.record_failure(permit, now, RequestFailure(is_loss=True, had_succeeded=True, in_progress=None))
            case _:
                breaker.abandoned(permit)

    def compare(self, slot: int) -> None:
        shared, single, now = self.crew.breakers[slot], self.single, self.crew.now
        assert shared.would_admit(now) is single.would_admit(now)
        assert (shared.state, shared.since, shared.answers) == (single.state, single.since, single.answers)
        assert shared.retry_in_s(now) == single.retry_in_s(now)


ACTIONS = ("ask", "ask", "ask", "ask live", "probe", "succeed", "fail", "fail", "lose", "cut off", "abandon", "kill")
STEP = st.tuples(
    st.sampled_from((0.0, 0.0, 0.1, 1.0, 3.0)), st.sampled_from(ACTIONS), st.integers(0, WORKERS - 1), st.integers(0, 9)
)


@given(st.lists(STEP, max_size=60))
def test_workers_that_are_killed_at_any_moment_have_the_breaker_of_one_process(
    steps: list[tuple[float, str, int, int]],
) -> None:
    both = Both()
    for after_s, action, slot, which in steps:
        both.crew.now += after_s
        both.do(action, slot, which)
        both.compare((slot + 1) % WORKERS)


def test_a_change_waits_for_the_change_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, context = Crew(Policy(failures=1)), multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    row = crew.rows[0]
    holder = context.Process(target=hold_lock, args=(crew.shared.descriptor, row._at * 8, theirs))
    holder.start()
    assert ours.recv() == "locked"
    # An answer does not wait.
    crew.succeed(1)
    waits: list[BreakerState] = []

    def release() -> None:
        waits.extend(crew.states)
        ours.send("release")
        holder.join()

    monkeypatch.setattr(os, "sched_yield", release)
    crew.fail(1)
    assert waits == [CLOSED] * WORKERS
    assert crew.states == [OPEN] * WORKERS


def test_without_the_lock_each_worker_changes_its_own_view_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew()
    crew.fail(0)
    version = crew.rows[0].version
    with held(monkeypatch):
        for _ in range(4):
            crew.fail(1)
        assert crew.states == [CLOSED, OPEN, CLOSED, CLOSED]
        crew.now += 1.0
        crew.succeed(1)
        assert crew.states == [CLOSED] * WORKERS
        for _ in range(5):
            crew.fail(1)
        crew.now += 2.0
    assert crew.states == [CLOSED, OPEN, CLOSED, CLOSED]
    assert crew.rows[0].version == version
    # With the lock, the shared state counts: its second failure does not open it.
    crew.fail(1)
    assert crew.states == [CLOSED] * WORKERS
    assert crew.changes == [1]


def test_a_worker_stopped_in_a_change_overwrites_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, write = Crew(), OriginRow.write
    versions: list[int] = []

    def stopped(row: OriginRow, state: bytes) -> int:
        with monkeypatch.context() as patch, held(monkeypatch):
            patch.setattr(OriginRow, "write", write)
            before = row.version
            for _ in range(5):
                crew.fail(1)
            versions.extend((before, row.version))
        return write(row, state)

    with monkeypatch.context() as patch:
        patch.setattr(OriginRow, "write", stopped)
        crew.fail(0)
    assert versions[0] == versions[1]
    assert crew.states == [CLOSED] * WORKERS
    # The change of the stopped worker counts as the first failure.
    for slot in range(4):
        assert crew.states == [CLOSED] * WORKERS
        crew.fail(slot)
    assert crew.states == [OPEN] * WORKERS


def test_a_worker_that_starts_without_the_lock_writes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedMemory.create(1)
    row = SharedOrigins(shared, 0).join(NAME)
    assert row is not None
    with held(monkeypatch):
        breaker = SharedBreaker(Policy(failures=1), Longest(), 0.0, row, lambda: None)
    assert (row.version, breaker.state) == (0, CLOSED)
    breaker.record_failure(breaker.permit, 0.0)
    assert (row.version, breaker.state) == (1, OPEN)


def test_a_version_seen_before_its_state_is_not_used() -> None:
    crew = Crew(Policy(failures=1))
    crew.fail(0)
    row, at = crew.rows[0], crew.rows[0]._at + 1
    assert crew.states == [OPEN] * WORKERS
    # The copy that the new version takes into use is still the closed state of an earlier version.
    row._words[at] += 1
    assert crew.states == [OPEN] * WORKERS
    crew.now += 1.0
    crew.succeed(1)
    assert crew.states == [CLOSED] * WORKERS
