"""The kernel against obvious implementations: a stack that is walked, and spans kept by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.curve.kernel import NEVER, Trace, distances, missed, unseen

TRACES = st.lists(st.tuples(st.integers(-6, 6), st.integers(0, 9), st.integers(1, 9), st.booleans()), max_size=60)


def trace_of(rows: list[tuple[int, int, int, bool]]) -> Trace:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    keys, lows, lengths = (np.array(column, np.int64) for column in columns[:3])
    # A block's size is the same every time.
    return Trace(keys, 20 + abs(keys) * 7, lows, lows + lengths, np.array(columns[3], np.bool_))


def walked(keys: list[int], sizes: list[int]) -> list[int]:
    """Stack distances by walking the stack."""
    stack: list[tuple[int, int]] = []
    out = []
    for key, size in zip(keys, sizes, strict=True):
        names = [name for name, _ in stack]
        if key in names:
            place = names.index(key)
            out.append(sum(size for _, size in stack[: place + 1]))
            del stack[place]
        else:
            out.append(NEVER)
        stack.insert(0, (key, size))
    return out


@given(TRACES)
def test_distances_equal_those_of_a_walked_stack(rows: list[tuple[int, int, int, bool]]) -> None:
    trace = trace_of(rows)
    assert distances(trace.keys, trace.sizes).tolist() == walked(trace.keys.tolist(), trace.sizes.tolist())


def test_distances_are_right_just_above_a_power_of_two() -> None:
    rng = np.random.default_rng(1)
    for count in (255, 256, 257, 1_000, 2_049):
        keys = rng.integers(0, 70, count)
        sizes = 1 + keys % 13
        assert distances(keys, sizes).tolist() == walked(keys.tolist(), sizes.tolist())


@given(TRACES)
def test_bytes_outside_the_span_read_so_far_are_new(rows: list[tuple[int, int, int, bool]]) -> None:
    trace = trace_of(rows)
    spans: dict[int, tuple[int, int]] = {}
    expected = []
    for key, low, high in zip(trace.keys.tolist(), trace.lows.tolist(), trace.highs.tolist(), strict=True):
        begin, end = spans.get(key, (low, low))
        spans[key] = (min(begin, low), max(end, high))
        before = set(range(begin, end))
        expected.append(len(set(range(low, high)) - before) if key in spans and before else high - low)
        # The gap between two runs that do not touch counts as read from the next read on.
    assert unseen(trace).tolist() == expected


@given(TRACES, st.lists(st.integers(1, 400), min_size=1, max_size=5, unique=True))
def test_a_cache_has_what_fits_and_no_unseen_bytes(rows: list[tuple[int, int, int, bool]], sizes: list[int]) -> None:
    trace = trace_of(rows)
    caches = np.array(sorted(sizes), np.int64)
    found = missed(trace, caches)
    needs, new = distances(trace.keys, trace.sizes), unseen(trace)
    for place, cache in enumerate(caches.tolist()):
        had = [
            (int(high - low - fresh), bool(fresh == 0))
            for need, fresh, low, high, counts in zip(
                needs.tolist(), new.tolist(), trace.lows, trace.highs, trace.is_counted, strict=True
            )
            if counts and need != NEVER and need <= cache
        ]
        assert trace.bytes - found.bytes[place] == sum(size for size, _ in had)
        assert trace.references - found.references[place] == sum(whole for _, whole in had)


@given(TRACES)
def test_a_larger_cache_never_has_less(rows: list[tuple[int, int, int, bool]]) -> None:
    trace = trace_of(rows)
    found = missed(trace, np.arange(1, 600, 30, dtype=np.int64))
    assert (np.diff(found.bytes) <= 0).all()
    assert (np.diff(found.references) <= 0).all()
    assert (found.bytes >= 0).all()
    assert (found.references >= 0).all()
