"""The public admin port of a gateway with several workers: each request is sent to all workers.

`GATHERINGS` has, for each endpoint, the request to the workers, and the function that merges their answers.

A look-up ignores workers that refuse it, because a stream may be in the memory of only some workers.  A change has to
be made by every worker.  If a worker has not made the change, the answer is an error that names the worker.

A purge is sent to the workers twice.  In the first round, a worker that has purged a stream may fetch it again from an
owner that has not purged yet.  Before the second round begins, all owners have purged.  After the second round, no
worker therefore has bytes from before the purge.

While an upgrade ends, the previous version still answers the clients that are connected to it.  A revocation and a
purge are therefore also sent to the workers of the previous version.  If one of these workers has not made the change,
the answer is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from aiohttp import web

from gateway.ops.admin.app import QUESTIONS, replaced
from gateway.ops.admin.controls import DrainBody, Draining, LogLevel
from gateway.ops.admin.counts import Counts, CountsQuery
from gateway.ops.admin.endpoint import ApiRequest, Endpoint, Nothing, Refused, adapter_of
from gateway.ops.admin.history import HistoryShown, show_history
from gateway.ops.admin.origins import ShownOrigins
from gateway.ops.admin.overview import Overview, spared
from gateway.ops.admin.plan import PlanShown
from gateway.ops.admin.purge import PurgeBody, Purged
from gateway.ops.admin.readiness import unready_workers
from gateway.ops.admin.revoke import RevokeBody, Revoked
from gateway.ops.admin.streams import MOST_ROWS, StreamDetail, StreamPage, StreamsQuery, TopQuery, TopStreams
from gateway.ops.admin.subject import Subject
from gateway.ops.admin.tails import Tails, TailsBody, TailsQuery
from gateway.ops.gathering.answers import (
    first_config,
    first_level,
    merge_counts,
    merge_details,
    merge_drains,
    merge_origins,
    merge_overviews,
    merge_pages,
    merge_plans,
    merge_revoked,
    merge_tail_pages,
    merge_tails,
    merge_tops,
)
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.families import RawFamily, merge_families, read_families
from gateway.ops.gathering.peers import CHANGE_S, LOOK_S, PeerAnswer, Peers
from gateway.ops.gathering.private import (
    FAMILIES,
    OVERVIEW,
    PURGE,
    READY,
    SAMPLES,
    WorkerOverview,
    WorkerPurged,
    WorkerSamples,
    WorkerSettings,
)
from gateway.ops.gathering.samples import add_samples, merge_samples
from gateway.ops.gathering.worker_families import worker_families
from gateway.ops.history import History, Recent
from gateway.ops.metrics import in_turns
from gateway.ops.spared import Tally
from gateway.upstream.health import OriginNews

_BUSY: Final = 504

Asked = ApiRequest[Any, Any]


@dataclass(frozen=True, slots=True)
class Gathering:
    """The way to gather the answer of one endpoint from the workers."""

    merge: Callable[[Asked, Sequence[Any]], object]
    """Merges the workers' answers, which are in the sequence of the slots."""
    target: Callable[[Asked], str] | None = None
    """Returns the target of the requests to the workers; None if it is the target of the request to the gateway."""
    shape: Any = None
    """The type of a worker's answer; None if it is the type of the endpoint's answer."""
    rounds: int = 1
    reaches_before: bool = False
    """Whether the request is also sent to the previous version, while that version drains."""


def _overview(_: Asked, answers: Sequence[WorkerOverview]) -> Overview:
    history = _history([one.samples for one in answers])
    now = add_samples([one.samples.now for one in answers])
    started_at = min(one.samples.started_at for one in answers)
    return replace(
        merge_overviews([one.overview for one in answers]),
        spared=spared(history.recent(now)),
        spared_since_start=spared(Recent(now.now - started_at, now.tally.since(Tally()))),
    )


def _shown_history(_: Asked, answers: Sequence[WorkerSamples]) -> HistoryShown:
    return show_history(_history(answers), min(one.started_at for one in answers))


def _history(workers: Sequence[WorkerSamples]) -> History:
    history = History()
    for sample in merge_samples([one.samples for one in workers]):
        history.take(sample)
    return history


def _purged(_: Asked, answers: Sequence[WorkerPurged]) -> Purged:
    return Purged(len({name for one in answers for name in one.names}))


def _many(asked: Asked) -> str:
    return f"/api/top?{urlencode({'by': asked.query.by, 'limit': MOST_ROWS})}"


