"""Panels of the traffic: reads and their cost to the origin, how they were answered, and the busiest streams."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.pipeline.report import axes, charts, wording
from gateway.pipeline.report.charts import Bars, Layer, Line
from gateway.pipeline.report.figures import Figures, Stream
from gateway.pipeline.report.markup import Html
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Key, Panel, drawn, edges, legend, listed, middle, over_time, time_axis

SAVERS = (
    ("tape", "From the tape"),
    ("collapse", "From a shared fetch"),
    ("follow", "From the one live request"),
    ("join", "Tape, behind one probe"),
    ("origin", "Origin, for it alone"),
    ("unanswered", "Refused, failed, aborted"),
)
"""How a read is answered, from the bottom of the chart up."""
_LEAST_OFFLOAD = -1.0
_MOST_ROUTES = 12


def offload(figures: Figures) -> Panel:
    """Shares that the origin was spared, over time."""
    panel = Panel(
        "offload",
        "Offload",
        "Reads that caused no request at the origin, of all reads; and 1 − bytes from the origin / bytes to readers.",
        _no_reads(figures),
        is_wide=True,
    )
    if not figures.total.reads:
        return panel
    requests = [(middle(figures, m), m.traffic.spared_ratio) for m in figures.moments]
    size = [(middle(figures, m), m.traffic.byte_offload) for m in figures.moments]
    y = axes.shares([value for _, value in [*requests, *size]], least=_LEAST_OFFLOAD)
    series = [Line("Reads without a request", "tape", requests), Line("Bytes spared", "follow", size, "long")]
    keys = [Key(line.label, line.colour, f"line {line.dash}") for line in series]
    below = charts.beyond(y, [value for _, value in size])
    if below:
        keys.append(Key(f"Below {wording.share(y.low)}: {_times(below)}", "follow", "out"))
    note = "Below 0 % the origin sent more than readers got: tapes were being filled." if y.low < 0 else ""
    return drawn(
        panel,
        charts.lines(time_axis(figures), y, series),
        f"Over the whole time {wording.share(figures.total.spared_ratio)} of reads caused no request, and "
        f"{wording.share(figures.total.byte_offload)} of bytes were spared.",
        legend(keys),
        over_time(
            figures,
            "offload",
            [
                Column("Reads without a request", wording.share),
                Column("Bytes spared", wording.share),
                Column("Requests for each read", wording.times),
                Column("Tape alone", wording.share),
            ],
            [
                (m.traffic.spared_ratio, m.traffic.byte_offload, m.traffic.asked_ratio, m.traffic.hit_ratio)
                for m in figures.moments
            ],
        ),
        note=note,
    )


def reads(figures: Figures) -> Panel:
    """Reads and the origin's requests, over time."""
    return _against(
        figures,
        Panel(
            "reads",
            "Reads, and requests to the origin",
            f"Every {_step_name(figures)}: catch-up reads, long-polls and SSE connections that ended.",
            _no_reads(figures),
        ),
        ("Reads", [m.traffic.reads for m in figures.moments]),
        ("Requests to the origin", [m.traffic.origin_requests for m in figures.moments]),
        is_bytes=False,
    )


def volume(figures: Figures) -> Panel:
    """Bytes to readers and from the origin, over time."""
    return _against(
        figures,
        Panel(
            "bytes",
            "Bytes to readers, and from the origin",
            f"Every {_step_name(figures)}: bodies of reads, before they were compressed.",
            _no_reads(figures),
        ),
        ("To readers", [m.traffic.read_bytes for m in figures.moments]),
        ("From the origin", [m.traffic.fetched_bytes for m in figures.moments]),
        is_bytes=True,
    )


