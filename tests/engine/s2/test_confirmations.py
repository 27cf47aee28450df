"""When the followed streams in doubt are confirmed."""

from __future__ import annotations

from typing import cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.engine.s2.fetch import S2Origin, S2Source
from gateway.engine.s2.stream import S2Shared, S2Stream
from gateway.engine.s2.streams import EVERY_S, S2Confirmations
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.telemetry.metrics import NoMetrics


class Bench:
    """S2Confirmations, and the names of the streams that were confirmed."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.confirmed: list[str] = []
        self.confirmations = S2Confirmations(
            self.clock, lambda stream, client: self.confirmed.append(f"{stream.source} for {client}")
        )
        store = TapeStore(1 << 20, POLICIES["s3-fifo"](), lambda: "i", NoMetrics())
        self._store, self._shared = (
            store,
            S2Shared(cast("S2Origin", None), store, self.clock, Tasks(), lambda call: None),
        )

    def stream(self, path: str, token: str) -> S2Stream:
        key = StreamKey(Group("http://o", f"/v1/streams/{path}"), "", Partition("r", readers=token))
        return S2Stream(
            self._shared, self._store.open_as(RecordStream, key, 0.0), cast("S2Source", f"{path} of {token}")
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_stream_is_confirmed_at_once_and_the_paths_take_turns(bench: Bench) -> None:
    for token in "abc":
        bench.confirmations.queue_stream(bench.stream("large", token), "x")
    bench.confirmations.queue_stream(bench.stream("small", "d"), "y")
    assert bench.confirmed == ["large of a for x"]
    for _ in range(4):
        bench.clock.advance(EVERY_S)
    assert bench.confirmed[1:] == ["large of b for x", "small of d for y", "large of c for x"]
    assert bench.clock.pending == 0


def test_a_stream_waits_once_and_is_left_out_when_it_is_followed_no_more(bench: Bench) -> None:
    first, left, twice = [bench.stream("path", token) for token in "abc"]
    for stream in (first, left, twice, twice):
        bench.confirmations.queue_stream(stream, "x")
    bench.confirmations.remove(left)
    bench.clock.advance(10 * EVERY_S)
    assert bench.confirmed == ["path of a for x", "path of c for x"]


def test_nothing_is_confirmed_after_the_end(bench: Bench) -> None:
    for token in "ab":
        bench.confirmations.queue_stream(bench.stream("path", token), "x")
    bench.confirmations.close()
    bench.clock.advance(1)
    assert bench.confirmed == ["path of a for x"]
    assert bench.clock.pending == 0