GATHERINGS: Final[Mapping[tuple[str, str], Gathering]] = {
    ("GET", "/api/overview"): Gathering(_overview, lambda _: OVERVIEW, WorkerOverview),
    ("GET", "/api/history"): Gathering(_shown_history, lambda _: SAMPLES, WorkerSamples),
    ("GET", "/api/origins"): Gathering(merge_origins),
    ("GET", "/api/streams"): Gathering(merge_pages),
    ("GET", "/api/streams/{id}"): Gathering(merge_details),
    ("GET", "/api/top"): Gathering(merge_tops, _many),
    ("GET", "/api/tails"): Gathering(merge_tail_pages),
    ("POST", "/api/tails"): Gathering(merge_tails),
    ("GET", "/api/counts"): Gathering(merge_counts),
    ("POST", "/api/purge"): Gathering(_purged, lambda _: PURGE, WorkerPurged, rounds=2, reaches_before=True),
    ("POST", "/api/revoke"): Gathering(merge_revoked, shape=Revoked, reaches_before=True),
    ("GET", "/api/plan"): Gathering(merge_plans),
    ("GET", "/api/config"): Gathering(first_config),
    ("POST", "/api/drain"): Gathering(merge_drains),
    ("GET", "/api/log-level"): Gathering(first_level),
    ("PUT", "/api/log-level"): Gathering(first_level),
}

ALONE: Final = frozenset({("POST", "/api/reload"), ("POST", "/api/upgrade")})
"""Endpoints that are not gathered.  The worker that gets the request passes it on to the supervisor."""


_ASKED: Final = (
    *(Nothing, StreamsQuery, TopQuery, TailsQuery, TailsBody, CountsQuery, PurgeBody, RevokeBody, DrainBody, LogLevel),
    OriginNews,
)
_ANSWERED: Final = (
    *(ShownOrigins, StreamPage, StreamDetail, TopStreams, Tails, Counts, Revoked, PlanShown, Draining),
    *(WorkerOverview, WorkerSamples, WorkerPurged, WorkerSettings, dict[str, Any]),
)


def make_adapters() -> None:
    """Make the adapters for the requests and answers between workers.

    The supervisor calls this before it starts workers.  Otherwise, making the adapters would take nine tenths of the
    processor time of a worker's start, while clients of a dead worker wait for its successor.
    """
    for shape in (*_ASKED, *_ANSWERED):
        adapter_of(shape)