def savers(figures: Figures) -> Panel:
    """Reads by how they were answered, over time."""
    panel = Panel(
        "savers",
        "Who saves what",
        f"Reads every {_step_name(figures)}, by where the answer came from.",
        _no_reads(figures),
        is_wide=True,
    )
    if not figures.total.reads:
        return panel
    whole = figures.total.by
    layers = [Layer(label, key, [getattr(m.traffic.by, key) for m in figures.moments]) for key, label in SAVERS]
    keys = [Key(label, key, whole=wording.share(getattr(whole, key) / whole.reads)) for key, label in SAVERS]
    y = axes.amounts([m.traffic.reads for m in figures.moments])
    return drawn(
        panel,
        charts.areas(time_axis(figures), y, edges(figures), layers, stacked=True),
        f"Reads over time. {'; '.join(f'{key.label}: {key.whole}' for key in keys)}.",
        legend(keys),
        over_time(
            figures,
            "savers",
            [*(Column(label, wording.count) for _, label in SAVERS), Column("Reads", wording.count)],
            [(*(getattr(m.traffic.by, key) for key, _ in SAVERS), m.traffic.reads) for m in figures.moments],
        ),
    )


def routes(figures: Figures) -> Panel:
    """The cost of each route's reads."""
    panel = Panel("routes", "Routes", "What each route's reads cost the origin.", _no_reads(figures))
    if not figures.routes:
        return panel
    rows = [
        Bars(
            listed(route.route),
            f"{wording.many(route.traffic.reads, 'read')}, "
            f"{wording.share(route.traffic.spared_ratio)} without a request",
            [("tape", route.traffic.reads), ("origin", route.traffic.origin_requests)],
        )
        for route in figures.routes[:_MOST_ROUTES]
    ]
    return drawn(
        panel,
        charts.bars(rows, axes.amounts([value for row in rows for _, value in row.parts])),
        f"{wording.many(len(figures.routes), 'route')}, the busiest first.",
        _pair("Reads", "Requests to the origin"),
        Numbers(
            "routes",
            [
                Column("Route"),
                Column("Protocol"),
                Column("Reads", wording.count),
                Column("Without a request", wording.count),
                Column("Origin requests", wording.count),
                Column("To readers", wording.size),
                Column("From the origin", wording.size),
                Column("Bytes spared", wording.share),
                Column("Tape alone", wording.share),
            ],
            [
                (
                    route.route,
                    route.protocol,
                    (t := route.traffic).reads,
                    t.spared,
                    t.origin_requests,
                    t.read_bytes,
                    t.fetched_bytes,
                    t.byte_offload,
                    t.hit_ratio,
                )
                for route in figures.routes
            ],
        ),
    )


def fan_out(figures: Figures) -> Panel:
    """The number of reads that shared an answer of the origin."""
    panel = Panel(
        "fan-out",
        "Fan-out",
        "How many readers, at least, shared a stream (live reads) or a fetch (catch-up reads).",
        "No read shared anything with another, or none is in the log.",
    )
    if not figures.fan_out:
        return panel
    live = sum(one.live for one in figures.fan_out)
    catchup = sum(one.catchup for one in figures.fan_out)
    groups = [
        Layer("Live reads", "follow", [one.live / live if live else 0.0 for one in figures.fan_out]),
        Layer("Catch-up reads", "collapse", [one.catchup / catchup if catchup else 0.0 for one in figures.fan_out]),
    ]
    y = axes.parts([value for group in groups for value in group.values])
    return drawn(
        panel,
        charts.columns([wording.count(one.at_least) for one in figures.fan_out], y, groups),
        f"Share of reads by how many shared, of {live} live and {catchup} catch-up reads.",
        legend([Key(group.label, group.colour) for group in groups]),
        Numbers(
            "fan-out",
            [
                Column("Readers"),
                Column("Live reads", wording.count),
                Column("Share of them", wording.share),
                Column("Catch-up reads", wording.count),
                Column("Share of them", wording.share),
            ],
            [
                (_bucket(one.at_least), one.live, groups[0].values[at], one.catchup, groups[1].values[at])
                for at, one in enumerate(figures.fan_out)
            ],
        ),
    )


