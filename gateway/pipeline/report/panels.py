"""Panels of the traffic: reads and their cost to the origin, how they were answered, and the busiest streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.figures import Figures, Row, Rows
from gateway.pipeline.report.panel import BEGAN, Column, Key, Panel, shortened
from gateway.pipeline.report.wording import count, many, share, size, span, times

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
"""How a read is answered, from the bottom of the chart up."""
FAN_OUT = (Series("live_share", "Live reads", "follow"), Series("catchup_share", "Catch-up reads", "collapse"))
_LEAST_OFFLOAD = -1.0
_MOST_ROUTES = 12
_MOST_CHARS = 72
_STREAM_COLUMNS = (
    Column("Stream", "stream"),
    Column("Route", "route"),
    Column("Protocol", "protocol"),
    Column("Requests", "requests", count),
    Column("To readers", "read_bytes", size),
    Column("From the origin", "fetched_bytes", size),
    Column("Readers", "readers", count),
)


def offload(figures: Figures) -> Panel:
    """Shares that the origin was spared, over time."""
    panel = Panel(
        "offload",
        "Offload",
        "Reads that caused no request at the origin, of all reads; and 1 − bytes from the origin / bytes to readers.",
        _no_reads(figures),
        is_wide=True,
    )
    if not figures.reads:
        return panel
    y = axes.shares([row[one.field] for row in figures.moments for one in OFFLOAD], least=_LEAST_OFFLOAD)
    keys = line_keys(OFFLOAD)
    if below := y.beyond(row["byte_offload"] for row in figures.moments):
        lowest = f"{many(len(below), 'time')}, the lowest {share(min(below))}"
        keys.append(Key("out follow", f"Below {share(y.low)}: {lowest}"))
    return panel.drawn(
        lines_over_time(figures, y, figures.moments, OFFLOAD),
        f"Over the whole time {share(figures.total['spared_ratio'])} of reads caused no request, and "
        f"{share(figures.total['byte_offload'])} of bytes were spared.",
        keys,
        [
            BEGAN,
            *(Column(one.label, one.field, share) for one in OFFLOAD),
            Column("Requests for each read", "asked_ratio", times),
            Column("Tape alone", "hit_ratio", share),
        ],
        figures.moments,
        "Below 0 % the origin sent more than readers got: tapes were being filled." if y.low < 0 else "",
    )


def reads(figures: Figures) -> Panel:
    """Reads and the origin's requests, over time."""
    panel = Panel(
        "reads",
        "Reads, and requests to the origin",
        f"Every {_step_name(figures)}: catch-up reads, long-polls and SSE connections that ended.",
        _no_reads(figures),
    )
    return _amounts(figures, panel, REQUESTS, count)


def volume(figures: Figures) -> Panel:
    """Bytes to readers and from the origin, over time."""
    panel = Panel(
        "bytes",
        "Bytes to readers, and from the origin",
        f"Every {_step_name(figures)}: bodies of reads, before they were compressed.",
        _no_reads(figures),
    )
    return _amounts(figures, panel, BYTES, size)


def savers(figures: Figures) -> Panel:
    """Reads by how they were answered, over time."""
    panel = Panel(
        "savers",
        "Who saves what",
        f"Reads every {_step_name(figures)}, by where the answer came from.",
        _no_reads(figures),
        is_wide=True,
    )
    return _amounts(figures, panel, SAVERS, count, stacked=True)


def routes(figures: Figures) -> Panel:
    """The cost of each route's reads."""
    panel = Panel("routes", "Routes", "What each route's reads cost the origin.", _no_reads(figures))
    return _busiest(
        panel,
        "route",
        figures.routes,
        lambda row: f"{many(row['reads'], 'read')}, {share(row['spared_ratio'])} without a request",
        REQUESTS,
        [
            Column("Route", "route"),
            Column("Protocol", "protocol"),
            Column("Reads", "reads", count),
            Column("Without a request", "spared", count),
            Column("Origin requests", "origin_requests", count),
            Column("To readers", "read_bytes", size),
            Column("From the origin", "fetched_bytes", size),
            Column("Bytes spared", "byte_offload", share),
            Column("Tape alone", "hit_ratio", share),
        ],
    )


def streams_by_bytes(figures: Figures) -> Panel:
    """The streams with the most bytes to readers."""
    panel = Panel(
        "streams-by-bytes",
        "Top streams by bytes",
        "What their readers got, before it was compressed, and what of it came from the origin.",
        "No stream is known to have been read.",
    )
    return _busiest(
        panel,
        "stream",
        figures.by_bytes,
        lambda row: f"{size(row['read_bytes'])}, {size(row['fetched_bytes'])} from the origin",
        BYTES,
        _STREAM_COLUMNS,
    )


