"""Problems in the traffic, as short lists of sentences with advice.

A `Finding` is one list: its subject, its items (the worst first), advice, and a text for an empty list.  Names in it
are untrusted; they become markup through `element` only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pipeline.report import wording
from gateway.pipeline.report.figures import (
    Anomaly,
    ClosedLoop,
    ErrorCount,
    Figures,
    Found,
    SlowConsumer,
    Storm,
)
from gateway.pipeline.report.markup import Html, element, joined
from gateway.pipeline.report.numbers import Column, Numbers

_MOST_CHARS = 120


@dataclass(frozen=True, slots=True)
class Finding:
    """One list."""

    name: str
    title: str
    about: str
    nothing: str
    items: tuple[Html, ...]
    total: int
    advice: tuple[str, ...]
    numbers: Numbers


def findings(figures: Figures) -> list[Finding]:
    """All lists, including empty ones."""
    return [
        _errors(figures.refusals),
        _storms(figures.storms),
        _slow_consumers(figures.slow_consumers),
        _closed_loops(figures.closed_loops),
        _anomalies(figures.anomalies),
    ]


def shortened(text: str, most: int = _MOST_CHARS) -> str:
    """Text with its middle left out if it is too long; names differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 :]}"


def name(text: str) -> Html:
    """An untrusted name, marked as code; if it is shortened, its tooltip has it in full."""
    short = shortened(text)
    return element("bdi", element("code", short or "(empty)"), title=text if short != text else None)


def advice_for(refusal: ErrorCount) -> str:
    """Advice about one kind of error."""
    match refusal.outcome, refusal.status:
        case "aborted", _:
            return (
                "Aborted: the connection was dropped in the middle of an answer. Many at once mean an origin that "
                "died or timed out while sending; a few are clients that went away."
            )
        case "failed", 504:
            return "504: the origin was too slow. Look at its own latency, then at the gateway's upstream time-outs."
        case "failed", 503:
            return "503: the origin, or the gateway's own limits, had no room. Clients come back by Retry-After."
        case "failed", _:
            status = _status(refusal.status)
            return f"{status}: the origin failed or could not be reached. Its log at that minute says why."
        case _, 400:
            return "400: invalid requests, such as ones with two offsets. The user agents in the log name the client."
        case _, 401 | 403:
            return f"{refusal.status}: credentials that are missing, wrong or expired: see how clients renew them."
        case _, 404:
            return (
                "404: streams that are not there (any more), or a path that no route has. Clients should stop asking."
            )
        case _, 410:
            return "410: offsets that the origin no longer keeps. Readers came back too late, or it keeps too little."
        case _, 409:
            return "409: appends or creations that contradict the stream: two writers, or a changed content type."
        case _, 413:
            return "413: appends that are larger than allowed. Raise the limit, or have the writer split them."
        case _, 429:
            return "429: clients over their limit. Raise it, or have them wait."
        case _:
            return f"{_status(refusal.status)}: see the access log's lines with this status."


def _errors(found: Found[ErrorCount]) -> Finding:
    items = tuple(
        joined(
            [
                element("b", wording.count(one.requests)),
                f" × {_status(one.status)} ({one.outcome}), {one.mode} on ",
                name(one.route),
                f", last at {wording.moment(one.last)}",
            ]
        )
        for one in found.worst
    )
    return Finding(
        "errors",
        "Errors",
        "Requests that were refused, failed or cut off.",
        "No request ended in an error.",
        items,
        found.total,
        tuple(dict.fromkeys(advice_for(one) for one in found.worst))[:5],
        Numbers(
            "errors",
            [
                Column("Requests", wording.count),
                Column("Status", str),
                Column("Outcome"),
                Column("Mode"),
                Column("Route"),
                Column("Last (UTC)"),
            ],
            [
                (one.requests, one.status, one.outcome, one.mode, one.route, wording.moment(one.last))
                for one in found.worst
            ],
        ),
    )


def _storms(found: Found[Storm]) -> Finding:
    items = tuple(
        joined(
            [
                wording.moment(one.at),
                ", ",
                name(one.route),
                ": ",
                element("b", wording.many(one.reconnects, "reconnect")),
                f" by {wording.many(one.readers, 'reader')} in a minute",
                f"; usual are {wording.count(one.usual)}" if one.usual is not None else "",
            ]
        )
        for one in found.worst
    )
    return Finding(
        "storms",
        "Reconnect storms",
        "Minutes in which far more readers came back than usual.",
        "Readers never came back all at once.",
        items,
        found.total,
        (
            "See what ended their connections in that minute: a restart, a network, a balancer's idle time-out.",
            "Spread planned ends: a longer drain lets go of readers over more time.",
            "Clients should wait for a random while before they come back.",
        ),
        Numbers(
            "storms",
            [
                Column("Minute (UTC)"),
                Column("Route"),
                Column("Reconnects", wording.count),
                Column("Readers", wording.count),
                Column("Usual a minute", wording.count),
            ],
            [(wording.moment(one.at), one.route, one.reconnects, one.readers, one.usual) for one in found.worst],
        ),
    )


