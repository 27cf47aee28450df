"""Ten minutes of samples: their number, their distance, and the window before each."""

from __future__ import annotations

from itertools import pairwise

from gateway.aio.clock import ManualClock
from gateway.ops.history import INTERVAL_S, KEPT_S, MOST_SAMPLES, WINDOW_S, History, Recent, Sampling, sampled
from gateway.ops.metrics import Metrics
from gateway.ops.spared import Tally
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode


class Stage:
    """A recorder whose counters are sampled on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.history = History()
        self.sampling = Sampling(self.clock, self.take)

    def take(self) -> None:
        self.history.take(sampled(self.metrics, self.clock.now(), self.clock.wall()))

    def read(self, count: int, origin: int = 0) -> None:
        for _ in range(count):
            self.metrics.request(Mode.CATCHUP, Outcome.HIT, 0.0)
        for _ in range(origin):
            self.metrics.upstream_request(Mode.CATCHUP)

    def recent(self) -> Recent:
        return self.history.recent(sampled(self.metrics, self.clock.now(), self.clock.wall()))


def test_it_holds_ten_minutes_and_no_more() -> None:
    stage = Stage()
    stage.sampling.start()
    assert repr(stage.history) == "<History: 1 samples>"
    stage.clock.advance(5 * KEPT_S)
    assert repr(stage.history) == f"<History: {MOST_SAMPLES} samples>"
    at = [sample.at for sample, _ in stage.history.samples()]
    assert at[-1] - at[0] == KEPT_S
    assert at[-1] == stage.clock.wall()
    assert {later - earlier for earlier, later in pairwise(at)} == {INTERVAL_S}


def test_it_ends_with_its_gateway() -> None:
    stage = Stage()
    stage.sampling.start()
    stage.sampling.close()
    stage.clock.advance(60)
    assert repr(stage.history) == "<History: 1 samples>"
    assert stage.clock.pending == 0


def test_both_sides_of_a_share_are_of_the_last_ten_seconds() -> None:
    stage = Stage()
    stage.sampling.start()
    stage.read(1_000, origin=1_000)
    assert stage.recent() == Recent(0.0, Tally(reads=1_000, origin_requests=1_000))
    stage.clock.advance(60)
    stage.read(10, origin=1)
    assert stage.recent() == Recent(WINDOW_S, Tally(reads=10, origin_requests=1))
    stage.clock.advance(1)
    # The window starts at a sample, so it may be longer by up to one interval.
    assert stage.recent() == Recent(WINDOW_S + 1, Tally(reads=10, origin_requests=1))
    stage.clock.advance(13)
    assert stage.recent() == Recent(WINDOW_S, Tally())
    shares = [recent.tally.requests_spared for _, recent in stage.history.samples()]
    # Nothing was counted before the first sample; then five samples have the burst in their window, and so on.
    assert shares[:7] == [None, 0.0, 0.0, 0.0, 0.0, 0.0, None]
    assert shares.count(0.9) == 5


def test_a_sample_has_sums_over_routes_and_batched_counts() -> None:
    stage = Stage()
    stage.metrics.before_collect = lambda: stage.metrics.hits(Mode.CATCHUP, Outcome.HIT, 3, 30, "a")
    stage.metrics.request(Mode.APPEND, Outcome.PASS, 0.0, "a")
    stage.metrics.request(Mode.SSE, Outcome.FOLLOWED, 0.0, "b")
    stage.metrics.upstream_request(Mode.APPEND, "a")
    stage.metrics.upstream_bytes(7, Mode.SSE, "b")
    for route in ("a", "b"):
        stage.metrics.subscribers(Mode.SSE, 2, route)
        stage.metrics.delivered(5, 0.0001, route)
    sample = sampled(stage.metrics, 5.0, 6.0)
    assert (sample.now, sample.at) == (5.0, 6.0)
    assert sample.requests == {Outcome.HIT: 3, Outcome.PASS: 1, Outcome.FOLLOWED: 1}
    assert sample.subscribers == {Mode.LONGPOLL: 0, Mode.SSE: 4}
    assert (sample.upstream_requests, sample.upstream_bytes, sample.downstream_bytes) == (1, 7, 30)
    assert sample.delivery_delays[0] == sum(sample.delivery_delays) == 2
