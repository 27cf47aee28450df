"""Hit ratios of the policies, by requests and by bytes, and proof that the default deserves to be one.

`pytest -s tests/tape/test_eviction_ratios.py` prints the table.  The measuring loop is checked against two references:
the simple models of the policies, hit by hit, and for LRU Che's approximation, which involves no simulation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest

from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.costs import BLOCK_COST, STREAM_COST, TAPE_COST
from gateway.tape.eviction import POLICIES, USE_S, Eviction
from gateway.tape.store import TapeStore
from gateway.tape.tape import token_cost
from gateway.telemetry.metrics import NoMetrics
from tests.tape.eviction_loads import CACHE_SIZES, LOADS, ONE_SIZE, CacheSize, popularity
from tests.tape.eviction_models import model

DEFAULT = next(iter(POLICIES))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The share of requests, and of bytes, that did not need the origin."""

    hits: float
    bytes: float


def played(policy: Eviction[int], cache_size: CacheSize, requests: Iterable[int]) -> list[bool]:
    """For each request, whether it was a hit."""
    held: dict[int, int] = {}
    cost = 0
    out = []
    for key in requests:
        out.append(key in held)
        if key in held:
            policy.touch(key)
            continue
        size = held[key] = cache_size.size(key)
        policy.admit(key)
        cost += size
        while cost > cache_size.budget_bytes:
            victim = policy.victim(key)
            assert victim is not None
            cost -= held.pop(victim)
    return out


def measured(policy: str, cache_size: CacheSize, requests: Sequence[int]) -> Ratio:
    hits = played(POLICIES[policy](), cache_size, requests)
    asked = sum(map(cache_size.size, requests))
    given = sum(cache_size.size(key) for key, is_hit in zip(requests, hits, strict=True) if is_hit)
    return Ratio(sum(hits) / len(hits), given / asked)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], dict[str, Ratio]]:
    """Ratios by load and cache size, then by policy; printed as a table."""
    out: dict[tuple[str, str], dict[str, Ratio]] = {}
    print("\nhit ratio / byte hit ratio".ljust(29) + "".join(f"{policy:>16}" for policy in POLICIES))  # noqa: T201
    for cache_size in CACHE_SIZES:
        for name, load in LOADS.items():
            requests = load(random.Random(1))
            row = out[name, cache_size.name] = {policy: measured(policy, cache_size, requests) for policy in POLICIES}
            cells = "".join(f"{f'{ratio.hits:.3f} / {ratio.bytes:.3f}':>16}" for ratio in row.values())
            print(f"{name:10} {cache_size.name:17}{cells}")  # noqa: T201
    return out


Table = dict[tuple[str, str], dict[str, Ratio]]

NO_WORSE = 0.015
"""What adapting may cost for a while when the popular streams change from one request to the next (`change`)."""


def test_the_default_is_no_worse_than_lru_on_any_load(table: Table) -> None:
    for load, row in table.items():
        assert row[DEFAULT].hits > row["lru"].hits - NO_WORSE, load
        assert row[DEFAULT].bytes > row["lru"].bytes - NO_WORSE, load


@pytest.mark.parametrize(("load", "by"), [("zipf 0.8", 0.04), ("zipf 1.0", 0.02), ("scans", 0.04), ("crawler", 0.05)])
def test_the_default_beats_lru_on_skewed_loads_and_scans(table: Table, load: str, by: float) -> None:
    rows = [row for (name, _), row in table.items() if name == load]
    assert len(rows) == len(CACHE_SIZES)
    for row in rows:
        assert row[DEFAULT].hits > row["lru"].hits + by
        assert row[DEFAULT].bytes > row["lru"].bytes + by


def test_the_default_has_the_best_mean_over_all_loads(table: Table) -> None:
    def mean(of: Callable[[Ratio], float]) -> dict[str, float]:
        return {policy: sum(of(row[policy]) for row in table.values()) / len(table) for policy in POLICIES}

    for means in (mean(lambda ratio: ratio.hits), mean(lambda ratio: ratio.bytes)):
        assert max(means, key=means.__getitem__) == DEFAULT


