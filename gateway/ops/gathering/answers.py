"""Merges the answers of several workers to one request of the admin API.

Every function gets at least one answer, in the sequence of the workers, and returns the answer of the whole gateway.

A stream may be in the memory of several workers: its owner follows the stream at the origin, and other workers keep
bytes of streams that are read often.  Such copies of a stream have the same id and are merged to one row.  The row has
the tail, the length and the state of the copy with the latest contact with the origin.  Readers, reads, hits and memory
are added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar

from gateway.ops.admin.controls import Draining, LogLevel
from gateway.ops.admin.counts import Counts
from gateway.ops.admin.directory import Name
from gateway.ops.admin.endpoint import ApiRequest
from gateway.ops.admin.origins import ShownOrigin, ShownOrigins
from gateway.ops.admin.overview import Cache, Overview
from gateway.ops.admin.plan import Actual, Pins, PlanInEffect, PlanShown, Warm
from gateway.ops.admin.revoke import Revoked
from gateway.ops.admin.streams import By, StreamDetail, StreamPage, StreamRow, TopStreams
from gateway.ops.admin.tails import Tails

Asked = ApiRequest[Any, Any]
_K = TypeVar("_K")
_Row = TypeVar("_Row", bound=StreamRow)

_WORST_FIRST: Final = {"open": 0, "half_open": 1, "closed": 2}
_MEASURES: Final[Mapping[By, Callable[[StreamRow], int]]] = {
    "requests": attrgetter("reads"),
    "bytes": attrgetter("sent_bytes"),
    "subscribers": attrgetter("readers"),
}


def merge_overviews(answers: Sequence[Overview]) -> Overview:
    """Sum the figures.  The gateway is ready if all workers are ready.  The shares of spared load are copied from the
    first worker.  The caller must replace these shares."""
    first = answers[0]
    requests: dict[str, dict[str, int]] = {}
    for mode in dict.fromkeys(chain.from_iterable(one.requests for one in answers)):
        requests[mode] = _added(one.requests.get(mode, {}) for one in answers)
    return Overview(
        version=first.version,
        node=first.node,
        now=max(one.now for one in answers),
        uptime_s=max(one.uptime_s for one in answers),
        is_draining=any(one.is_draining for one in answers),
        is_ready=all(one.is_ready for one in answers),
        spared=first.spared,
        spared_since_start=first.spared_since_start,
        requests=requests,
        upstream_requests=_added(one.upstream_requests for one in answers),
        upstream_bytes=sum(one.upstream_bytes for one in answers),
        downstream_bytes=sum(one.downstream_bytes for one in answers),
        retries=sum(one.retries for one in answers),
        slow_consumers=sum(one.slow_consumers for one in answers),
        subscribers=_added(one.subscribers for one in answers),
        connections=sum(one.connections for one in answers),
        cache=Cache(
            bytes=sum(one.cache.bytes for one in answers),
            limit_bytes=sum(one.cache.limit_bytes for one in answers),
            tapes=sum(one.cache.tapes for one in answers),
            evictions=sum(one.cache.evictions for one in answers),
        ),
        followed_streams=sum(one.followed_streams for one in answers),
    )


def merge_origins(_: Asked, answers: Sequence[ShownOrigins]) -> ShownOrigins:
    """Merge the states of each origin: sum its counts, and choose its worst state."""
    found: dict[str, list[ShownOrigin]] = defaultdict(list)
    for one in answers:
        for origin in one.origins:
            found[origin.origin].append(origin)
    return ShownOrigins([_merged_origin(copies) for copies in found.values()])


def _merged_origin(copies: Sequence[ShownOrigin]) -> ShownOrigin:
    worst = min(copies, key=lambda one: (_WORST_FIRST[one.state], not one.is_ejected))
    heard = [one.last_heard_s for one in copies if one.last_heard_s is not None]
    return replace(
        worst,
        is_ejected=any(one.is_ejected for one in copies),
        requests=sum(one.requests for one in copies),
        failures=sum(one.failures for one in copies),
        refused=sum(one.refused for one in copies),
        in_flight=sum(one.in_flight for one in copies),
        last_heard_s=min(heard, default=None),
    )


def merge_pages(asked: Asked, answers: Sequence[StreamPage]) -> StreamPage:
    """Merge pages that begin after the same stream.  Each worker's page has the first `limit` streams of this worker.
    The first `limit` streams of the merged pages are therefore complete."""
    limit = asked.query.limit
    rows = sorted(_merged_rows(chain.from_iterable(one.streams for one in answers)), key=_name)
    is_last = len(rows) <= limit and all(one.next is None for one in answers)
    rows = rows[:limit]
    return StreamPage(rows, None if is_last else _name(rows[-1]).cursor)


def merge_tops(asked: Asked, answers: Sequence[TopStreams]) -> TopStreams:
    """Rank the streams by their sums over all workers.  If a stream is not among the busiest streams at any worker, it
    is missing, even if its sum is great.  To make this unlikely, each worker is asked for many more streams than are
    shown."""
    query = asked.query
    rows = _merged_rows(chain.from_iterable(one.streams for one in answers))
    return TopStreams(query.by, sorted(rows, key=_MEASURES[query.by], reverse=True)[: query.limit])


def merge_details(_: Asked, answers: Sequence[StreamDetail]) -> StreamDetail:
    """Merge the copies of one stream.  The details of the tape are those of the copy with the most bytes."""
    largest, owner = max(answers, key=lambda one: one.bytes), _latest(answers)
    sessions = [one.session for one in answers if one.session is not None]
    return replace(
        _merged_row(answers),
        is_doubted=owner.is_doubted,
        tape=largest.tape,
        live_readers=list(chain.from_iterable(one.live_readers for one in answers)),
        session=owner.session or next(iter(sessions), None),
    )


def _name(row: StreamRow) -> Name:
    return Name(row.path, row.query, row.origin, row.partition)


def _latest(copies: Sequence[_Row]) -> _Row:
    """Return the copy with the most recent state.  Copies with a tail are preferred, then copies of followed streams,
    then copies with the latest contact with the origin."""
    return min(copies, key=lambda one: (one.tail is None, not one.is_followed, one.contacted_s))


def _merged_rows(rows: Iterable[StreamRow]) -> list[StreamRow]:
    copies: dict[str, list[StreamRow]] = defaultdict(list)
    for row in rows:
        copies[row.id].append(row)
    return [_merged_row(found) for found in copies.values()]


def _merged_row(copies: Sequence[_Row]) -> _Row:
    if len(copies) == 1:
        return copies[0]
    reads, hits = sum(one.reads for one in copies), sum(one.hits for one in copies)
    records = [one.records for one in copies if one.records is not None]
    return replace(
        _latest(copies),
        is_followed=any(one.is_followed for one in copies),
        bytes=sum(one.bytes for one in copies),
        records=sum(records) if records else None,
        blocks=sum(one.blocks for one in copies),
        readers=sum(one.readers for one in copies),
        reads=reads,
        hits=hits,
        hit_ratio=hits / reads if reads else None,
        sent_bytes=sum(one.sent_bytes for one in copies),
    )


def merge_tail_pages(asked: Asked, answers: Sequence[Tails]) -> Tails:
    """Merge pages of tails that begin after the same stream."""
    limit, tails = asked.query.limit, _furthest(answers)
    names = sorted(tails)
    is_last = len(names) <= limit and all(one.next is None for one in answers)
    names = names[:limit]
    return Tails({name: tails[name] for name in names}, None if is_last else names[-1])


def merge_tails(_: Asked, answers: Sequence[Tails]) -> Tails:
    """Merge the tails of named streams."""
    return Tails(_furthest(answers), None)


def _furthest(answers: Iterable[Tails]) -> dict[str, str | None]:
    """Return the furthest tail of each stream.  A worker that has not contacted the origin for longer has an earlier
    tail.  Offsets of one stream are compared as texts.  Sequence numbers are compared by their length first."""
    found: dict[str, str | None] = {}
    for one in answers:
        for name, tail in one.tails.items():
            known = found.get(name)
            found[name] = tail if known is None or (tail is not None and _order(tail) > _order(known)) else known
    return found


def _order(tail: str) -> tuple[int, str]:
    return (len(tail) if tail.isdecimal() else 0, tail)


def merge_counts(_: Asked, answers: Sequence[Counts]) -> Counts:
    """Return the counts of the worker whose answer has the most runs."""
    return max(answers, key=lambda one: len(one.runs))


def merge_revoked(_: Asked, answers: Sequence[Revoked]) -> Revoked:
    """Sum the numbers of ended live reads."""
    return Revoked(sum(one.live_reads for one in answers))


def merge_plans(_: Asked, answers: Sequence[PlanShown]) -> PlanShown:
    """Sum the results of the plan.  All workers have the same entries, and each stream of the plan has one owner."""
    plans = [one.plan for one in answers if one.plan is not None]
    return PlanShown(_merged_plan(plans) if plans else None)


def _merged_plan(plans: Sequence[PlanInEffect]) -> PlanInEffect:
    first = plans[0]
    actual = [one.actual for one in plans]
    hits, misses = sum(one.hits for one in actual), sum(one.misses for one in actual)
    read_bytes, fetched = sum(one.read_bytes for one in actual), sum(one.fetched_bytes for one in actual)
    budget = sum(one.memory.budget_bytes for one in plans)
    return replace(
        first,
        taken_at=min(one.taken_at for one in plans),
        actual=Actual(
            hits / (hits + misses) if hits + misses else None,
            min(1.0, max(0.0, 1 - fetched / read_bytes)) if read_bytes else None,
            hits,
            misses,
            read_bytes,
            fetched,
        ),
        memory=replace(first.memory, budget_bytes=budget, is_taken=all(one.memory.is_taken for one in plans)),
        pinned=Pins(
            first.pinned.wished,
            sum(one.pinned.kept for one in plans),
            sum(one.pinned.bytes for one in plans),
            sum(one.pinned.limit_bytes for one in plans),
        ),
        warmed=Warm(
            first.warmed.wished,
            sum(one.warmed.streams for one in plans),
            sum(one.warmed.bytes for one in plans),
            any(one.warmed.is_under_way for one in plans),
        ),
        unstored_bytes=sum(one.unstored_bytes for one in plans),
        given_up=sum(one.given_up for one in plans),
        unmatched=max(one.unmatched for one in plans),
    )


def merge_drains(_: Asked, answers: Sequence[Draining]) -> Draining:
    """Return that the gateway drains if at least one worker drains."""
    return Draining(any(one.is_draining for one in answers))


def first_config(_: Asked, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one worker's configuration, which is the same at all workers."""
    return answers[0]


def first_level(_: Asked, answers: Sequence[LogLevel]) -> LogLevel:
    """Return one worker's log level, which is the same at all workers."""
    return answers[0]


def _added(counts: Iterable[Mapping[_K, int]]) -> dict[_K, int]:
    total: dict[_K, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total
