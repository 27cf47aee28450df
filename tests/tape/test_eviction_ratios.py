"""How often each policy has what is asked for, by requests and by bytes, and that the default earns its place.

`pytest -s tests/tape/test_eviction_ratios.py` prints the table.  The loop that measures is held to two references: the
obvious twins of the policies, hit by hit, and for recency Che's approximation, which knows no simulation at all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest

from gateway.protocol.freshness import Lifetime
from gateway.tape.eviction import POLICIES, Eviction
from gateway.tape.store import USE_S, TapeStore
from gateway.tape.stream import Group, StreamKey
from gateway.tape.tape import TAPE_COST, TOKEN_COST
from gateway.telemetry.metrics import NoMetrics
from tests.tape.eviction_loads import LOADS, ONE_SIZE, SHELVES, Shelf, popularity
from tests.tape.eviction_models import model

DEFAULT = next(iter(POLICIES))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The share of requests, and of bytes, that did not need the origin."""

    hits: float
    bytes: float


def played(policy: Eviction[int], shelf: Shelf, requests: Iterable[int]) -> list[bool]:
    """For each request, whether what it asks for was there."""
    held: dict[int, int] = {}
    cost = 0
    out = []
    for key in requests:
        out.append(key in held)
        if key in held:
            policy.touch(key)
            continue
        size = held[key] = shelf.size(key)
        policy.admit(key)
        cost += size
        while cost > shelf.budget_bytes:
            victim = policy.victim(key)
            assert victim is not None
            cost -= held.pop(victim)
    return out


def measured(policy: str, shelf: Shelf, requests: Sequence[int]) -> Ratio:
    hits = played(POLICIES[policy](), shelf, requests)
    asked = sum(map(shelf.size, requests))
    given = sum(shelf.size(key) for key, is_hit in zip(requests, hits, strict=True) if is_hit)
    return Ratio(sum(hits) / len(hits), given / asked)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], dict[str, Ratio]]:
    """Ratios by load and shelf, and in it by policy; printed."""
    out: dict[tuple[str, str], dict[str, Ratio]] = {}
    print("\nhit ratio / byte hit ratio".ljust(29) + "".join(f"{policy:>16}" for policy in POLICIES))  # noqa: T201
    for shelf in SHELVES:
        for name, load in LOADS.items():
            requests = load(random.Random(1))
            row = out[name, shelf.name] = {policy: measured(policy, shelf, requests) for policy in POLICIES}
            cells = "".join(f"{f'{ratio.hits:.3f} / {ratio.bytes:.3f}':>16}" for ratio in row.values())
            print(f"{name:10} {shelf.name:17}{cells}")  # noqa: T201
    return out


Table = dict[tuple[str, str], dict[str, Ratio]]

NO_WORSE = 0.015
"""What remembering may cost for a while when, from one request to the next, other streams are popular (`change`)."""


def test_the_default_is_no_worse_than_recency_on_any_load(table: Table) -> None:
    for place, row in table.items():
        assert row[DEFAULT].hits > row["lru"].hits - NO_WORSE, place
        assert row[DEFAULT].bytes > row["lru"].bytes - NO_WORSE, place


@pytest.mark.parametrize(("load", "by"), [("zipf 0.8", 0.04), ("zipf 1.0", 0.02), ("scans", 0.04), ("crawler", 0.05)])
def test_the_default_is_better_where_loads_are_skewed_or_scan(table: Table, load: str, by: float) -> None:
    rows = [row for (name, _), row in table.items() if name == load]
    assert len(rows) == len(SHELVES)
    for row in rows:
        assert row[DEFAULT].hits > row["lru"].hits + by
        assert row[DEFAULT].bytes > row["lru"].bytes + by


def test_the_default_is_the_best_of_all_taken_together(table: Table) -> None:
    def mean(of: Callable[[Ratio], float]) -> dict[str, float]:
        return {policy: sum(of(row[policy]) for row in table.values()) / len(table) for policy in POLICIES}

    for means in (mean(lambda ratio: ratio.hits), mean(lambda ratio: ratio.bytes)):
        assert max(means, key=means.__getitem__) == DEFAULT


# -- that the figures can be believed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", ["crawler", "rounds", "chats"])
@pytest.mark.parametrize(
    "shelf", [Shelf("100", 100 * ONE_SIZE, lambda key: ONE_SIZE), SHELVES[2]], ids=lambda shelf: shelf.name
)
def test_the_obvious_twin_has_the_same_hits(policy: str, load: str, shelf: Shelf) -> None:
    requests = LOADS[load](random.Random(2))[:3_000]
    assert played(POLICIES[policy](), shelf, requests) == played(model(policy), shelf, requests)


def che(chances: Sequence[float], places: int) -> float:
    """The hit ratio of recency with so many equal places (Che, Tung, Wang 2002): independent requests, one unknown."""

    def held(time: float) -> float:
        return sum(1 - math.exp(-chance * time) for chance in chances)

    low, high = 0.0, 1.0
    while held(high) < places:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < places else (low, middle)
    return sum(chance * (1 - math.exp(-chance * high)) for chance in chances)


@pytest.mark.parametrize(("exponent", "places"), [(0.8, 300), (0.8, 1_000), (1.0, 300), (1.2, 300)])
def test_recency_hits_as_often_as_theory_says_and_nothing_hits_more_than_knowing_all(
    exponent: float, places: int
) -> None:
    chances = popularity(5_000, exponent)
    rng = random.Random(3)
    requests = rng.choices(range(5_000), chances, k=30_000)
    shelf = Shelf("", places * ONE_SIZE, lambda key: ONE_SIZE)
    warm = slice(10_000, None)
    ratio = {}
    for policy in POLICIES:
        hits = played(POLICIES[policy](), shelf, requests)[warm]
        ratio[policy] = sum(hits) / len(hits)
    assert ratio["lru"] == pytest.approx(che(chances, places), abs=0.01)
    assert ratio["lru"] < ratio["sieve"] < sum(chances[:places]) + 0.01
    assert ratio["lru"] < ratio["s3-fifo"] < sum(chances[:places]) + 0.01


# -- in the library ----------------------------------------------------------------------------------------------------


def read_through_library(policy: str, places: int, requests: Iterable[int], reads: int) -> list[bool]:
    """For each visit, of `reads` requests close together, whether the library still had the stream's bytes."""
    minted = iter(range(1_000_000))
    cost = TAPE_COST + 2 * TOKEN_COST + ONE_SIZE
    store = TapeStore(places * cost, POLICIES[policy](), lambda: str(next(minted)), NoMetrics())
    body = [bytes(ONE_SIZE)]
    out = []
    for number, request in enumerate(requests):
        now = 2.0 * USE_S * number
        for _ in range(reads):
            stream = store.open(StreamKey(Group("default", f"/{request}"), "", ""), now)
            stream.pins += 1
            stream.lifetime = Lifetime(None, None)
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
def test_the_library_hits_as_the_figures_say_however_many_requests_a_visit_takes(policy: str, reads: int) -> None:
    requests = LOADS["crawler"](random.Random(4))[:4_000]
    shelf = Shelf("", 200 * ONE_SIZE, lambda key: ONE_SIZE)
    expected = played(POLICIES[policy](), shelf, requests)
    hits = read_through_library(policy, 200, requests, reads)
    # A newcomer is charged before he has any bytes, so the two may part by a place now and then.
    assert sum(hits) / len(hits) == pytest.approx(sum(expected) / len(expected), abs=0.01)
