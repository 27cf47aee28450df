"""The parts of a dashboard, and their rendering as Grafana's JSON.

A board is data: rows of panels, each with its queries and a sentence on how to read it.  All boards have the same
variables (data source, gateway, protocol, route) and link to each other by their tag.  All mark the moments at which a
gateway was started, reloaded or purged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import text as text_models

TAG: Final = "durable-gateway"
_WIDTH: Final = 24
_HEIGHT: Final = {"stat": 4, "lines": 8, "stack": 8, "heat": 8, "text": 6}
_SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="$datasource")

GATEWAY: Final = 'instance=~"$instance"'
"""Matches the chosen gateways."""
ROUTE: Final = 'instance=~"$instance",route=~"$route"'
"""Matches the chosen gateways and routes."""

Kind = Literal["stat", "lines", "stack", "heat", "text"]
"""`heat` is a heatmap: how many observations fell into each bucket of a histogram, over time."""


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the legend of its series; `{{label}}` in the legend stands for a label's value."""

    expression: str
    legend: str = ""
    shows_exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.  `width` is in twenty-fourths; `least` and `most` are the ends of the axis, if they are fixed."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    width: int = 8
    most: float | None = None
    least: float | None = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; `name` is its file's name and, prefixed with the project's, its uid in Grafana."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]


def rate(series: str, by: str = "", matching: str = ROUTE) -> str:
    """A counter's rate per second, summed by labels; `matching` may extend `ROUTE` with other conditions."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({series}{{{matching}}}[$__rate_interval]))"


def share(series: str, of: str, matching: str) -> str:
    """The share of the series' rate under the conditions `of` that also meets the conditions `matching`."""
    return f"{rate(series, matching=f'{of},{matching}')} / {rate(series, matching=of)}"


def total(series: str, by: str = "", matching: str = ROUTE) -> str:
    """The sum of a gauge, by labels."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({series}{{{matching}}})"


def quantile(part: float, series: str, by: str = "", matching: str = ROUTE) -> str:
    """The quantile `part` of a histogram; `series` is its name."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({series}_bucket{{{matching}}}[$__rate_interval])))"


def quantiles(series: str, matching: str = ROUTE) -> tuple[Query, ...]:
    """The median, the 95th and the 99th percentile, with exemplars."""
    return tuple(
        Query(quantile(part, series, matching=matching), legend, shows_exemplars=True)
        for part, legend in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
    )


def buckets(series: str, matching: str = ROUTE) -> tuple[Query, ...]:
    """The query of a heatmap; `series` is a histogram's name."""
    return (Query(f"sum by (le) (increase({series}_bucket{{{matching}}}[$__rate_interval]))", "{{le}}"),)


_MOMENTS: Final = (
    # Its value is the moment in milliseconds, so it is marked once, however often it was scraped.
    ("Starts", f"process_start_time_seconds{{{GATEWAY}}} * 1000", "started", True),
    ("Reloads", f"sum by (instance, result) (increase(durable_gateway_reloads_total{{{GATEWAY}}}[1m])) > 0",
     "configuration {{result}}", False),
    ("Purges", f"sum by (instance, kind) (increase(durable_gateway_purges_total{{{GATEWAY}}}[1m])) > 0",
     "{{kind}} purge", False),
)  # fmt: skip
"""Annotations of every panel: name, expression, text, and whether the value is the moment."""


def _annotations() -> list[dict[str, Any]]:
    # In the format of the Prometheus data source, whose fields the builder does not know.
    return [
        {
            "datasource": {"type": "prometheus", "uid": "$datasource"},
            "enable": True,
            "expr": expression,
            "hide": False,
            "iconColor": colour,
            "name": name,
            "step": "60s",
            "titleFormat": "{{instance}}",
            "textFormat": words,
            "useValueForTime": is_moment,
        }
        for (name, expression, words, is_moment), colour in zip(_MOMENTS, ("green", "blue", "orange"), strict=True)
    ]


