"""Answers of `/api/origins`, and what is said of them."""

from __future__ import annotations

from typing import Any, Final

Row = dict[str, Any]


def origin_row(
    origin: str = "http://a:1",
    *,
    state: str = "closed",
    reason: str | None = None,
    retry_in_s: float | None = None,
    last_heard_s: float | None = 0.2,
    is_ejected: bool = False,
) -> Row:
    """One origin as the admin port shows it."""
    return {
        "origin": origin,
        "routes": ["default"],
        "weight": 1,
        "state": state,
        "is_ejected": is_ejected,
        "reason": reason,
        "since_s": 12.3,
        "retry_in_s": retry_in_s,
        "requests": 123,
        "failures": 4,
        "refused": 0,
        "in_flight": 2,
        "last_heard_s": last_heard_s,
    }


OPEN: Final = origin_row("http://b:1", state="open", reason="connection refused", retry_in_s=1.5)
WORDS: Final[list[tuple[list[Row], str, str]]] = [
    ([origin_row()], "origin answers", "answering"),
    ([origin_row(last_heard_s=None)], "origin not asked yet", "not_asked"),
    ([OPEN], "origin unreachable: connection refused, next try in 1.5 s", "unreachable"),
    (
        [origin_row(state="half_open", reason="no answer within 5 s", last_heard_s=None)],
        "origin unreachable: no answer within 5 s, being tried",
        "unreachable",
    ),
    ([origin_row(state="open")], "origin unreachable: it does not answer", "unreachable"),
    ([origin_row(is_ejected=True, reason="503")], "origin ejected: 503", "unreachable"),
    ([origin_row(), origin_row("http://c:1")], "2 of 2 origins answer", "answering"),
    (
        [origin_row(), OPEN, origin_row("http://c:1")],
        "2 of 3 origins answer; http://b:1 unreachable: connection refused, next try in 1.5 s",
        "unreachable",
    ),
    (
        [origin_row(), origin_row("http://c:1", last_heard_s=None)],
        "1 of 2 origins answer, 1 not asked yet",
        "not_asked",
    ),
    ([], "no origin", "answering"),
]
"""What `/api/origins` lists, what is said of it, and the worst of it."""