# -- checks of the measurement ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", ["crawler", "rounds", "chats"])
@pytest.mark.parametrize(
    "cache_size", [CacheSize("100", 100 * ONE_SIZE, lambda key: ONE_SIZE), CACHE_SIZES[2]], ids=lambda size: size.name
)
def test_the_model_has_the_same_hits(policy: str, load: str, cache_size: CacheSize) -> None:
    requests = LOADS[load](random.Random(2))[:3_000]
    assert played(POLICIES[policy](), cache_size, requests) == played(model(policy), cache_size, requests)


def che(chances: Sequence[float], slots: int) -> float:
    """The hit ratio of LRU with room for `slots` equal streams (Che, Tung, Wang 2002): independent requests."""

    def held(time: float) -> float:
        return sum(1 - math.exp(-chance * time) for chance in chances)

    low, high = 0.0, 1.0
    while held(high) < slots:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < slots else (low, middle)
    return sum(chance * (1 - math.exp(-chance * high)) for chance in chances)


@pytest.mark.parametrize(("exponent", "slots"), [(0.8, 300), (0.8, 1_000), (1.0, 300), (1.2, 300)])
def test_lru_hits_as_often_as_theory_predicts_and_no_policy_beats_full_knowledge(exponent: float, slots: int) -> None:
    chances = popularity(5_000, exponent)
    rng = random.Random(3)
    requests = rng.choices(range(5_000), chances, k=30_000)
    cache_size = CacheSize("", slots * ONE_SIZE, lambda key: ONE_SIZE)
    warm = slice(10_000, None)
    ratio = {}
    for policy in POLICIES:
        hits = played(POLICIES[policy](), cache_size, requests)[warm]
        ratio[policy] = sum(hits) / len(hits)
    assert ratio["lru"] == pytest.approx(che(chances, slots), abs=0.01)
    assert ratio["lru"] < ratio["sieve"] < sum(chances[:slots]) + 0.01
    assert ratio["lru"] < ratio["s3-fifo"] < sum(chances[:slots]) + 0.01


# -- in the tape store--------------------------------------------------------------------------------------------------


def read_through_store(policy: str, slots: int, requests: Iterable[int], reads: int) -> list[bool]:
    """For each visit of `reads` requests close together, whether the store still had the stream's bytes."""
    minted = iter(range(1_000_000))
    # The names of streams have four digits on average.
    cost = TAPE_COST + STREAM_COST + 5 + BLOCK_COST + token_cost("-1") + token_cost("1") + ONE_SIZE
    store = TapeStore(slots * cost, POLICIES[policy](), lambda: str(next(minted)), NoMetrics())
    body = [bytes(ONE_SIZE)]
    out = []
    for number, request in enumerate(requests):
        now = 2.0 * USE_S * number
        for _ in range(reads):
            stream = store.open(StreamKey(Group("default", f"/{request}"), "", Partition("")), now)
            stream.holds += 1
            stream.expiry.know(Lifetime(None, None))
            is_hit = stream.tape.knows_after("-1")
            if not is_hit:
                store.store(stream, "-1", "1", body, now)
            store.release(stream)
            if now == 2.0 * USE_S * number:
                out.append(is_hit)
            now += USE_S / 10
    return out


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reads", [1, 3])
def test_the_store_has_the_same_hits_however_many_requests_a_visit_takes(policy: str, reads: int) -> None:
    requests = LOADS["crawler"](random.Random(4))[:4_000]
    cache_size = CacheSize("", 200 * ONE_SIZE, lambda key: ONE_SIZE)
    expected = played(POLICIES[policy](), cache_size, requests)
    hits = read_through_store(policy, 200, requests, reads)
    # The store charges a new stream before it has bytes, so the two may differ by one stream now and then.
    assert sum(hits) / len(hits) == pytest.approx(sum(expected) / len(expected), abs=0.01)
