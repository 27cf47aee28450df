"""Queries of panels and alerts, and the values of their aggregations computed from the gateway's own figures.

`SUMS` finds every aggregation of one series in a query.  Each is evaluated twice: by Prometheus, without its rate, and
here, over the text of `/metrics`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

GRAFANA = Path(__file__).parent.parent.parent / "grafana"
ALERTS = GRAFANA / "rules" / "alerts.yml"
WINDOW = "1m"

_SUM = re.compile(
    r"(?P<how>sum|max|min|count)(?: by \((?P<by>[^)]*)\))? "
    r"\((?:(?:rate|increase|delta)\()?(?P<name>[a-z0-9_]+)(?:\{(?P<matching>[^}]*)\})?(?:\[[^\]]+\]\))?\)"
)
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
_SELECTION = re.compile(r"\b((?:durable_gateway|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")

Series = dict[tuple[tuple[str, str], ...], float]
"""Values by labels, sorted by name; empty labels are left out."""


class Asked(NamedTuple):
    """A query and its place."""

    where: str
    query: str


class Sum(NamedTuple):
    """One aggregation of one series."""

    how: str
    by: tuple[str, ...]
    name: str
    matching: str

    @property
    def query(self) -> str:
        """The aggregation for Prometheus, without a rate."""
        by = f" by ({', '.join(self.by)})" if self.by else ""
        return f"{self.how}{by} ({self.name}{{{self.matching}}})"


class Figure(NamedTuple):
    """One sample of `/metrics`."""

    name: str
    labels: dict[str, str]
    value: float


def figures(text: str, instance: str) -> list[Figure]:
    """The samples of a gateway, with the labels that a scrape adds."""
    added = {"instance": instance, "job": "durable-gateway"}
    return [
        Figure(sample.name, {**sample.labels, **added}, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every panel of every dashboard, with the dashboard's name."""
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] != "row":
                yield path.stem, panel


def panel_queries() -> list[Asked]:
    """Every query of every panel, with all gateways and routes chosen."""
    asked = []
    for name, panel in panels():
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$instance", ".*").replace("$route", ".*")
            asked.append(Asked(f"{name}: {panel['title']}", query.replace("$__rate_interval", WINDOW)))
    return asked


def is_of_fleet(query: str) -> bool:
    """Whether a query reads series that only a member of a fleet has."""
    return "durable_gateway_fleet_" in query


def annotation_queries() -> list[Asked]:
    """The queries of every dashboard's annotations."""
    return [
        Asked(f"{path.stem}: {mark['name']}", mark["expr"].replace("$instance", ".*"))
        for path in sorted((GRAFANA / "dashboards").glob("*.json"))
        for mark in json.loads(path.read_text())["annotations"]["list"]
    ]


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    rules: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return rules


def alert_queries() -> list[Asked]:
    """Every alert's expression, made to give 0 or 1 instead of an empty or non-empty result."""
    return [Asked(rule["alert"], re.sub(r" ([<>]) (?=[\d.])", r" \1 bool ", rule["expr"])) for rule in alerts()]


def sums(query: str) -> list[Sum]:
    """The aggregations in a query."""
    found = []
    for match in _SUM.finditer(query):
        by = tuple(label.strip() for label in (match["by"] or "").split(",") if label.strip())
        found.append(Sum(match["how"], by, match["name"], match["matching"] or ""))
    return found


def unanswered(query: str, own: Iterable[Figure]) -> set[str]:
    """The selectors in a query, such as `name{mode="sse"}`, that match none of these samples."""
    found = set()
    for name, matching in _SELECTION.findall(query):
        matchers = _MATCHER.findall(matching)
        if not any(figure.name == name and _meets(figure, matchers) for figure in own):
            found.add(f"{name}{{{matching}}}")
    return found


def evaluate(one: Sum, own: Iterable[Figure]) -> Series:
    """The value of the aggregation."""
    groups: dict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    matchers = _MATCHER.findall(one.matching)
    for figure in own:
        if figure.name == one.name and _meets(figure, matchers):
            groups[tuple(sorted((label, figure.labels[label]) for label in one.by))].append(figure.value)
    join = {"sum": sum, "max": max, "min": min, "count": len}[one.how]
    return {labels: float(join(values)) for labels, values in groups.items()}  # type: ignore[operator]


def _meets(figure: Figure, matchers: Iterable[tuple[str, str, str]]) -> bool:
    return all(_fits(figure.labels.get(label, ""), how, to) for label, how, to in matchers)


def _fits(value: str, how: str, to: str) -> bool:
    match how:
        case "=":
            return value == to
        case "!=":
            return value != to
        case _:
            return re.fullmatch(to, value) is not None
