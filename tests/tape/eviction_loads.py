"""Loads for comparing eviction policies: which streams are requested, in which order, and how large they are.

Each load is a function of a random generator and gives one stream number per request.  Its docstring says what it
models.  No load models the growth of streams.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

REQUESTS = 20_000
_NEVER_ASKED_BEFORE = 1_000_000

Load = Callable[[random.Random], list[int]]


def popularity(count: int, exponent: float) -> list[float]:
    """Zipf's law: the probability of each of `count` streams."""
    weights = [1 / rank**exponent for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def _draws(rng: random.Random, count: int, exponent: float) -> Iterator[int]:
    reach = list(accumulate(popularity(count, exponent)))
    while True:
        yield min(count - 1, bisect(reach, rng.random()))


def skewed(exponent: float) -> Load:
    """5,000 streams of fixed popularity."""

    def load(rng: random.Random) -> list[int]:
        draws = _draws(rng, 5_000, exponent)
        return [next(draws) for _ in range(REQUESTS)]

    return load


def scans(rng: random.Random) -> list[int]:
    """After every 3,000 requests a nightly job scans 1,000 streams that have no other readers."""
    draws, new = _draws(rng, 3_000, 1.0), _NEVER_ASKED_BEFORE
    out: list[int] = []
    while len(out) < REQUESTS:
        out += [next(draws) for _ in range(3_000)]
        out += range(new, new + 1_000)
        new += 1_000
    return out[:REQUESTS]


def crawler(rng: random.Random) -> list[int]:
    """Two of five requests are for a stream that is read once and never again."""
    draws, new = _draws(rng, 3_000, 0.9), iter(range(_NEVER_ASKED_BEFORE, 2 * _NEVER_ASKED_BEFORE))
    return [next(new) if rng.random() < 0.4 else next(draws) for _ in range(REQUESTS)]


def rounds(rng: random.Random) -> list[int]:
    """A monitor requests 1,500 streams in turn, for ever: the worst case of LRU if they do not all fit."""
    return [number % 1_500 for number in range(REQUESTS)]


def drift(rng: random.Random) -> list[int]:
    """The newest streams are the popular ones, and there is a new one every 20 requests."""
    draws = _draws(rng, 400, 0.8)
    return [_NEVER_ASKED_BEFORE + number // 20 - next(draws) for number in range(REQUESTS)]


def change(rng: random.Random) -> list[int]:
    """From one moment to the next, other streams are the popular ones."""
    draws = _draws(rng, 3_000, 1.0)
    return [next(draws) + number // 5_000 * 1_000 for number in range(REQUESTS)]


def chats(rng: random.Random) -> list[int]:
    """Most streams are read a few times within a short while and never again; some stay popular."""
    draws, new = _draws(rng, 2_000, 0.9), iter(range(_NEVER_ASKED_BEFORE, 2 * _NEVER_ASKED_BEFORE))
    out: list[int] = []
    talking: list[list[int]] = []
    while len(out) < REQUESTS:
        if rng.random() < 0.3:
            out.append(next(draws))
            continue
        if len(talking) < 50:
            talking.append([next(new), rng.choice((1, 1, 1, 2, 3, 5, 20))])
        chat = rng.choice(talking)
        out.append(chat[0])
        chat[1] -= 1
        if not chat[1]:
            talking.remove(chat)
    return out


LOADS: dict[str, Load] = {
    "zipf 0.8": skewed(0.8),
    "zipf 1.0": skewed(1.0),
    "zipf 1.2": skewed(1.2),
    "scans": scans,
    "crawler": crawler,
    "rounds": rounds,
    "drift": drift,
    "change": change,
    "chats": chats,
}

ONE_SIZE = 10_000


class Mixed(dict[int, int]):
    """Sizes from 1 KB to 4 MB, log-normal around 10 KB, whatever the popularity."""

    def __missing__(self, key: int) -> int:
        drawn = random.Random(key).lognormvariate(9.2, 1.5)
        size = self[key] = max(1_200, min(4_000_000, int(drawn)))
        return size


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A cache size, and the sizes of the streams in it."""

    name: str
    budget_bytes: int
    size: Callable[[int], int]


CACHE_SIZES = [
    CacheSize("300 of 10 KB", 300 * ONE_SIZE, lambda key: ONE_SIZE),
    CacheSize("1,000 of 10 KB", 1_000 * ONE_SIZE, lambda key: ONE_SIZE),
    CacheSize("6 MB mixed", 6_000_000, Mixed().__getitem__),
    CacheSize("20 MB mixed", 20_000_000, Mixed().__getitem__),
]
