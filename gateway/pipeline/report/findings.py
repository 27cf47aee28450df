"""Problems in the traffic, as short lists of sentences with advice.

`FINDINGS` defines each kind of problem: the SQL that finds it in the gold tables, the columns of its numbers, the
sentence about one item, and the advice.  Names in the rows are untrusted, so only `element` turns them into markup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.pipeline.report.figures import Figures, Found, Row
from gateway.pipeline.report.markup import Child, element, joined
from gateway.pipeline.report.panel import Column, Content, Panel, name, named
from gateway.pipeline.wording import count, many, moment, share, size, span, times

_MOST_ITEMS: Final = 5
"""Most sentences and most pieces of advice in one list.  The numbers have more rows."""
_CREDENTIALS: Final = "credentials that are missing, wrong or expired: see how clients renew them."
_ADVICE: Final = {
    400: "invalid requests, such as ones with two offsets. The user agents in the log name the client.",
    401: _CREDENTIALS,
    403: _CREDENTIALS,
    404: "streams that are not there (any more), or a path that no route has. Clients should stop asking.",
    409: "appends or creations that contradict the stream: two writers, or a changed content type.",
    410: "offsets that the origin no longer keeps. Readers came back too late, or it keeps too little.",
    413: "appends that are larger than allowed. Raise the limit, or have the writer split them.",
    429: "clients over their limit. Raise it, or have them wait.",
    503: "the origin, or the gateway's own limits, had no room. Clients come back by Retry-After.",
    504: "the origin was too slow. Look at its own latency, then at the gateway's upstream time-outs.",
}
"""The meaning of each status, and advice."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of problem."""

    name: str
    title: str
    about: str
    nothing: str
    sql: str
    order: str
    """SQL of the order, the worst first."""
    columns: tuple[Column, ...]
    sentence: Callable[[Row], Child]
    advice: tuple[str, ...] | Callable[[Row], str]
    """Advice about this kind of problem, or a function that gives advice about one item."""


def advice_for(error: Row) -> str:
    """Return advice about one kind of error."""
    if error["outcome"] == "aborted":
        return (
            "Aborted: the connection was dropped in the middle of an answer. Many at once mean an origin that died or "
            "timed out while sending; others are clients that went away during a catch-up read."
        )
    other = (
        "the origin failed or could not be reached. Its log at that minute says why."
        if error["outcome"] == "failed"
        else "see the access log's lines with this status."
    )
    return f"{_status(error['status'])}: {_ADVICE.get(error['status'], other)}"


def in_its_unit(measure: str, value: float) -> str:
    """Format the value of a measure in its unit, which follows from the suffix of the measure's name."""
    if measure.endswith("_bytes"):
        return size(value)
    if measure.endswith(("_ratio", "_offload")):
        return share(value)
    if measure.endswith("_s"):
        return span(value)
    return count(value)


def _status(status: int) -> str:
    return str(status) if status else "no answer"


def _reader(row: Row) -> Child:
    return [name(row["client"]), " with ", name(row["user_agent"])]


_READER: Final = named("Client", "User agent", "Stream", "Route")

