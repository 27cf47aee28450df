"""The report's cards of the traffic.

They show reads and their cost to the origin, how reads were answered, how long that took, and the busiest routes and
streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.figures import Figures, Row, Rows
from gateway.pipeline.report.panel import BEGAN, Column, Content, Key, Panel, columns_of, legend, named, shortened
from gateway.pipeline.wording import count, many, share, size, span, times

OFFLOAD = (
    Series("spared_ratio", "Reads without a request", "tape"),
    Series("byte_offload", "Bytes spared", "follow", "long"),
)
REQUESTS = (Series("reads", "Reads", "tape"), Series("origin_requests", "Requests to the origin", "origin"))
BYTES = (Series("read_bytes", "To readers", "tape"), Series("fetched_bytes", "From the origin", "origin"))
SAVERS = (
    Series("tape", "From the tape", "tape"),
    Series("collapse", "From a shared fetch", "collapse"),
    Series("follow", "From the one live request", "follow"),
    Series("join", "Tape, behind one probe", "join"),
    Series("origin", "Origin, for it alone", "origin"),
    Series("unanswered", "Refused, failed, aborted", "unanswered"),
)
"""The ways in which a read is answered, from the bottom of the chart to the top."""
PERCENTILES = (
    Series("p50_s", "Half within", "tape"),
    Series("p90_s", "90 % within", "follow", "long"),
    Series("p99_s", "99 % within", "origin", "short"),
)
FAN_OUT = (Series("live_share", "Live reads", "follow"), Series("catchup_share", "Catch-up reads", "collapse"))
_LEAST_OFFLOAD = -1.0
_MOST_LISTED = 12
_MOST_CHARS = 72
_STREAM_COLUMNS: Final = (
    *named("Stream", "Route", "Protocol"),
    *named("Requests", write=count),
    *columns_of(BYTES, size),
    *named("Readers", write=count),
)
_ROUTE_COLUMNS: Final = (
    *named("Route", "Protocol"),
    *named("Reads", write=count),
    Column("Without a request", "spared", count),
    Column("Origin requests", "origin_requests", count),
    *columns_of(BYTES, size),
    Column("Bytes spared", "byte_offload", share),
    Column("Tape alone", "hit_ratio", share),
)


def offload(figures: Figures) -> Content | None:
    """Make the card of the offload: the shares of requests and bytes that the origin was spared, over time."""
    if not figures.reads:
        return None
    y = axes.shares([row[one.field] for row in figures.moments for one in OFFLOAD], least=_LEAST_OFFLOAD)
    keys = legend("line", OFFLOAD)
    if below := y.beyond(row["byte_offload"] for row in figures.moments):
        lowest = f"{many(len(below), 'time')}, the lowest {share(min(below))}"
        keys.append(Key("out follow", f"Below {share(y.low)}: {lowest}"))
    return Content(
        _lines(figures, y, figures.moments, OFFLOAD),
        f"Over the whole time {share(figures.total['spared_ratio'])} of reads caused no request, and "
        f"{share(figures.total['byte_offload'])} of bytes were spared.",
        keys,
        [
            BEGAN,
            *columns_of(OFFLOAD, share),
            Column("Requests for each read", "asked_ratio", times),
            Column("Tape alone", "hit_ratio", share),
        ],
        figures.moments,
        "Below 0 % the origin sent more than readers got: tapes were being filled." if y.low < 0 else "",
    )


def amounts(
    figures: Figures,
    series: Sequence[Series],
    write: Callable[[float | None], str],
    *,
    stacked: bool = False,
) -> Content | None:
    """Make a card of amounts over time.

    With `stacked`, the amounts are parts of all reads.  Otherwise each is drawn in front of the one before.
    """
    if not figures.reads:
        return None
    rows, total = figures.moments, figures.total
    wholes = [share(total[one.field] / figures.reads) if stacked else write(total[one.field]) for one in series]
    keys = [Key(f"area {one.colour}", one.label, whole) for one, whole in zip(series, wholes, strict=True)]
    fields = ["reads"] if stacked else [one.field for one in series]
    y = axes.amounts((row[field] for row in rows for field in fields), is_bytes=write is size)
    # Repeat the last values at the end of the last step, so that it is drawn as wide as the others.
    ends = [*rows, {**rows[-1], "began": rows[-1]["began"] + figures.step_s}]
    values = charts.points(ends, series, lambda row: 1000 * row["began"])
    return Content(
        charts.areas(_time_axis(figures), y, values, series, stacked=stacked),
        f"{'Reads over' if stacked else 'Over'} time. {'; '.join(f'{key.label}: {key.whole}' for key in keys)}.",
        keys,
        [BEGAN, *columns_of(series, write), *([Column("Reads", "reads", count)] if stacked else [])],
        rows,
    )


def waits(figures: Figures, of: str, counted: str) -> Content | None:
    """Make a card of percentiles of waiting times over time.  `of` names the figures."""
    rows: Rows = getattr(figures, of)
    if not rows:
        return None
    whole = asdict(getattr(figures, f"{of}_all"))
    values = [row[one.field] for row in rows for one in PERCENTILES]
    y = axes.spans(values)
    says = "; ".join(f"{one.label.lower()} {span(whole[one.field])}" for one in PERCENTILES)
    return Content(
        _lines(figures, y, rows, PERCENTILES),
        f"Over the whole time {says}.",
        [*legend("line", PERCENTILES), *_at_once(y, values)],
        [BEGAN, *columns_of(PERCENTILES, span), Column(counted, "count", count)],
        rows,
        f"In all: {says}. The scale is logarithmic.",
    )


def latency(figures: Figures) -> Content | None:
    """Make the card of durations by route and mode."""
    known = [{**row, "kind": f"{row['mode']} · {row['route']}"} for row in figures.latency if row["count"]]
    if not known:
        return None
    rows = _listed(known, "kind", lambda row: f"half {span(row['p50_s'])}, 99 % {span(row['p99_s'])}")
    values = [row[one.field] for row in rows for one in PERCENTILES]
    x = axes.spans(values)
    return Content(
        charts.dots(x, rows, PERCENTILES),
        "Half of the requests, 90 % and 99 % of them took at most the times of the dots.",
        [*legend("dot", PERCENTILES), *_at_once(x, values)],
        [
            *named("Route", "Mode"),
            Column("Requests", "count", count),
            *(Column(f"All p{rank}", f"p{rank}_s", span) for rank in (50, 90, 99)),
            *(Column(f"First byte p{rank}", f"first_byte_p{rank}_s", span) for rank in (50, 90, 99)),
        ],
        figures.latency,
        "The scale is logarithmic.",
    )


def busiest(
    figures: Figures,
    of: str,
    says: Callable[[Row], str],
    series: Sequence[Series],
    columns: Sequence[Column] = _STREAM_COLUMNS,
    *,
    kind: str = "stream",
) -> Content | None:
    """Make a card that lists streams or routes.

    `of` names the figures, and the column `kind` has the names of the streams or routes.
    """
    rows: Rows = getattr(figures, of)
    if not rows:
        return None
    bars = _listed(rows, kind, says)
    part = f"{len(bars)} of " if len(bars) < len(rows) else ""
    x = axes.amounts((row[one.field] for row in bars for one in series), is_bytes=series is BYTES)
    return Content(
        charts.bars(x, bars, series),
        f"{part}{many(len(rows), kind)}, the busiest first.",
        legend("area", series) if len(series) > 1 else [],
        columns,
        rows,
        "Counted in the hours in which the stream was among the 100 busiest." if kind == "stream" else "",
    )


def fan_out(figures: Figures) -> Content | None:
    """Make the card of the fan-out: how many reads shared a reply of the origin."""
    rows = figures.fan_out
    if not rows:
        return None
    live, catchup = (sum(row[field] for row in rows) for field in ("live", "catchup"))
    return Content(
        charts.columns(
            axes.parts(row[one.field] for row in rows for one in FAN_OUT),
            charts.points(rows, FAN_OUT, lambda row: count(row["at_least"])),
            FAN_OUT,
        ),
        f"Share of reads by how many shared, of {count(live)} live and {count(catchup)} catch-up reads.",
        legend("area", FAN_OUT),
        [
            Column("Readers", _bucket),
            Column("Live reads", "live", count),
            Column("Share of live reads", "live_share", share),
            Column("Catch-up reads", "catchup", count),
            Column("Share of catch-up reads", "catchup_share", share),
        ],
        rows,
    )


def _at_once(axis: axes.Axis, values: Iterable[float | None]) -> list[Key]:
    """Return the legend for triangles at the end of a logarithmic axis.  They stand for values near zero, which the
    axis does not reach."""
    return [Key("out tape", "At once: less than the log can tell")] if axis.beyond(values) else []


def _listed(rows: Sequence[Row], kind: str, says: Callable[[Row], str]) -> list[Row]:
    """Return the first rows, with the texts `name` and `says` for a chart that lists them."""
    return [{**row, "name": shortened(row[kind], _MOST_CHARS), "says": says(row)} for row in rows[:_MOST_LISTED]]


def _lines(figures: Figures, y: axes.Axis, rows: Rows, series: Sequence[Series]) -> charts.Chart:
    """Return a chart of lines, with points in the middle of each step."""
    values = charts.points(rows, series, lambda row: 1000 * (row["began"] + figures.step_s / 2))
    return charts.lines(_time_axis(figures), y, values, series)


def _time_axis(figures: Figures) -> axes.Axis:
    """Return the time axis for all steps."""
    return axes.times(figures.moments[0]["began"], figures.moments[-1]["began"] + figures.step_s)


def _bucket(row: Row) -> str:
    at_least = row["at_least"]
    return str(at_least) if at_least == 1 else f"{count(at_least)}–{count(at_least * 2 - 1)}"


OFFLOAD_PANELS: Final = (
    Panel(
        "offload",
        "Offload",
        "Reads that caused no request at the origin, of all reads; and 1 − bytes from the origin / bytes to readers.",
        offload,
        is_wide=True,
    ),
    Panel(
        "reads",
        "Reads, and requests to the origin",
        "Every {step}: catch-up reads, long-polls and SSE connections that ended.",
        partial(amounts, series=REQUESTS, write=count),
    ),
    Panel(
        "bytes",
        "Bytes to readers, and from the origin",
        "Every {step}: bodies of reads, before they were compressed.",
        partial(amounts, series=BYTES, write=size),
    ),
    Panel(
        "savers",
        "Who saves what",
        "Reads every {step}, by where the answer came from.",
        partial(amounts, series=SAVERS, write=count, stacked=True),
        is_wide=True,
    ),
)
TIME_PANELS: Final = (
    Panel(
        "first-byte",
        "Time to the first byte",
        "Of catch-up reads, from the request to the beginning of the answer.",
        partial(waits, of="first_byte", counted="Reads"),
        "No catch-up read told when its answer began.",
    ),
    Panel(
        "delivery",
        "Delivery delay",
        "From the end of an append through the gateway to the end of the long-poll that it woke.",
        partial(waits, of="delivery", counted="Deliveries"),
        "No append of this log woke a long-poll: writers bypass the gateway, or there are no long-polls.",
    ),
    Panel(
        "latency",
        "Latency by route and mode",
        "How long requests took from end to end; live reads, whose time is their wait, are not among them.",
        latency,
        "There were no requests but live reads.",
        is_wide=True,
    ),
)
WHO_PANELS: Final = (
    Panel(
        "streams-by-bytes",
        "Top streams by bytes",
        "What their readers got, before it was compressed, and what of it came from the origin.",
        partial(
            busiest,
            of="by_bytes",
            says=lambda row: f"{size(row['read_bytes'])}, {size(row['fetched_bytes'])} from the origin",
            series=BYTES,
        ),
        "No stream is known to have been read.",
    ),
    Panel(
        "streams-by-requests",
        "Top streams by requests",
        "How often they were asked for, and by how many readers (about).",
        partial(
            busiest,
            of="by_requests",
            says=lambda row: f"{many(row['requests'], 'request')}, {many(row['readers'], 'reader')}",
            series=[Series("requests", "Requests", "tape")],
        ),
        "No stream is known to have been asked for.",
    ),
    Panel(
        "fan-out",
        "Fan-out",
        "How many readers, at least, shared a stream (live reads) or a fetch (catch-up reads).",
        fan_out,
        "No read shared anything with another, or none is in the log.",
    ),
    Panel(
        "routes",
        "Routes",
        "What each route's reads cost the origin.",
        partial(
            busiest,
            of="routes",
            says=lambda row: f"{many(row['reads'], 'read')}, {share(row['spared_ratio'])} without a request",
            series=REQUESTS,
            columns=_ROUTE_COLUMNS,
            kind="route",
        ),
    ),
)