class Gathered:
    """The answers of a gateway with several workers (`gateway.ops.admin.app.Answering`)."""

    def __init__(
        self,
        subject: Subject,
        peers: Peers,
        counts: EndedCounts,
        before: Callable[[], Peers | None],
        purging: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`subject` and `counts` belong to this worker.  `before` opens sessions with the workers of the previous
        version, and returns None if that version has ended.  A purge is made inside the context of `purging`."""
        self._purging = purging
        self._subject = subject
        self._peers = peers
        self._counts = counts
        self._before = before

    def __repr__(self) -> str:
        return f"<Gathered {self._peers!r}>"

    def route(self, endpoint: Endpoint) -> web.RouteDef:
        """Return a route that asks all workers."""
        if (endpoint.method, endpoint.path) in ALONE:
            return endpoint.route()
        gathering = GATHERINGS[endpoint.method, endpoint.path]
        is_change = endpoint.changes and endpoint.path not in QUESTIONS
        shape = adapter_of(gathering.shape or endpoint.answer)

        async def answered(asked: Asked, body: bytes, request: web.Request) -> object:
            target = gathering.target(asked) if gathering.target is not None else request.rel_url.raw_path_qs
            given = body if endpoint.changes else b""
            # Count the purge.  If a worker is dead now, the count shows its successor that the store has missed a
            # purge.
            is_counted = endpoint.path == "/api/purge" and not asked.body.soft
            with self._purging() if is_counted else nullcontext():
                return await gathered(asked, target, given)

        async def gathered(asked: Asked, target: str, given: bytes) -> object:
            found: list[Any] = []
            earlier: list[list[PeerAnswer]] = []
            for _ in range(gathering.rounds):
                within_s = CHANGE_S if is_change else LOOK_S
                asking = self._peers.ask_all(endpoint.method, target, given, within_s)
                if gathering.reaches_before:
                    answers, before = await asyncio.gather(asking, self._ask_before(endpoint.method, target, given))
                else:
                    answers, before = await asking, []
                good = done_by_all(answers) if is_change else done_by_some(answers)
                found += [_parsed(shape.validate_json, answer) for answer in good]
                earlier.append(before)
            if is_change and self._subject.is_replaced:
                # This version was replaced after the request had arrived.  The next version may have begun to serve
                # before the change was made here.
                raise replaced()
            # Raise an error of the previous version only now, when this version has made the whole change.
            for before in earlier:
                found += [_parsed(shape.validate_json, answer) for answer in done_before(before)]
            if endpoint.path == "/api/purge":
                self._subject.metrics.operations.purge(is_soft=asked.body.soft)
            return gathering.merge(asked, found)

        return endpoint.route_with(answered)

    async def _ask_before(self, method: str, target: str, body: bytes) -> list[PeerAnswer]:
        before = self._before()
        if before is None:
            return []
        try:
            return await before.ask_all(method, target, body, CHANGE_S)
        finally:
            await before.close()

    async def unready(self) -> list[str]:
        """Return the workers that are not ready."""
        ready = {answer.slot for answer in await self._peers.ask_all("GET", READY) if answer.is_good}
        return unready_workers(self._peers.slots, ready)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Merge the metrics of all workers.  If a worker does not answer, the counters in the file of its slot are used
        instead."""
        found: dict[int, list[RawFamily]] = {}
        for answer in await self._peers.ask_all("GET", FAMILIES):
            if answer.is_good:
                found[answer.slot] = _parsed(read_families, answer)
        every = [found[slot] if slot in found else self._counts.of_slot(slot) for slot in self._peers.slots]
        generations = {slot: self._peers.generation(slot) for slot in self._peers.slots}
        return await in_turns(chain(merge_families(every), worker_families(found, generations)), accept)


def done_by_some(answers: Sequence[PeerAnswer]) -> list[PeerAnswer]:
    """Return the answers of the workers that could answer a look-up.  Raises Refused if there are none."""
    good = [answer for answer in answers if answer.is_good]
    if not good:
        refusals = [answer for answer in answers if 400 <= answer.status < 500]
        raise _refusal(refusals[0]) if refusals else Refused(503, "no worker answers")
    return good


def done_by_all(answers: Sequence[PeerAnswer]) -> list[PeerAnswer]:
    """Return the answers to a change.  Raises Refused if a worker has not made the change."""
    failed = _failed(answers)
    if not failed:
        if not answers:
            raise Refused(503, "no worker answers")
        return list(answers)
    reasons = _reasons(failed)
    if len(failed) == len(answers) and len({one.status for one in failed}) == 1:
        if len({one.body for one in failed}) == 1:
            raise _refusal(failed[0])
        if failed[0].status < 500:
            raise Refused(failed[0].status, reasons)
    done = [str(answer.slot) for answer in answers if answer.is_good]
    raise Refused(503, f"not done by all workers: {reasons}; done by {', '.join(done) or 'none'}")


def done_before(answers: Sequence[PeerAnswer]) -> list[PeerAnswer]:
    """Return the answers to a change from the workers of the previous version that have not ended.  Raises Refused if
    one of these workers has not made the change."""
    living = [answer for answer in answers if not answer.has_ended]
    if failed := _failed(living):
        where = "done by the workers of this version, but not by all workers of the version before, which drains"
        reasons = (f"{one.name}{' refuses the request' * (one.status < 500)}: {_refusal(one)}" for one in failed)
        raise Refused(503, f"{where}: {'; '.join(reasons)}")
    return living


def _failed(answers: Sequence[PeerAnswer]) -> list[PeerAnswer]:
    return [answer for answer in answers if not answer.is_good]


def _reasons(failed: Sequence[PeerAnswer]) -> str:
    return "; ".join(f"{one.name}: {_refusal(one)}" for one in failed)


def _refusal(answer: PeerAnswer) -> Refused:
    """Return a worker's refusal, with the worker's status and text."""
    try:
        text = str(orjson.loads(answer.body)["error"])
    except (ValueError, TypeError, KeyError):
        text = "it has not answered in time" if answer.status == _BUSY else "it does not answer"
    return Refused(answer.status, text)


def _parsed(parse: Callable[[bytes], Any], answer: PeerAnswer) -> Any:
    try:
        return parse(answer.body)
    except ValueError:
        raise Refused(502, f"{answer.name} has answered in another form") from None