def streams_by_bytes(figures: Figures) -> Panel:
    """The streams with the most bytes to readers."""
    panel = Panel(
        "streams-by-bytes",
        "Top streams by bytes",
        "What their readers got, before it was compressed, and what of it came from the origin.",
        "No stream is known to have been read.",
    )
    rows = [
        Bars(
            listed(one.stream),
            f"{wording.size(one.read_bytes)}, {wording.size(one.fetched_bytes)} from the origin",
            [("tape", one.read_bytes), ("origin", one.fetched_bytes)],
        )
        for one in figures.by_bytes
    ]
    return _streams(panel, figures.by_bytes, rows, _pair("To readers", "From the origin"), is_bytes=True)


def streams_by_requests(figures: Figures) -> Panel:
    """The streams with the most requests."""
    panel = Panel(
        "streams-by-requests",
        "Top streams by requests",
        "How often they were asked for, and by how many readers (about).",
        "No stream is known to have been asked for.",
    )
    rows = [
        Bars(
            listed(one.stream),
            f"{wording.many(one.requests, 'request')}, {wording.many(one.readers, 'reader')}",
            [("tape", one.requests)],
        )
        for one in figures.by_requests
    ]
    return _streams(panel, figures.by_requests, rows, None, is_bytes=False)


def _streams(
    panel: Panel, streams: Sequence[Stream], rows: Sequence[Bars], key: Html | None, *, is_bytes: bool
) -> Panel:
    if not streams:
        return panel
    return drawn(
        panel,
        charts.bars(rows, axes.amounts([value for row in rows for _, value in row.parts], is_bytes=is_bytes)),
        f"{wording.many(len(streams), 'stream')}, the busiest first.",
        key,
        Numbers(
            panel.name,
            [
                Column("Stream"),
                Column("Route"),
                Column("Protocol"),
                Column("Requests", wording.count),
                Column("To readers", wording.size),
                Column("From the origin", wording.size),
                Column("Readers", wording.count),
            ],
            [
                (one.stream, one.route, one.protocol, one.requests, one.read_bytes, one.fetched_bytes, one.readers)
                for one in streams
            ],
        ),
        note="Counted in the hours in which the stream was among the 100 busiest.",
    )


def _against(
    figures: Figures,
    panel: Panel,
    asked: tuple[str, Sequence[int]],
    cost: tuple[str, Sequence[int]],
    *,
    is_bytes: bool,
) -> Panel:
    """Two amounts over time; the second is drawn in front of the first."""
    if not figures.total.reads:
        return panel
    write = wording.size if is_bytes else wording.count
    layers = [Layer(asked[0], "tape", asked[1]), Layer(cost[0], "origin", cost[1])]
    keys = [Key(layer.label, layer.colour, whole=write(sum(layer.values))) for layer in layers]
    y = axes.amounts([*asked[1], *cost[1]], is_bytes=is_bytes)
    return drawn(
        panel,
        charts.areas(time_axis(figures), y, edges(figures), layers, stacked=False),
        f"Over time. {'; '.join(f'{key.label}: {key.whole}' for key in keys)}.",
        legend(keys),
        over_time(
            figures,
            panel.name,
            [Column(layer.label, write) for layer in layers],
            list(zip(*(layer.values for layer in layers), strict=True)),
        ),
    )


def _pair(first: str, second: str) -> Html:
    return legend([Key(first, "tape"), Key(second, "origin")])


def _times(below: Sequence[float]) -> str:
    return f"{wording.many(len(below), 'time')}, the lowest {wording.share(min(below))}"


def _bucket(at_least: int) -> str:
    return str(at_least) if at_least == 1 else f"{wording.count(at_least)}–{wording.count(at_least * 2 - 1)}"


def _step_name(figures: Figures) -> str:
    text = wording.span(figures.step_s)
    return {"60 s": "minute", "60 min": "hour", "24 h": "day"}.get(text, text)


def _no_reads(figures: Figures) -> str:
    if not figures.requests:
        return "There are no figures of traffic: no lines of an access log were taken in and aggregated."
    return "The log has requests, but no reads among them."