def rendered(board: Board) -> str:
    """The board as Grafana's JSON, ending in a newline."""
    made = builders.Dashboard(board.title).uid(f"{TAG}-{board.name}").description(board.description)
    made = made.tags([TAG]).editable().timezone("browser").refresh("10s").time("now-30m", "now")
    made = made.tooltip(models.DashboardCursorSync.CROSSHAIR).link(
        builders.DashboardLink("durable-gateway")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    for variable in _variables():
        made = made.with_variable(variable)
    at_id = 1
    for row in board.rows:
        made = made.with_row(builders.Row(row.title).id(at_id))
        at_id += 1
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(at_id))
            at_id += 1
    plain = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    plain["annotations"] = {"list": _annotations()}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _variables() -> tuple[Any, ...]:
    return (
        builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _choice("instance", "Gateway", "label_values(durable_gateway_build_info, instance)"),
        _choice("protocol", "Protocol", "label_values(durable_gateway_route_info, protocol)"),
        # "All" is a list here, not a pattern: it has to follow the choice of protocols.
        _choice("route", "Route", _ROUTES, all_value=None).regex('/route="([^"]*)"/'),
    )


_ROUTES: Final = (
    "query_result(count by (route) (durable_gateway_requests_total) "
    'unless on (route) durable_gateway_route_info{protocol!~"$protocol"})'
)
"""Routes that are not of another protocol, requests without a route included."""


def _choice(name: str, label: str, query: str, all_value: str | None = ".*") -> builders.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    made = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query({"query": query, "refId": "names"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(everything)
    )
    # A pattern rather than a list of names, so that gateways added later are included.
    return made.all_value(all_value) if all_value is not None else made


def _panel(panel: Panel) -> Any:
    made: Any
    if panel.kind == "text":
        made = text.Panel().mode(text_models.TextMode.MARKDOWN).content(panel.description)
    elif panel.kind == "stat":
        made = stat.Panel().color_mode(common.BigValueColorMode.NONE).graph_mode(common.BigValueGraphMode.AREA)
    elif panel.kind == "heat":
        made = _heatmap(panel.unit)
    else:
        made = _lines(is_stacked=panel.kind == "stack")
    made = made.title(panel.title).height(_HEIGHT[panel.kind]).span(panel.width)
    if panel.kind == "text":
        return made
    made = made.description(panel.description).unit(panel.unit).datasource(_SOURCE)
    if panel.kind == "stat":
        # A ratio without data has no value.
        made = made.no_value("–")
    if panel.least is not None and panel.kind != "heat":
        made = made.min(panel.least)
    if panel.most is not None:
        made = made.max(panel.most)
    for at, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend or panel.title)
        target = target.range().ref_id(chr(ord("A") + at)).datasource(_SOURCE)
        if panel.kind == "heat":
            target = target.format(prometheus_models.PromQueryFormat.HEATMAP)
        if query.shows_exemplars:
            target = target.exemplar(True)
        made = made.with_target(target)
    return made


def _heatmap(unit: str) -> heatmap.Panel:
    """A heatmap of counts that are bucketed already: Grafana calculates nothing."""
    colours = heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    colours = colours.scale(heatmap_models.HeatmapColorScale.EXPONENTIAL).exponent(0.5)
    made = heatmap.Panel().calculate(False).cell_gap(1).color(colours).show_legend()
    # Empty buckets are left blank.
    return made.filter_values(heatmap.FilterValueRange().le(1e-9)).y_axis(heatmap.YAxisConfig().unit(unit))


def _lines(*, is_stacked: bool) -> timeseries.Panel:
    made = timeseries.Panel().line_width(1).fill_opacity(25 if is_stacked else 8)
    made = made.show_points(common.VisibilityMode.NEVER)
    made = made.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    made = made.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    if is_stacked:
        made = made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    return made
