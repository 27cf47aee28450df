"""Merges the samples of several workers into one history.

Workers take their samples at different moments.  The merged history uses the moments of the worker with the most
samples.  For each moment, it has the sum of the latest samples of all workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from gateway.ops.history import Sample
from gateway.ops.spared import Tally

_K = TypeVar("_K", bound=Hashable)


def merge_samples(workers: Iterable[Sequence[Sample]]) -> list[Sample]:
    """Return the merged samples, oldest first.  Each worker's samples must also be sorted by time."""
    every = [samples for samples in workers if samples]
    if not every:
        return []
    longest = max(every, key=len)
    others = [(samples, [one.at for one in samples]) for samples in every if samples is not longest]
    merged = []
    for sample in longest:
        latest = [samples[at - 1] for samples, times in others if (at := bisect_right(times, sample.at))]
        merged.append(add_samples([sample, *latest]))
    return merged


def add_samples(samples: Sequence[Sample]) -> Sample:
    """Return the sum of samples of different workers, at the moment of the first."""
    first = samples[0]
    return Sample(
        now=first.now,
        at=first.at,
        tally=Tally(
            reads=sum(one.tally.reads for one in samples),
            origin_requests=sum(one.tally.origin_requests for one in samples),
            answer_bytes=sum(one.tally.answer_bytes for one in samples),
            origin_bytes=sum(one.tally.origin_bytes for one in samples),
        ),
        requests=_added(one.requests for one in samples),
        upstream_requests=sum(one.upstream_requests for one in samples),
        upstream_bytes=sum(one.upstream_bytes for one in samples),
        downstream_bytes=sum(one.downstream_bytes for one in samples),
        subscribers=_added(one.subscribers for one in samples),
        delivery_delays=tuple(map(sum, zip(*(one.delivery_delays for one in samples), strict=True))),
    )


def _added(counts: Iterable[Mapping[_K, int]]) -> dict[_K, int]:
    total: Counter[_K] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
