"""The charts of a report, each with its heading, what it shows, its legend and its numbers.

A `Panel` is one card of the page.  Where there is nothing to draw it says so, and why, instead of an empty chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.pipeline.report import charts, scales, wording
from gateway.pipeline.report.charts import Layer, Line
from gateway.pipeline.report.figures import Figures, Moment, Percentiles, Stream, Wait
from gateway.pipeline.report.findings import shortened
from gateway.pipeline.report.markup import Html, element
from gateway.pipeline.report.numbers import Column, Numbers

SAVERS = (
    ("tape", "From the tape"),
    ("collapse", "From a shared fetch"),
    ("follow", "From the one live request"),
    ("join", "Tape, behind one probe"),
    ("origin", "Origin, for it alone"),
    ("unanswered", "Refused, failed, aborted"),
)
"""Who answers a read, bottom of the chart first."""
_MOST_CHARS = 72
_LEAST_OFFLOAD = -1.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A card: `body` is the chart, or None with `nothing` saying why."""

    name: str
    title: str
    about: str
    nothing: str
    body: Html | None = None
    legend: Html | None = None
    numbers: Numbers | None = None
    is_wide: bool = False
    note: str = ""


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
    requests = [(_middle(figures, m), m.traffic.request_offload) for m in figures.moments]
    size = [(_middle(figures, m), m.traffic.byte_offload) for m in figures.moments]
    y = scales.shares([value for _, value in [*requests, *size]], least=_LEAST_OFFLOAD)
    series = [Line("Requests", "tape", requests), Line("Bytes", "follow", size, "long")]
    says = (
        f"Over the whole time {wording.share(figures.total.request_offload)} of requests and "
        f"{wording.share(figures.total.byte_offload)} of bytes."
    )
    return _with(
        panel,
        charts.lines(_time(figures), y, series, says=f"Offload over time. {says}"),
        charts.legend(series),
        _over_time(
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
            f"Every {_step_name(figures)}: bodies of reads, as they were sent.",
            _no_reads(figures),
        ),
        ("To readers", [m.traffic.sent_bytes for m in figures.moments]),
        ("From the origin", [m.traffic.fetched_bytes for m in figures.moments]),
        is_bytes=True,
    )


def savers(figures: Figures) -> Panel:
    """Reads by who answered them, over time."""
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
    return _with(
        panel,
        charts.areas(_time(figures), y, _edges(figures), layers, says=f"Reads over time. {says}.", stacked=True),
        charts.legend(layers),
        _over_time(
            figures,
            "savers",
            [*(Column(label, wording.count, key) for key, label in SAVERS), Column("Reads", wording.count)],
            [(*(getattr(m.traffic.by, key) for key, _ in SAVERS), m.traffic.reads) for m in figures.moments],
        ),
    )


def routes(figures: Figures) -> Panel:
    """What each route did."""
    panel = Panel("routes", "Routes", "What each route's reads cost the origin.", _no_reads(figures))
    if not figures.routes:
        return panel
    most = max(route.traffic.reads for route in figures.routes)
    rows = [
        _row(
            route.route,
            f"{wording.many(route.traffic.reads, 'read')}, {wording.share(route.traffic.request_offload)} spared",
            [("tape", route.traffic.reads / most), ("origin", route.traffic.origin_requests / most)],
        )
        for route in figures.routes[:12]
    ]
    return _with(
        panel,
        element("ol", rows, class_="bars"),
        _pair("Reads", "Requests to the origin"),
        Numbers(
            "routes",
            [
                Column("Route"),
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
                    (t := route.traffic).reads,
                    t.origin_requests,
                    t.request_offload,
                    t.sent_bytes,
                    t.fetched_bytes,
                    t.byte_offload,
                    t.hit_ratio,
                )
                for route in figures.routes
            ],
        ),
    )


def first_byte(figures: Figures) -> Panel:
    """How long catch-up reads waited for their answer to begin, over time."""
    return _waits(
        figures,
        Panel(
            "first-byte",
            "Time to the first byte",
            "Of catch-up reads, from the request to the beginning of the answer.",
            "There were no catch-up reads that were answered.",
        ),
        figures.first_byte,
        figures.first_byte_all,
        "Reads",
    )


