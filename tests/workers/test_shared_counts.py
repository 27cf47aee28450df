"""The table of counts that workers share, and the accounts of clients on top of it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from collections.abc import Callable

import pytest

from gateway.config.rate_limits import RateLimitConfig
from gateway.limits.accounts import NO_PARTIES, Account, Room, client_nets
from gateway.limits.rate_limits import Bans, RateLimits
from gateway.limits.shared_accounts import SharedAccounts
from gateway.workers.shared_counts import Counted, SharedCounts
from gateway.workers.shared_memory import SharedMemory
from tests.workers.locks import held, hold_lock

NET, OTHER = "192.0.2.7", "192.0.2.8"
CONNECTIONS, LIVE = Counted.CONNECTIONS, Counted.LIVE_READS


class Bench:
    """Two workers with accounts, and one time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.shared = SharedMemory.create(2)
        self.counts = [SharedCounts(self.shared, slot) for slot in range(2)]
        nets = client_nets(32, 64)
        self.accounts = [SharedAccounts(nets, lambda: self.now, counts) for counts in self.counts]

    def account(self, worker: int, net: str = NET) -> Account:
        found = self.accounts[worker].open_account(net)
        assert found is not None
        return found

    def connect(self, worker: int, most: int = 100, most_of_one: int = 100, net: str = NET) -> Room:
        accounts, account = self.accounts[worker], self.account(worker, net)
        room = accounts.room_for(account, most, most_of_one)
        if room is Room.FREE:
            accounts.connect(account)
        return room

    def disconnect(self, worker: int, net: str = NET) -> None:
        self.accounts[worker].disconnect(self.account(worker, net))
        self.accounts[worker].end_connection()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- the table


def test_a_count_is_of_all_workers_and_stops_exactly_at_its_limit(bench: Bench) -> None:
    one, other = bench.counts
    key = one.key_of("net")
    assert [counts.take(key, CONNECTIONS, 3, 0.0) for counts in (one, other, one, other, one)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert (one.total(key, CONNECTIONS), one.own(key, CONNECTIONS), other.own(key, CONNECTIONS)) == (3, 2, 1)
    assert other.add(key, CONNECTIONS, -1, 0.0)
    assert one.take(key, CONNECTIONS, 3, 0.0)
    assert one.total(key, LIVE) == 0


def test_the_counts_of_a_dead_worker_are_forgotten(bench: Bench) -> None:
    one, other = bench.counts
    key = one.key_of("net")
    for counts in (one, other):
        counts.take(key, CONNECTIONS, 9, 0.0)
        counts.add(key, LIVE, 2, 0.0)
    SharedCounts(bench.shared, 1).clear()
    assert (one.total(key, CONNECTIONS), one.total(key, LIVE)) == (1, 2)


def test_a_row_without_counts_whose_time_has_passed_is_used_for_another_key(bench: Bench) -> None:
    counts, other = bench.counts
    # Keys of one bucket.
    keys = [1 + number * counts.buckets for number in range(10)]
    for key in keys[:8]:
        assert counts.take(key, CONNECTIONS, 9, 0.0)
    assert counts.take(keys[8], CONNECTIONS, 9, 0.0) is None
    other.add(keys[0], CONNECTIONS, 1, 0.0)
    for key in keys[:2]:
        counts.add(key, CONNECTIONS, -1, 0.0)
    # The other worker counts in the first row.
    assert counts.take(keys[8], CONNECTIONS, 9, 0.0)
    assert (counts.total(keys[0], CONNECTIONS), counts.total(keys[1], CONNECTIONS)) == (1, 0)
    counts.add(keys[8], CONNECTIONS, -1, 0.0)
    counts.set_times(keys[8], 100.0, 10.0, 0.0)
    assert counts.take(keys[9], CONNECTIONS, 9, 109.0) is None
    assert counts.take(keys[9], CONNECTIONS, 9, 111.0)
    assert counts.times(keys[8]) == counts.times(keys[9]) == (0.0, 0.0)


def test_far_from_its_limit_a_row_in_use_is_counted_in_without_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, other = bench.counts
    key, far = counts.key_of("net"), 2 * bench.shared.places
    locks: list[int] = []
    lockf = fcntl.lockf

    def counting(descriptor: int, kind: int, length: int, start: int) -> None:
        locks.append(kind)
        lockf(descriptor, kind, length, start)

    monkeypatch.setattr(fcntl, "lockf", counting)
    assert counts.take(key, CONNECTIONS, far + 2, 0.0)
    assert locks, "the row is not this worker's yet, and could be taken for another key"
    locks.clear()
    assert counts.take(key, CONNECTIONS, far + 2, 0.0)
    assert locks == []
    assert counts.take(key, CONNECTIONS, far + 1, 0.0)
    assert locks, "the limit is near"
    locks.clear()

    # Others count between the two looks of this worker.
    monkeypatch.setattr(counts, "_sum", lambda *_: far + 3)
    assert counts.take(key, CONNECTIONS, far + 3, 0.0) is False
    assert locks
    monkeypatch.undo()
    assert other.total(key, CONNECTIONS) == 3


TAKEN = 1_000
"""How often each process takes what one may have at a time."""


def _take_and_release(shared: SharedMemory, slot: int) -> None:
    counts = SharedCounts(shared, slot)
    key, taken = counts.key_of("net"), 0
    while taken < TAKEN:
        if not counts.take(key, CONNECTIONS, 1, 0.0):
            # The process that has it may wait for a processor.
            continue
        # A second one would be visible now.
        if counts.total(key, CONNECTIONS) != 1:
            counts.add(counts.key_of("violations"), CONNECTIONS, 1, 0.0)
        counts.add(key, CONNECTIONS, -1, 0.0)
        counts.add(counts.key_of("taken"), CONNECTIONS, 1, 0.0)
        taken += 1


def test_processes_that_count_at_the_same_time_pass_no_limit() -> None:
    shared = SharedMemory.create(3)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_take_and_release, args=(shared, slot)) for slot in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counts = SharedCounts(shared, 0)
    assert counts.total(counts.key_of("violations"), CONNECTIONS) == 0
    assert counts.total(counts.key_of("net"), CONNECTIONS) == 0
    assert counts.total(counts.key_of("taken"), CONNECTIONS) == 3 * TAKEN


