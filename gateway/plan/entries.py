"""A plan's wishes as the engine understands them: streams named by route and target become keys of tapes.

A plan knows nothing of credentials: what it pins and has fetched is the tape of those who show none.  What it holds to
be not worth keeping, or not for long, is so for everybody's tape of the stream.  A wish for a stream that no route
leads to, or whose route keeps nothing, is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from multidict import CIMultiDict

from gateway.config.cache import CachePlanConfig
from gateway.config.cache_plan import CachePlan, Entry, Lifetime
from gateway.engine.route import Route
from gateway.protocol.target import BadTarget, Target, parse_target
from gateway.tape.stream import StreamKey

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class KeyedEntry(Generic[E]):
    """One entry of a plan, and the tape that it is about."""

    entry: E
    route: Route
    target: Target
    key: StreamKey


@dataclass(frozen=True, slots=True)
class PlanEntries:
    """Those that are granted, in the plan's order."""

    pinned: tuple[KeyedEntry[Entry], ...] = ()
    warm: tuple[KeyedEntry[Entry], ...] = ()
    not_stored: tuple[KeyedEntry[Entry], ...] = ()
    lifetimes: tuple[KeyedEntry[Lifetime], ...] = ()
    unmatched: int = 0
    """Entries that no route leads to."""


def granted(plan: CachePlan | None, grants: CachePlanConfig, routes: Sequence[Route]) -> PlanEntries:
    """What of the plan is granted."""
    if plan is None:
        return PlanEntries()
    known = {route.config.name: route for route in routes}
    unmatched = 0

    def found(entries: Iterable[E], is_granted: bool) -> tuple[KeyedEntry[E], ...]:
        nonlocal unmatched
        entries: list[KeyedEntry[E]] = []
        for entry in entries if is_granted else ():
            keyed = _keyed(entry, known)
            if keyed is None:
                unmatched += 1
            else:
                entries.append(keyed)
        return tuple(entries)

    pinned = found(plan.pin, grants.take_pins)
    warm = found(plan.warm, grants.take_warm)
    not_stored = found(plan.do_not_store, grants.take_do_not_store)
    lifetimes = found(plan.lifetimes, grants.take_lifetimes)
    return PlanEntries(pinned, warm, not_stored, lifetimes, unmatched)


def _keyed(entry: E, routes: Mapping[str, Route]) -> KeyedEntry[E] | None:
    route = routes.get(entry.route)
    if route is None or not route.config.cache:
        return None
    try:
        target = parse_target(entry.stream)
    except BadTarget:
        return None
    if target.offset is not None or target.live is not None or not route.covers(target.path):
        return None
    return KeyedEntry(entry, route, target, route.key(target, route.partition(CIMultiDict())))


def budget_bytes(limit: int, *, is_set: bool, plan: CachePlan | None, grants: CachePlanConfig) -> int:
    """The budget for tapes: the configured `limit` where an operator has set one (`is_set`) or nothing else is granted,
    else the plan's."""
    if plan is None or is_set or not grants.take_memory:
        return limit
    return plan.memory.cache_bytes
