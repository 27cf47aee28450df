"""Resolves a plan's entries: streams named by route and target become tape keys.

A stream may have several tapes, one for each set of readers with equal credentials.  A plan contains no credentials, so
pinning and warming apply to the tape of readers without credentials.  Entries that limit storing or lifetime apply to
all tapes of the stream.  An entry is skipped and counted if no route covers it, or if its route does not cache.

A plan names an S2 stream in the same way as the access log and the stream's key: by the stream's path, with
`s2-basin=…` as the query.  Entries to warm S2 streams are skipped.  A read might create the stream, and needs a basin
and usually a token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from multidict import CIMultiDict

from gateway.config.cache import CachePlanConfig
from gateway.config.cache_plan import CachePlan, Entry, Lifetime
from gateway.engine.route import Route
from gateway.protocol.sharing import StreamKey
from gateway.protocol.target import BadTarget, Target, parse_target

_log = logging.getLogger("gateway.plan")

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class KeyedEntry(Generic[E]):
    """One entry of a plan with its route, target and tape key."""

    entry: E
    route: Route
    target: Target
    key: StreamKey


@dataclass(frozen=True, slots=True)
class PlanEntries:
    """The entries in effect, in the plan's order."""

    pinned: tuple[KeyedEntry[Entry], ...] = ()
    warm: tuple[KeyedEntry[Entry], ...] = ()
    not_stored: tuple[KeyedEntry[Entry], ...] = ()
    lifetimes: tuple[KeyedEntry[Lifetime], ...] = ()
    unmatched: int = 0
    """The number of entries that no caching route covers, and of entries to warm S2 streams."""


def resolve_entries(plan: CachePlan | None, grants: CachePlanConfig, routes: Sequence[Route]) -> PlanEntries:
    """The entries of `plan` that the configuration permits, resolved to `routes`."""
    if plan is None:
        return PlanEntries()
    by_name = {route.config.name: route for route in routes}
    unmatched = 0

    def resolve(entries: Iterable[E], is_granted: bool, *, of_s2: bool = True) -> tuple[KeyedEntry[E], ...]:
        nonlocal unmatched
        keyed_entries: list[KeyedEntry[E]] = []
        for entry in entries if is_granted else ():
            keyed = _keyed(entry, by_name)
            if keyed is None or (keyed.route.is_s2 and not of_s2):
                unmatched += 1
            else:
                keyed_entries.append(keyed)
        return tuple(keyed_entries)

    pinned = resolve(plan.pin, grants.take_pins)
    warm = resolve(plan.warm, grants.take_warm, of_s2=False)
    not_stored = resolve(plan.do_not_store, grants.take_do_not_store)
    lifetimes = resolve(plan.lifetimes, grants.take_lifetimes)
    return PlanEntries(pinned, warm, not_stored, lifetimes, unmatched)


def _keyed(entry: E, routes: Mapping[str, Route]) -> KeyedEntry[E] | None:
    route = routes.get(entry.route)
    if route is None or not route.config.cache:
        return None
    try:
        target = parse_target(entry.stream)
        if target.offset is not None or target.live is not None or not route.covers(target.path):
            return None
        return KeyedEntry(entry, route, target, route.key(target, route.partition(CIMultiDict())))
    except BadTarget:
        return None


def budget_bytes(limit: int, *, is_set: bool, plan: CachePlan | None, grants: CachePlanConfig) -> int:
    """The byte budget for tapes.  The result is the plan's budget if the configuration permits it and `is_set` is
    False; otherwise `limit`.

    `is_set` means that the operator has set `limit`.  The budget of a plan that was made from too little traffic is
    used only with `take_short_memory`.  Such a budget would be too small, because the streams that were read in a few
    minutes need little memory.
    """
    if plan is None or is_set or not grants.take_memory or is_too_short(plan, grants):
        return limit
    return plan.memory.cache_bytes


def is_too_short(plan: CachePlan, grants: CachePlanConfig) -> bool:
    """Whether the plan was made from too little traffic for its memory to be used."""
    return plan.is_short and not grants.take_short_memory


def warn_of_short_plan(plan: CachePlan | None, grants: CachePlanConfig, budget: int) -> None:
    """Log that the plan's memory is not taken because the plan is short.  The cache keeps `budget` bytes instead."""
    if plan is not None and grants.take_memory and is_too_short(plan, grants):
        _log.warning(
            "%s: made from %.0f s of traffic, too little to set the memory by: the cache keeps %d bytes, not "
            "%d; cache.plan.take_short_memory = true takes the plan's",
            grants.file,
            plan.made_from.span_s,
            budget,
            plan.memory.cache_bytes,
        )
