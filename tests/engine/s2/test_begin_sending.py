"""Sessions that begin in the same turn of the loop: one sends its first records at once, the others in later turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.engine.cold_reads import ColdReadLimit
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.s2.reader import S2SessionReader
from gateway.engine.s2.reads import S2Reads
from gateway.limits.accounts import Accounts, client_nets
from gateway.live.followed_streams import LiveTable
from gateway.tape.eviction import POLICIES
from gateway.tape.store import TapeStore
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.surroundings import Surroundings
from tests.memory_upstream import MemoryUpstream
from tests.waiting import pass_turns


class Bench:
    """Sessions whose first records take `cost_s` by a clock that nothing else moves."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.clock, self.tasks, self.cost_s = ManualClock(), Tasks(), cost_s
        store = TapeStore(1 << 20, POLICIES["s3-fifo"](), lambda: "i", NoMetrics())
        surroundings = Surroundings(self.clock, Random(0), self.tasks, NoMetrics())
        self.table = LiveTable(store, surroundings, 10, Accounts(client_nets(32, 64), self.clock.now))
        upstream, wheel = MemoryUpstream(), Wheel(self.clock)
        negative_cache, limit = cast("NegativeCache", None), cast("ColdReadLimit", None)
        self.reads = S2Reads(upstream, store, surroundings, self.table, wheel, negative_cache, limit)
        self.sent: list[str] = []
        self.gone: list[str] = []

    def begin(self, name: str, *, fails: bool = False) -> None:
        self.reads.begin_sending(cast("S2SessionReader", Session(self, name, fails)))


class Session:
    def __init__(self, bench: Bench, name: str, fails: bool) -> None:
        self._bench, self._name, self._fails = bench, name, fails

    def pump(self) -> None:
        self._bench.clock.advance(self._bench.cost_s)
        self._bench.sent.append(self._name)
        if self._fails:
            raise RuntimeError

    def gone(self) -> None:
        self._bench.gone.append(self._name)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    one = Bench()
    yield one
    one.table.close()
    await one.tasks.close()


async def test_a_turn_sends_for_one_session_at_once_and_for_the_others_in_order_later(bench: Bench) -> None:
    bench.cost_s = 1.0
    for name in "abcd":
        bench.begin(name)
    assert bench.sent == ["a"]
    sent = []
    for _ in range(4):
        await pass_turns(1)
        sent.append("".join(bench.sent))
    assert sent == ["ab", "abc", "abcd", "abcd"], "each of these sessions takes a turn's time"


async def test_a_session_that_begins_alone_never_waits(bench: Bench) -> None:
    for name in "abc":
        bench.begin(name)
        assert bench.sent[-1] == name
        await pass_turns(1)


async def test_a_session_that_fails_as_it_begins_is_dropped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError):
        bench.begin("first", fails=True)
    bench.begin("second", fails=True)
    bench.begin("third")
    await pass_turns(2)
    assert bench.sent == ["first", "second", "third"]
    assert bench.gone == ["first", "second"]
    assert "unhandled error" in caplog.text