def delivery(figures: Figures) -> Panel:
    """How long an append took to reach the readers, over time."""
    return _waits(
        figures,
        Panel(
            "delivery",
            "Delivery delay",
            "From the end of an append through the gateway to the end of the long-poll that it woke.",
            "No append of this log woke a long-poll: writers go past the gateway, or nobody polls.",
        ),
        figures.delivery,
        figures.delivery_all,
        "Deliveries",
    )


def latency(figures: Figures) -> Panel:
    """How long each mode took on each route."""
    panel = Panel(
        "latency",
        "Latency by route and mode",
        "How long requests took from end to end; live reads, whose time is their wait, are not among them.",
        "There were no requests but live reads.",
        is_wide=True,
    )
    if not figures.latency:
        return panel
    known = [one for one in figures.latency if one.duration.p99_s]
    most = scales.spans([one.duration.p99_s for one in known] + [one.duration.p50_s for one in known])
    rows = [
        _row(
            f"{one.mode} · {one.route}",
            f"half {wording.span(one.duration.p50_s)}, 99 % {wording.span(one.duration.p99_s)}",
            [
                ("slow", most.place(one.duration.p99_s or 0)),
                ("middle", most.place(one.duration.p90_s or 0)),
                ("quick", most.place(one.duration.p50_s or 0)),
            ],
        )
        for one in known[:12]
    ]
    heads = [Column(f"{what} p{rank}", wording.span) for what in ("All", "First byte") for rank in (50, 90, 99)]
    return _with(
        panel,
        element("ol", rows, class_="bars"),
        charts.legend(Layer(label, colour, ()) for colour, label in _PERCENTILES),
        Numbers(
            "latency",
            [Column("Route"), Column("Mode"), Column("Requests", wording.count), *heads],
            [
                (one.route, one.mode, one.duration.count, *_three(one.duration), *_three(one.first_byte))
                for one in figures.latency
            ],
        ),
        note="The bars are on a logarithmic scale.",
    )


