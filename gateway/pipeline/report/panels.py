"""Cards of the traffic: reads and their cost to the origin, how they were answered, how long that took, and the busiest
routes and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.figures import Figures, Row, Rows
from gateway.pipeline.report.panel import BEGAN, Column, Content, Key, shortened
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
"""How a read is answered, from the bottom of the chart up."""
PERCENTILES = (
    Series("p50_s", "Half within", "quick"),
    Series("p90_s", "90 % within", "middle", "long"),
    Series("p99_s", "99 % within", "slow", "short"),
)
FAN_OUT = (Series("live_share", "Live reads", "follow"), Series("catchup_share", "Catch-up reads", "collapse"))
_LEAST_OFFLOAD = -1.0
_MOST_LISTED = 12
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


def offload(figures: Figures) -> Content | None:
    """Shares that the origin was spared, over time."""
    if not figures.reads:
        return None
    y = axes.shares([row[one.field] for row in figures.moments for one in OFFLOAD], least=_LEAST_OFFLOAD)
    keys = line_keys(OFFLOAD)
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
            *(Column(one.label, one.field, share) for one in OFFLOAD),
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
    """Amounts over time: parts of all reads that are stacked, or each in front of the one before."""
    if not figures.reads:
        return None
    rows, total = figures.moments, figures.total
    wholes = [share(total[one.field] / figures.reads) if stacked else write(total[one.field]) for one in series]
    keys = [Key(f"area {one.colour}", one.label, whole) for one, whole in zip(series, wholes, strict=True)]
    fields = ["reads"] if stacked else [one.field for one in series]
    y = axes.amounts((row[field] for row in rows for field in fields), is_bytes=write is size)
    # The last step is as wide as the others: its values once more at its end.
    ends = [*rows, {**rows[-1], "began": rows[-1]["began"] + figures.step_s}]
    values = charts.points(ends, series, lambda row: 1000 * row["began"])
    return Content(
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


def waits(figures: Figures, of: str, counted: str) -> Content | None:
    """Percentiles of waiting times over time: the figures named `of`."""
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
        [*line_keys(PERCENTILES), *_at_once(y, values)],
        [BEGAN, *(Column(one.label, one.field, span) for one in PERCENTILES), Column(counted, "count", count)],
        rows,
        f"In all: {says}. The scale is logarithmic.",
    )


def latency(figures: Figures) -> Content | None:
    """How long each mode took on each route."""
    known = [{**row, "kind": f"{row['mode']} · {row['route']}"} for row in figures.latency if row["count"]]
    if not known:
        return None
    rows = _listed(known, "kind", lambda row: f"half {span(row['p50_s'])}, 99 % {span(row['p99_s'])}")
    values = [row[one.field] for row in rows for one in PERCENTILES]
    x = axes.spans(values)
    return Content(
        charts.dots(x, rows, PERCENTILES),
        "Half of the requests, 90 % and 99 % of them took at most the times of the dots.",
        [*(Key(f"dot {one.colour}", one.label) for one in PERCENTILES), *_at_once(x, values)],
        [
            Column("Route", "route"),
            Column("Mode", "mode"),
            Column("Requests", "count", count),
            *(Column(f"All p{rank}", f"p{rank}_s", span) for rank in (50, 90, 99)),
            *(Column(f"First byte p{rank}", f"first_byte_p{rank}_s", span) for rank in (50, 90, 99)),
        ],
        figures.latency,
        "The scale is logarithmic.",
    )


def routes(figures: Figures) -> Content | None:
    """The cost of each route's reads."""
    return _busiest(
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


def streams_by_bytes(figures: Figures) -> Content | None:
    """The streams with the most bytes to readers."""
    return _busiest(
        "stream",
        figures.by_bytes,
        lambda row: f"{size(row['read_bytes'])}, {size(row['fetched_bytes'])} from the origin",
        BYTES,
        _STREAM_COLUMNS,
    )


def streams_by_requests(figures: Figures) -> Content | None:
    """The streams with the most requests."""
    return _busiest(
        "stream",
        figures.by_requests,
        lambda row: f"{many(row['requests'], 'request')}, {many(row['readers'], 'reader')}",
        [Series("requests", "Requests", "tape")],
        _STREAM_COLUMNS,
    )


def fan_out(figures: Figures) -> Content | None:
    """The number of reads that shared an answer of the origin."""
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


def line_keys(series: Sequence[Series]) -> list[Key]:
    """The legend of lines."""
    return [Key(f"line {one.dash} {one.colour}", one.label) for one in series]


def _area_keys(series: Sequence[Series]) -> list[Key]:
    return [Key(f"area {one.colour}", one.label) for one in series]


def _at_once(axis: axes.Axis, values: Iterable[float | None]) -> list[Key]:
    """What the triangles mean at the end of a logarithmic axis, which has no zero."""
    return [Key("out quick", "At once: less than the log can tell")] if axis.beyond(values) else []


def _busiest(
    kind: str,
    rows: Rows,
    says: Callable[[Row], str],
    series: Sequence[Series],
    columns: Sequence[Column],
) -> Content | None:
    """A list of routes or streams, whose names are in the column `kind`."""
    if not rows:
        return None
    bars = _listed(rows, kind, says)
    x = axes.amounts((row[one.field] for row in bars for one in series), is_bytes=series is BYTES)
    return Content(
        charts.bars(x, bars, series),
        f"{many(len(rows), kind)}, the busiest first.",
        _area_keys(series) if len(series) > 1 else [],
        columns,
        rows,
        "Counted in the hours in which the stream was among the 100 busiest." if kind == "stream" else "",
    )


def _listed(rows: Sequence[Row], kind: str, says: Callable[[Row], str]) -> list[Row]:
    """The first rows as a chart lists them."""
    return [{**row, "name": shortened(row[kind], _MOST_CHARS), "says": says(row)} for row in rows[:_MOST_LISTED]]


def _lines(figures: Figures, y: axes.Axis, rows: Rows, series: Sequence[Series]) -> charts.Chart:
    """Lines through the middle of each step."""
    values = charts.points(rows, series, lambda row: 1000 * (row["began"] + figures.step_s / 2))
    return charts.lines(_time_axis(figures), y, values, series)


def _time_axis(figures: Figures) -> axes.Axis:
    """The time axis of all steps."""
    return axes.times(figures.moments[0]["began"], figures.moments[-1]["began"] + figures.step_s)


def _bucket(row: Row) -> str:
    at_least = row["at_least"]
    return str(at_least) if at_least == 1 else f"{count(at_least)}–{count(at_least * 2 - 1)}"