def _slow_consumers(found: Found[SlowConsumer]) -> Finding:
    items = tuple(
        joined(
            [
                name(one.client),
                " with ",
                name(one.user_agent),
                " on ",
                name(one.stream),
                ": cut off ",
                element("b", wording.many(one.cut_off, "time")),
                f" after {wording.size(one.sent_bytes)}",
            ]
        )
        for one in found.worst
    )
    return Finding(
        "slow-consumers",
        "Slow consumers",
        "Live readers that were cut off because they did not keep up.",
        "Every live reader kept up.",
        items,
        found.total,
        (
            "They lose nothing: they go on from their last offset.",
            "One that is cut off again and again needs a faster network, less work a message, or catch-up reads.",
            "If whole networks are among them, a larger buffer for each reader buys time, at the price of memory.",
        ),
        Numbers(
            "slow-consumers",
            [
                Column("Client"),
                Column("User agent"),
                Column("Stream"),
                Column("Route"),
                Column("Cut off", wording.count),
                Column("Sent before", wording.size),
            ],
            [(one.client, one.user_agent, one.stream, one.route, one.cut_off, one.sent_bytes) for one in found.worst],
        ),
    )


def _closed_loops(found: Found[ClosedLoop]) -> Finding:
    items = tuple(
        joined(
            [
                name(one.client),
                " with ",
                name(one.user_agent),
                " asked ",
                element("b", wording.many(one.requests, "time")),
                " for the end of ",
                name(one.stream),
                f", in {wording.many(one.minutes, 'minute')}",
            ]
        )
        for one in found.worst
    )
    return Finding(
        "closed-loops",
        "Loops on closed streams",
        "Readers that ask again and again for the end of a stream that is closed, where one answer says it all.",
        "No reader looped on a closed stream.",
        items,
        found.total,
        (
            "The client does not heed Stream-Closed: update it, or tell its author.",
            "The gateway answers these by itself: the origin is not troubled, but the requests are for nothing.",
        ),
        Numbers(
            "closed-loops",
            [
                Column("Client"),
                Column("User agent"),
                Column("Stream"),
                Column("Route"),
                Column("Requests", wording.count),
                Column("Minutes", wording.count),
            ],
            [(one.client, one.user_agent, one.stream, one.route, one.requests, one.minutes) for one in found.worst],
        ),
    )


def _anomalies(found: Found[Anomaly]) -> Finding:
    items = tuple(
        joined(
            [
                wording.moment(one.at),
                ", ",
                name(one.route),
                f": {one.measure.replace('_', ' ')} ",
                element("b", measured(one.measure, one.value)),
                f", where {measured(one.measure, one.before)} is usual at this hour",
                f" (of {wording.many(one.days, 'day')} before)",
            ]
        )
        for one in found.worst
    )
    return Finding(
        "anomalies",
        "Unusual hours",
        "Hours unlike the same hour of the days before.",
        "No hour was unlike the same hour of the days before, or there are not days enough to tell.",
        items,
        found.total,
        (
            "More requests and bytes at the same hit ratio are more readers: see the busiest streams of that hour.",
            "A hit ratio that fell: memory was short, a restart lost the tapes, or a reader went through everything.",
        ),
        Numbers(
            "anomalies",
            [
                Column("Hour (UTC)"),
                Column("Route"),
                Column("Measure"),
                Column("Value"),
                Column("Usual"),
                Column("Days", wording.count),
                Column("Score", wording.times),
            ],
            [
                (
                    wording.moment(one.at),
                    one.route,
                    one.measure,
                    measured(one.measure, one.value),
                    measured(one.measure, one.before),
                    one.days,
                    one.score,
                )
                for one in found.worst
            ],
        ),
    )


def measured(measure: str, value: float) -> str:
    """A measure's value in its unit, which the suffix of its name tells."""
    if measure.endswith("_bytes"):
        return wording.size(value)
    if measure.endswith(("_ratio", "_offload")):
        return wording.share(value)
    if measure.endswith("_s"):
        return wording.span(value)
    return wording.count(value)


def _status(status: int) -> str:
    return str(status) if status else "no answer"