def fan_out(figures: Figures) -> Panel:
    """With how many others a read shared what the origin sent."""
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
    return _with(
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
    """The streams whose readers got the most."""
    panel = Panel(
        "streams-by-bytes",
        "Top streams by bytes",
        "What their readers got, and what of it came from the origin.",
        "No stream is known to have been read.",
    )
    return _streams(
        panel,
        figures.by_bytes,
        [(one.sent_bytes, one.fetched_bytes) for one in figures.by_bytes],
        [
            f"{wording.size(one.sent_bytes)}, {wording.size(one.fetched_bytes)} from the origin"
            for one in figures.by_bytes
        ],
        _pair("To readers", "From the origin"),
    )


def streams_by_requests(figures: Figures) -> Panel:
    """The streams that were asked for most often."""
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


_PERCENTILES = (("quick", "Half within"), ("middle", "90 % within"), ("slow", "99 % within"))


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
        _row(one.stream, said, [("tape", whole / most), ("origin", part / most)])
        for one, (whole, part), said in zip(streams, values, says, strict=True)
    ]
    return _with(
        panel,
        element("ol", rows, class_="bars"),
        legend,
        Numbers(
            panel.name,
            [
                Column("Stream"),
                Column("Route"),
                Column("Requests", wording.count),
                Column("To readers", wording.size),
                Column("From the origin", wording.size),
                Column("Readers", wording.count),
            ],
            [(one.stream, one.route, one.requests, one.sent_bytes, one.fetched_bytes, one.readers) for one in streams],
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
    """Two amounts over time, the second before the first."""
    if not figures.total.reads:
        return panel
    write = wording.size if is_bytes else wording.count
    layers = [
        Layer(asked[0], "tape", asked[1], write(sum(asked[1]))),
        Layer(cost[0], "origin", cost[1], write(sum(cost[1]))),
    ]
    y = scales.amounts([*asked[1], *cost[1]], is_bytes=is_bytes)
    says = "; ".join(f"{layer.label}: {layer.whole}" for layer in layers) + "."
    return _with(
        panel,
        charts.areas(_time(figures), y, _edges(figures), layers, says=f"Over time. {says}", stacked=False),
        charts.legend(layers),
        _over_time(
            figures,
            panel.name,
            [Column(layer.label, write, layer.colour) for layer in layers],
            list(zip(*(layer.values for layer in layers), strict=True)),
        ),
    )


def _waits(figures: Figures, panel: Panel, waits: Sequence[Wait], whole: Percentiles | None, counted: str) -> Panel:
    if not waits or whole is None:
        return panel
    dashes = ("", "long", "short")
    series = [
        Line(label, colour, [(wait.at + figures.step_s / 2, _three(wait.waited)[nth]) for wait in waits], dashes[nth])
        for nth, (colour, label) in enumerate(_PERCENTILES)
    ]
    y = scales.spans([value for line in series for _, value in line.points])
    says = "; ".join(
        f"{label.lower()} {wording.span(value)}" for (_, label), value in zip(_PERCENTILES, _three(whole), strict=True)
    )
    return _with(
        panel,
        charts.lines(_time(figures), y, series, says=f"{panel.title} over time. Over the whole time {says}."),
        charts.legend(series),
        _over_time(
            figures,
            panel.name,
            [
                *(Column(label, wording.span, colour) for colour, label in _PERCENTILES),
                Column(counted, wording.count),
            ],
            [(*_three(wait.waited), wait.waited.count) for wait in waits],
        ),
        note=f"In all: {says}. The scale is logarithmic.",
    )


def _over_time(
    figures: Figures, name_: str, columns: Sequence[Column], rows: Sequence[Sequence[float | None]]
) -> Numbers:
    """A row for each step, with the time before it; `rows` are in the order of the moments."""
    x = _time(figures)
    return Numbers(
        name_,
        [Column("From (UTC)"), *columns],
        [(wording.moment(moment.at), *row) for moment, row in zip(figures.moments, rows, strict=True)],
        places=[x.place(_middle(figures, moment)) for moment in figures.moments],
    )


def _row(label: str, says: str, parts: Sequence[tuple[str, float]]) -> Html:
    short = shortened(label, _MOST_CHARS)
    return element(
        "li",
        element("span", element("bdi", short), class_="bar-name", title=label),
        element("span", says, class_="bar-says"),
        charts.bar(parts),
    )


def _pair(first: str, second: str) -> Html:
    return charts.legend([Layer(first, "tape", ()), Layer(second, "origin", ())])


def _with(panel: Panel, body: Html, legend: Html | None, table: Numbers, note: str = "") -> Panel:
    return Panel(
        panel.name, panel.title, panel.about, panel.nothing, body, legend, table, is_wide=panel.is_wide, note=note
    )


def _time(figures: Figures) -> scales.Axis:
    edges = _edges(figures)
    return scales.times(edges[0], edges[-1])


def _edges(figures: Figures) -> list[int]:
    starts = [moment.at for moment in figures.moments]
    return [*starts, starts[-1] + figures.step_s] if starts else [0]


def _middle(figures: Figures, moment: Moment) -> float:
    return moment.at + figures.step_s / 2


def _three(waited: Percentiles) -> tuple[float | None, float | None, float | None]:
    return waited.p50_s, waited.p90_s, waited.p99_s


def _bucket(at_least: int) -> str:
    return str(at_least) if at_least == 1 else f"{wording.count(at_least)}–{wording.count(at_least * 2 - 1)}"


def _step_name(figures: Figures) -> str:
    text = wording.span(figures.step_s)
    return {"60 s": "minute", "60 min": "hour", "24 h": "day"}.get(text, text)


def _no_reads(figures: Figures) -> str:
    if not figures.requests:
        return "There are no figures of traffic: no lines of an access log were taken in and aggregated."
    return "The log has requests, but no reads among them."