FINDINGS: Final = (
    Finding(
        "errors",
        "Errors",
        "Requests that were refused, failed or cut off. Live readers that left are not among them.",
        "No request ended in an error.",
        "SELECT route, mode, status, outcome, sum(requests)::BIGINT AS requests, epoch(max(minute))::BIGINT AS last "
        "FROM errors GROUP BY ALL",
        "requests DESC, route, mode, status, outcome",
        (
            *named("Requests", write=count),
            *named("Status", write=str),
            *named("Outcome", "Mode", "Route"),
            Column("Last (UTC)", lambda row: moment(row["last"])),
        ),
        lambda row: [
            element("b", count(row["requests"])),
            f" × {_status(row['status'])} ({row['outcome']}), {row['mode']} on ",
            name(row["route"]),
            f", last at {moment(row['last'])}",
        ],
        advice_for,
    ),
    Finding(
        "storms",
        "Reconnect storms",
        "Minutes in which far more readers came back than usual.",
        "Readers never came back all at once.",
        "SELECT epoch(minute)::BIGINT AS began, route, reconnects, readers, usual FROM reconnects WHERE is_storm",
        "reconnects DESC, began, route",
        (
            Column("Minute (UTC)", lambda row: moment(row["began"])),
            *named("Route"),
            *named("Reconnects", "Readers", write=count),
            Column("Usual a minute", "usual", count),
        ),
        lambda row: [
            f"{moment(row['began'])}, ",
            name(row["route"]),
            ": ",
            element("b", many(row["reconnects"], "reconnect")),
            f" by {many(row['readers'], 'reader')} in a minute",
            f"; usual are {count(row['usual'])}" if row["usual"] is not None else None,
        ],
        (
            "See what ended their connections in that minute: a restart, a network, a balancer's idle time-out.",
            "Spread planned ends: a longer drain lets go of readers over more time.",
            "Clients should wait for a random while before they come back.",
        ),
    ),
    Finding(
        "slow-consumers",
        "Slow consumers",
        "Live readers that were cut off because they did not keep up.",
        "No live reader was cut off for that.",
        "SELECT route, stream, client, user_agent, sum(cut_off)::BIGINT AS cut_off, "
        "sum(sent_bytes)::BIGINT AS sent_bytes FROM slow_consumers GROUP BY ALL",
        "cut_off DESC, stream, client, user_agent, route",
        (*_READER, *named("Cut off", write=count), Column("Sent before", "sent_bytes", size)),
        lambda row: [
            _reader(row),
            " on ",
            name(row["stream"]),
            ": cut off ",
            element("b", many(row["cut_off"], "time")),
            f" after {size(row['sent_bytes'])}",
        ],
        (
            "They lose nothing: they go on from their last offset.",
            "One that is cut off more than once needs a faster network, less work a message, or catch-up reads.",
            "If whole networks are among them, a larger buffer for each reader buys time, at the price of memory.",
        ),
    ),
    Finding(
        "closed-loops",
        "Loops on closed streams",
        "Readers that ask again and again for the end of a stream that is closed, where one answer says it all.",
        "No reader looped on a closed stream.",
        "SELECT route, stream, client, user_agent, sum(requests)::BIGINT AS requests, "
        "count(DISTINCT minute) AS minutes FROM closed_loops GROUP BY ALL",
        "requests DESC, stream, client, user_agent, route",
        (*_READER, *named("Requests", "Minutes", write=count)),
        lambda row: [
            _reader(row),
            " asked ",
            element("b", many(row["requests"], "time")),
            " for the end of ",
            name(row["stream"]),
            f", in {many(row['minutes'], 'minute')}",
        ],
        (
            "The client does not heed Stream-Closed: update it, or tell its author.",
            "The gateway answers these by itself: the origin is not troubled, but the requests are for nothing.",
        ),
    ),
    Finding(
        "anomalies",
        "Unusual hours",
        "Hours unlike the same hour of the days before.",
        "No hour was unlike the same hour of the days before, or there are not days enough to tell.",
        'SELECT epoch(hour)::BIGINT AS began, route, measure, "value", "before", days, score FROM anomalies',
        "abs(score) DESC NULLS LAST, began, route, measure",
        (
            Column("Hour (UTC)", lambda row: moment(row["began"])),
            *named("Route", "Measure"),
            Column("Value", lambda row: in_its_unit(row["measure"], row["value"])),
            Column("Usual", lambda row: in_its_unit(row["measure"], row["before"])),
            *named("Days", write=count),
            *named("Score", write=times),
        ),
        lambda row: [
            f"{moment(row['began'])}, ",
            name(row["route"]),
            f": {row['measure'].replace('_', ' ')} ",
            element("b", in_its_unit(row["measure"], row["value"])),
            f", where {in_its_unit(row['measure'], row['before'])} is usual at this hour",
            f" (of {many(row['days'], 'day')} before)",
        ],
        (
            "More requests and bytes at the same hit ratio are more readers: see the busiest streams of that hour.",
            "A hit ratio that fell: memory was short, a restart lost the tapes, or a reader went through everything.",
        ),
    ),
)
"""The kinds of problems in the report, in order."""


def _content(figures: Figures, finding: Finding) -> Content | None:
    found = figures.found.get(finding.name, Found())
    if not found.worst:
        return None
    items = [element("li", finding.sentence(row)) for row in found.worst[:_MOST_ITEMS]]
    more = found.total - len(items)
    rest = f"And {count(more)} more: the worst {len(found.worst)} are among the numbers."
    advice = dict.fromkeys(map(finding.advice, found.worst)) if callable(finding.advice) else finding.advice
    texts = [element("p", text) for text in list(advice)[:_MOST_ITEMS]]
    body = [
        element("ul", items, class_="items"),
        element("p", rest, class_="note") if more > 0 else None,
        element("div", element("h4", "What to do"), texts, class_="advice"),
    ]
    return Content(joined(body), columns=finding.columns, rows=found.worst, badge=count(found.total))


PANELS: Final = tuple(
    Panel(one.name, one.title, one.about, partial(_content, finding=one), one.nothing) for one in FINDINGS
)