def test_a_count_waits_for_another_process_in_the_same_bucket(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (counts, _), context = bench.counts, multiprocessing.get_context("fork")
    key = counts.key_of("net")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_lock, args=(bench.shared.descriptor, key % counts.buckets, theirs))
    holder.start()
    assert ours.recv() == "locked"
    # Another bucket is free.
    assert counts.take(key + 1, CONNECTIONS, 1, 0.0)
    waits: list[int] = []

    def release() -> None:
        waits.append(1)
        ours.send("release")
        holder.join()

    monkeypatch.setattr(os, "sched_yield", release)
    assert counts.take(key, CONNECTIONS, 1, 0.0)
    assert waits == [1]


def test_without_the_lock_no_free_row_is_taken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped worker has the lock, and may be about to take any free row for another key."""
    one, other = bench.counts
    key, used, banned = 1, 1 + one.buckets, 1 + 2 * one.buckets
    assert one.take(key, CONNECTIONS, 9, 0.0)
    assert one.add(key, CONNECTIONS, -1, 0.0)
    assert one.take(used, CONNECTIONS, 9, 0.0)
    assert one.set_times(banned, 100.0, 0.0, 0.0)
    with held(monkeypatch):
        for free in (key, key + 3 * one.buckets):
            assert other.take(free, CONNECTIONS, 9, 0.0) is None
            assert not other.add(free, LIVE, 1, 0.0)
            assert not other.set_times(free, 9.0, 9.0, 0.0)
            assert not other.advance(free, 0.0, 9.0, 0.0)
        assert other.take(used, CONNECTIONS, 9, 0.0)
        assert other.advance(banned, 100.0, 101.0, 0.0)
        assert not other.advance(banned, 101.0, 103.0, 102.0), "its time has passed"
    assert [one.total(one_key, CONNECTIONS) for one_key in (key, used)] == [0, 2]
    assert (one.times(key), one.times(banned)) == ((0.0, 0.0), (101.0, 0.0))


# -- connections


def test_one_network_has_its_share_over_all_workers(bench: Bench) -> None:
    assert [bench.connect(worker, most_of_one=3) for worker in (0, 1, 0, 1)] == [
        Room.FREE, Room.FREE, Room.FREE, Room.NO_SHARE,
    ]  # fmt: skip
    assert bench.connect(1, most_of_one=3, net=OTHER) is Room.FREE
    bench.disconnect(0)
    assert [bench.connect(worker, most_of_one=3) for worker in (1, 0)] == [Room.FREE, Room.NO_SHARE]


def test_all_connections_are_limited_over_all_workers(bench: Bench) -> None:
    assert [bench.connect(worker, most=2, net=net) for worker, net in ((0, NET), (1, OTHER), (0, OTHER))] == [
        Room.FREE, Room.FREE, Room.NONE,
    ]  # fmt: skip
    # A refused connection is not counted for its network.
    bench.disconnect(1, OTHER)
    assert bench.counts[0].total(bench.counts[0].key_of(OTHER), CONNECTIONS) == 0
    assert bench.connect(0, most=2, net=OTHER) is Room.FREE


def test_a_connection_refused_for_its_network_takes_no_place_of_others(bench: Bench) -> None:
    assert bench.connect(0, most=2, most_of_one=1) is Room.FREE
    assert bench.connect(1, most=2, most_of_one=1) is Room.NO_SHARE
    assert bench.connect(1, most=2, most_of_one=1, net=OTHER) is Room.FREE


def test_a_full_gateway_displaces_only_for_a_network_with_fewer_connections_at_all_workers(bench: Bench) -> None:
    for _ in range(3):
        bench.connect(0, most=5)
    for _ in range(2):
        bench.connect(1, most=5, net=OTHER)
    assert bench.accounts[0].room_for(bench.account(0, OTHER), 5, 100) is Room.NONE
    assert bench.accounts[0].room_for(bench.account(0, "192.0.2.9"), 5, 100) is Room.BY_DISPLACING
    bench.accounts[0].connect(bench.account(0, "192.0.2.9"))
    assert bench.counts[1].total(bench.counts[1].key_of("192.0.2.9"), CONNECTIONS) == 1


# -- live reads


def test_live_reads_are_counted_over_all_workers(bench: Bench) -> None:
    one, other = bench.account(0), bench.account(1)
    one.begin_live()
    other.live_reads += 1
    assert (one.live_reads, other.live_reads) == (2, 2)
    other.end_live(0)
    assert (one.live_reads, other.live_reads) == (1, 1)
    # Only the worker without a read forgets the account.
    assert (len(bench.accounts[0]), len(bench.accounts[1])) == (1, 0)
    one.end_live(0)
    assert one.live_reads == 0


def limits(bench: Bench, **config: object) -> list[RateLimits]:
    configs = [RateLimitConfig.model_validate({"name": "some", **config})]
    return [RateLimits(accounts, configs) for accounts in bench.accounts]


@pytest.mark.parametrize("per", ["client", "all", "route"])
def test_a_limit_of_live_reads_counts_those_of_all_workers(bench: Bench, per: str) -> None:
    rates = limits(bench, per=per, live_reads=2)

    def begin(worker: int) -> Callable[[int], None]:
        account, route = bench.account(worker), "main"
        assert rates[worker].refusal(account, route, bench.now, is_live=True) is None
        account.begin_live()
        use = rates[worker].begin_live(account, route, lambda: bench.now)
        assert use is not None
        return use.end_live

    end, _ = begin(0), begin(1)
    for worker in range(2):
        assert rates[worker].refusal(bench.account(worker), "main", bench.now, is_live=True) is not None
    end(0)
    for worker in range(2):
        assert rates[worker].refusal(bench.account(worker), "main", bench.now, is_live=True) is None


# -- rates and bans


@pytest.mark.parametrize("per", ["client", "all", "route"])
def test_workers_take_tokens_from_one_bucket(bench: Bench, per: str) -> None:
    rates = limits(bench, per=per, requests_per_s=1, burst=4)

    def take(worker: int) -> bool:
        return rates[worker].take_if_admitted(bench.account(worker), "main", bench.now, 0, NO_PARTIES)

    assert [take(number % 2) for number in range(6)] == [True] * 4 + [False] * 2
    bench.now += 1
    assert [take(1), take(0), take(1)] == [True, False, False]


def test_tokens_taken_at_the_same_moment_are_all_counted(bench: Bench) -> None:
    one, other = bench.counts
    key = one.key_of("bucket")
    seen = one.times(key)[0]
    one.advance(key, seen, bench.now + 1, bench.now)
    # The other worker has read the same time, and takes a token too.
    other.advance(key, seen, bench.now + 1, bench.now)
    assert one.times(key)[0] == bench.now + 2


def test_a_ban_holds_at_all_workers_and_is_over_for_all(bench: Bench) -> None:
    bans = Bans(0.2)
    for accounts in bench.accounts:
        accounts.may_ban = True
    assert [bans.refused(bench.account(number % 2), bench.now) for number in range(3)] == [0.0, 0.0, 10.0]
    assert [bench.account(worker).is_banned(bench.now) for worker in range(2)] == [True, True]
    bench.now += 10
    assert [bench.account(worker).is_banned(bench.now) for worker in range(2)] == [False, False]


def test_accounts_without_bans_do_not_ask_the_table(bench: Bench) -> None:
    account = bench.account(0)
    account.banned_until = bench.now + 10
    assert account.banned_until == 0.0
