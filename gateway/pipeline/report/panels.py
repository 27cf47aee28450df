"""Panels of the traffic: reads and their cost to the origin, how they were answered, and the busiest streams."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.pipeline.report import charts, scales, wording
from gateway.pipeline.report.charts import Layer, Line
from gateway.pipeline.report.figures import Figures, Stream
from gateway.pipeline.report.markup import Html, element
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Panel, drawn, edges, middle, over_time, row, time_axis

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


def offload(figures: Figures) -> Panel:
    """Shares that the origin was spared, over time."""
    panel = Panel(
        "offload",
        "Offload",
        "Share of the readers' requests and bytes that the origin was spared.",
        _no_reads(figures),
        is_wide=True,
    )
    if not figures.total.reads:
        return panel
    requests = [(middle(figures, m), m.traffic.request_offload) for m in figures.moments]
    size = [(middle(figures, m), m.traffic.byte_offload) for m in figures.moments]
    y = scales.shares([value for _, value in [*requests, *size]], least=_LEAST_OFFLOAD)
    series = [Line("Requests", "tape", requests), Line("Bytes", "follow", size, "long")]
    says = (
        f"Over the whole time {wording.share(figures.total.request_offload)} of requests and "
        f"{wording.share(figures.total.byte_offload)} of bytes."
    )
    return drawn(
        panel,
        charts.lines(time_axis(figures), y, series, says=f"Offload over time. {says}"),
        charts.legend(series),
        over_time(
            figures,
            "offload",
            [
                Column("Requests spared", wording.share, "tape"),
                Column("Bytes spared", wording.share, "follow"),
                Column("Tape alone", wording.share),
            ],
            [(m.traffic.request_offload, m.traffic.byte_offload, m.traffic.hit_ratio) for m in figures.moments],
        ),
        note="Below 0 % the origin did more than the readers asked for: tapes were being filled."
        if y.scale.low < 0
        else "",
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
    layers = [
        Layer(
            label,
            key,
            [getattr(moment.traffic.by, key) for moment in figures.moments],
            wording.share(getattr(whole, key) / whole.reads),
        )
        for key, label in SAVERS
    ]
    y = scales.amounts([m.traffic.reads for m in figures.moments])
    says = "; ".join(f"{layer.label}: {layer.whole}" for layer in layers)
    return drawn(
        panel,
        charts.areas(time_axis(figures), y, edges(figures), layers, says=f"Reads over time. {says}.", stacked=True),
        charts.legend(layers),
        over_time(
            figures,
            "savers",
            [*(Column(label, wording.count, key) for key, label in SAVERS), Column("Reads", wording.count)],
            [(*(getattr(m.traffic.by, key) for key, _ in SAVERS), m.traffic.reads) for m in figures.moments],
        ),
    )


def routes(figures: Figures) -> Panel:
    """The cost of each route's reads."""
    panel = Panel("routes", "Routes", "What each route's reads cost the origin.", _no_reads(figures))
    if not figures.routes:
        return panel
    most = max(route.traffic.reads for route in figures.routes)
    rows = [
        row(
            route.route,
            f"{wording.many(route.traffic.reads, 'read')}, {wording.share(route.traffic.request_offload)} spared",
            [("tape", route.traffic.reads / most), ("origin", route.traffic.origin_requests / most)],
        )
        for route in figures.routes[:12]
    ]
    return drawn(
        panel,
        element("ol", rows, class_="bars"),
        _pair("Reads", "Requests to the origin"),
        Numbers(
            "routes",
            [
                Column("Route"),
                Column("Protocol"),
                Column("Reads", wording.count),
                Column("Origin requests", wording.count),
                Column("Requests spared", wording.share),
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
                    t.origin_requests,
                    t.request_offload,
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
    labels = [_bucket(one.at_least) for one in figures.fan_out]
    y = scales.parts([value for group in groups for value in group.values])
    number = len(labels)
    return drawn(
        panel,
        charts.columns(
            [wording.count(one.at_least) for one in figures.fan_out],
            y,
            groups,
            says=f"Share of reads by how many shared, of {live} live and {catchup} catch-up reads.",
        ),
        charts.legend(groups),
        Numbers(
            "fan-out",
            [
                Column("Readers"),
                Column("Live reads", wording.count, "follow"),
                Column("Share of them", wording.share),
                Column("Catch-up reads", wording.count, "collapse"),
                Column("Share of them", wording.share),
            ],
            [
                (label, one.live, groups[0].values[at], one.catchup, groups[1].values[at])
                for at, (label, one) in enumerate(zip(labels, figures.fan_out, strict=True))
            ],
            places=[(at + 0.5) / number for at in range(number)],
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
    return _streams(
        panel,
        figures.by_bytes,
        [(one.read_bytes, one.fetched_bytes) for one in figures.by_bytes],
        [
            f"{wording.size(one.read_bytes)}, {wording.size(one.fetched_bytes)} from the origin"
            for one in figures.by_bytes
        ],
        _pair("To readers", "From the origin"),
    )


def streams_by_requests(figures: Figures) -> Panel:
    """The streams with the most requests."""
    panel = Panel(
        "streams-by-requests",
        "Top streams by requests",
        "How often they were asked for, and by how many readers (about).",
        "No stream is known to have been asked for.",
    )
    return _streams(
        panel,
        figures.by_requests,
        [(one.requests, 0) for one in figures.by_requests],
        [
            f"{wording.many(one.requests, 'request')}, {wording.many(one.readers, 'reader')}"
            for one in figures.by_requests
        ],
        None,
    )


def _streams(
    panel: Panel,
    streams: Sequence[Stream],
    values: Sequence[tuple[int, int]],
    says: Sequence[str],
    legend: Html | None,
) -> Panel:
    if not streams:
        return panel
    most = max(max(pair) for pair in values) or 1
    rows = [
        row(one.stream, said, [("tape", whole / most), ("origin", part / most)])
        for one, (whole, part), said in zip(streams, values, says, strict=True)
    ]
    return drawn(
        panel,
        element("ol", rows, class_="bars"),
        legend,
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
    layers = [
        Layer(asked[0], "tape", asked[1], write(sum(asked[1]))),
        Layer(cost[0], "origin", cost[1], write(sum(cost[1]))),
    ]
    y = scales.amounts([*asked[1], *cost[1]], is_bytes=is_bytes)
    says = "; ".join(f"{layer.label}: {layer.whole}" for layer in layers) + "."
    return drawn(
        panel,
        charts.areas(time_axis(figures), y, edges(figures), layers, says=f"Over time. {says}", stacked=False),
        charts.legend(layers),
        over_time(
            figures,
            panel.name,
            [Column(layer.label, write, layer.colour) for layer in layers],
            list(zip(*(layer.values for layer in layers), strict=True)),
        ),
    )


def _pair(first: str, second: str) -> Html:
    return charts.legend([Layer(first, "tape", ()), Layer(second, "origin", ())])


def _bucket(at_least: int) -> str:
    return str(at_least) if at_least == 1 else f"{wording.count(at_least)}–{wording.count(at_least * 2 - 1)}"


def _step_name(figures: Figures) -> str:
    text = wording.span(figures.step_s)
    return {"60 s": "minute", "60 min": "hour", "24 h": "day"}.get(text, text)


def _no_reads(figures: Figures) -> str:
    if not figures.requests:
        return "There are no figures of traffic: no lines of an access log were taken in and aggregated."
    return "The log has requests, but no reads among them."
