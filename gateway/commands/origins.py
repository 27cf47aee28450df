"""Describes the state of origins from `/api/origins` in one line.  The console's `origins.js` uses the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum, auto
from typing import Any


class Health(StrEnum):
    """The state of one origin, or of several origins together."""

    ANSWERING = auto()
    """The circuit breaker is closed, the origin is not ejected, and it has answered before."""
    NOT_ASKED = auto()
    """The circuit breaker is closed, the origin is not ejected, and it has not answered yet."""
    UNREACHABLE = auto()
    """The circuit breaker is open or half-open, or the origin is ejected."""


def health(origin: Mapping[str, Any]) -> Health:
    """Return the state of one entry of `/api/origins`."""
    if origin["state"] != "closed" or origin["is_ejected"]:
        return Health.UNREACHABLE
    return Health.NOT_ASKED if origin["last_heard_s"] is None else Health.ANSWERING


def worst(origins: Sequence[Mapping[str, Any]]) -> Health:
    """Return the worst state of these origins."""
    found = set(map(health, origins))
    for one in (Health.UNREACHABLE, Health.NOT_ASKED):
        if one in found:
            return one
    return Health.ANSWERING


def origin_words(origins: Sequence[Mapping[str, Any]]) -> str:
    """Describe one origin by its state.  Describe several origins by the number of origins that answer, and by the
    problem of the first origin that is unreachable."""
    if not origins:
        return "no origin"
    if len(origins) == 1:
        return f"origin {_state(origins[0])}"
    found = [health(origin) for origin in origins]
    words = f"{found.count(Health.ANSWERING)} of {len(origins)} origins answer"
    if unasked := found.count(Health.NOT_ASKED):
        words += f", {unasked} not asked yet"
    if Health.UNREACHABLE in found:
        first = origins[found.index(Health.UNREACHABLE)]
        words += f"; {first['origin']} {_state(first)}"
    return words


def _state(origin: Mapping[str, Any]) -> str:
    match health(origin):
        case Health.ANSWERING:
            return "answers"
        case Health.NOT_ASKED:
            return "not asked yet"
        case Health.UNREACHABLE:
            state = "ejected" if origin["state"] == "closed" else "unreachable"
            return f"{state}: {origin['reason'] or 'it does not answer'}{_next_try(origin)}"


def _next_try(origin: Mapping[str, Any]) -> str:
    if origin["state"] == "half_open":
        return ", being tried"
    after_s = origin["retry_in_s"]
    return "" if after_s is None else f", next try in {after_s:.1f} s"