def streams_by_requests(figures: Figures) -> Panel:
    """The streams with the most requests."""
    panel = Panel(
        "streams-by-requests",
        "Top streams by requests",
        "How often they were asked for, and by how many readers (about).",
        "No stream is known to have been asked for.",
    )
    return _busiest(
        panel,
        "stream",
        figures.by_requests,
        lambda row: f"{many(row['requests'], 'request')}, {many(row['readers'], 'reader')}",
        [Series("requests", "Requests", "tape")],
        _STREAM_COLUMNS,
    )


def fan_out(figures: Figures) -> Panel:
    """The number of reads that shared an answer of the origin."""
    panel = Panel(
        "fan-out",
        "Fan-out",
        "How many readers, at least, shared a stream (live reads) or a fetch (catch-up reads).",
        "No read shared anything with another, or none is in the log.",
    )
    rows = figures.fan_out
    if not rows:
        return panel
    live, catchup = (sum(row[field] for row in rows) for field in ("live", "catchup"))
    return panel.drawn(
        charts.columns(
            axes.parts(row[one.field] for row in rows for one in FAN_OUT),
            charts.points(rows, FAN_OUT, lambda row: count(row["at_least"])),
            FAN_OUT,
        ),
        f"Share of reads by how many shared, of {live} live and {catchup} catch-up reads.",
        _area_keys(FAN_OUT),
        [
            Column("Readers", _bucket),
            Column("Live reads", "live", count),
            Column("Share of them", "live_share", share),
            Column("Catch-up reads", "catchup", count),
            Column("Share of them", "catchup_share", share),
        ],
        rows,
    )


def lines_over_time(figures: Figures, y: axes.Axis, rows: Rows, series: Sequence[Series]) -> charts.Chart:
    """Lines through the middle of each step."""
    values = charts.points(rows, series, lambda row: 1000 * (row["began"] + figures.step_s / 2))
    return charts.lines(_time_axis(figures), y, values, series)


def line_keys(series: Sequence[Series]) -> list[Key]:
    """The legend of lines."""
    return [Key(f"line {one.dash} {one.colour}", one.label) for one in series]


def _area_keys(series: Sequence[Series]) -> list[Key]:
    return [Key(f"area {one.colour}", one.label) for one in series]


def _amounts(
    figures: Figures,
    panel: Panel,
    series: Sequence[Series],
    write: Callable[[float | None], str],
    *,
    stacked: bool = False,
) -> Panel:
    """Amounts over time: parts of all reads that are stacked, or each in front of the one before."""
    if not figures.reads:
        return panel
    rows, total = figures.moments, figures.total
    wholes = [share(total[one.field] / figures.reads) if stacked else write(total[one.field]) for one in series]
    keys = [Key(f"area {one.colour}", one.label, whole) for one, whole in zip(series, wholes, strict=True)]
    fields = ["reads"] if stacked else [one.field for one in series]
    y = axes.amounts((row[field] for row in rows for field in fields), is_bytes=write is size)
    # The last step is as wide as the others: its values once more at its end.
    ends = [*rows, {**rows[-1], "began": rows[-1]["began"] + figures.step_s}]
    values = charts.points(ends, series, lambda row: 1000 * row["began"])
    return panel.drawn(
        charts.areas(_time_axis(figures), y, values, series, stacked=stacked),
        f"{'Reads over' if stacked else 'Over'} time. {'; '.join(f'{key.label}: {key.whole}' for key in keys)}.",
        keys,
        [
            BEGAN,
            *(Column(one.label, one.field, write) for one in series),
            *([Column("Reads", "reads", count)] if stacked else []),
        ],
        rows,
    )


def _busiest(
    panel: Panel,
    kind: str,
    rows: Rows,
    says: Callable[[Row], str],
    series: Sequence[Series],
    columns: Sequence[Column],
) -> Panel:
    """A list of routes or streams, whose names are in the column `kind`."""
    if not rows:
        return panel
    bars = [{**row, "name": shortened(row[kind], _MOST_CHARS), "says": says(row)} for row in rows[:_MOST_ROUTES]]
    x = axes.amounts((row[one.field] for row in bars for one in series), is_bytes=series is BYTES)
    return panel.drawn(
        charts.bars(x, bars, series),
        f"{many(len(rows), kind)}, the busiest first.",
        _area_keys(series) if len(series) > 1 else [],
        columns,
        rows,
        "Counted in the hours in which the stream was among the 100 busiest." if kind == "stream" else "",
    )


def _time_axis(figures: Figures) -> axes.Axis:
    """The time axis of all steps."""
    return axes.times(figures.moments[0]["began"], figures.moments[-1]["began"] + figures.step_s)


def _bucket(row: Row) -> str:
    at_least = row["at_least"]
    return str(at_least) if at_least == 1 else f"{count(at_least)}–{count(at_least * 2 - 1)}"


def _step_name(figures: Figures) -> str:
    text = span(figures.step_s)
    return {"60 s": "minute", "60 min": "hour", "24 h": "day"}.get(text, text)


def _no_reads(figures: Figures) -> str:
    if not figures.requests:
        return "There are no figures of traffic: no lines of an access log were taken in and aggregated."
    return "The log has requests, but no reads among them."
