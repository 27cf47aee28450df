"""The dashboards match their source, and query series that exist."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from gateway.aio.clock import ManualClock
from gateway.config.cache_plan import parse_plan
from gateway.config.origins import OriginsConfig
from gateway.config.rate_limits import RateLimitConfig
from gateway.config.routes import RouteConfig
from gateway.disk.store import DiskCounts
from gateway.engine.fleet_announced import MembersInRedis
from gateway.engine.fleet_discovery import FoundMembers, MembersSource
from gateway.engine.fleet_dns import MembersInDns
from gateway.engine.fleet_reachability import Member
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.ops.disk_families import DiskState
from gateway.ops.memory_figures import MemoryState
from gateway.ops.metrics import Metrics
from gateway.ops.plan_state import PlanState
from gateway.ops.spared import READ_MODES
from gateway.ops.state import State
from gateway.server.client_connections import ConnectionRefusal
from gateway.server.handshake import HandshakeFailure
from gateway.server.shedding import ShedReason
from gateway.upstream.connection_pool import Connections
from gateway.upstream.origin_pool import Origins
from grafana import __main__ as generator
from tests.grafana.queries import (
    ALERTS,
    GRAFANA,
    alert_queries,
    annotation_queries,
    figures,
    panel_queries,
    panels,
    unanswered,
)
from tests.plans import SAMPLE

PROVISIONING = GRAFANA / "provisioning"


def test_the_files_are_up_to_date() -> None:
    assert generator.drifted() == []


def test_a_file_changed_by_hand_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "FOLDER", tmp_path)
    page = tmp_path / "operating.md"
    page.write_text("# Operating\n<!-- alerts -->\nold\n<!-- /alerts -->\nmore\n")
    monkeypatch.setattr(generator, "PAGE", page)
    rules = tmp_path / "alerts.yml"
    rules.write_text(ALERTS.read_text())
    monkeypatch.setattr(generator, "RULES", rules)
    assert "operating.md" in generator.drifted()
    for path, text in generator.files().items():
        path.write_text(text)
    assert generator.drifted() == []
    assert "| [`GatewayDown`](#gatewaydown) |" in page.read_text()
    assert "\n### GatewayDown\n" in page.read_text()
    assert page.read_text().endswith("<!-- /alerts -->\nmore\n")
    (tmp_path / "live.json").write_text("{}\n")
    (tmp_path / "cache.json").unlink()
    (tmp_path / "nobodys.json").write_text("{}\n")
    assert generator.drifted() == ["cache.json", "live.json", "nobodys.json"]


def test_every_query_reads_series_that_the_gateway_has() -> None:
    """With the labels in its selectors, and before anything has happened: rates miss a series' first value."""
    metrics = Metrics(routes=["default"], limits={"connections": 1, "followed_streams": 1})
    metrics.protocols = {"default": "s2"}
    nothing: dict[str, Any] = dict.fromkeys((field.name for field in fields(PlanState)), 0)
    planned = PlanState(**{**nothing, "plan": parse_plan(SAMPLE)})
    metrics.plan = lambda: planned
    metrics.limit_figures.configure([RateLimitConfig(name="reads", live_reads=1)], ["default"])
    metrics.listeners.speaks_tls(":443", [reason.value for reason in HandshakeFailure])
    metrics.listeners.refused = lambda: dict.fromkeys(ConnectionRefusal, 0)
    metrics.memory.look = lambda: MemoryState(shed={reason.value: 0 for reason in ShedReason})
    metrics.listeners.expiries = lambda: [(":443", "edge.test", 1e9)]
    origins = Origins(ManualClock(), Random(1), lambda line: None)
    origins.configure([RouteConfig(origin="http://a")], OriginsConfig(), {})
    metrics.disk = lambda: DiskState(DiskCounts())
    member = SimpleNamespace(name="b", why_not="", share=1.0, workers=1, has_differed=False, losses=0, asked=0)
    by_redis = SimpleNamespace(problem="", losses=0, foreign=SimpleNamespace(count=0))
    existing = []
    # A fleet finds its members in one of them.
    for source in MembersInDns, MembersInRedis:
        found = FoundMembers(cast("MembersSource", object.__new__(source)), lambda _: None, ManualClock())
        state = State(
            origins=origins.snapshot(),
            upstream={"live": Connections(0, 0, 0.0, 0.0)},
            members=(cast("Member", member),),
            found=found,
            by_redis=cast("OrdersByRedis", by_redis),
            missed_orders=0,
        )
        metrics.look = lambda state=state: state  # type: ignore[misc]
        text, _ = metrics.exposition()
        existing += figures(text.decode(), "a")
    for asked in (*panel_queries(), *annotation_queries(), *alert_queries()):
        assert unanswered(asked.query, existing) == set(), asked.where


def test_every_dashboard_marks_starts_reloads_and_purges() -> None:
    where = [asked.where for asked in annotation_queries()]
    boards = {path.stem for path in (GRAFANA / "dashboards").glob("*.json")}
    assert set(where) == {f"{board}: {moment}" for board in boards for moment in ("Starts", "Reloads", "Purges")}


def test_every_dashboard_can_be_limited_to_a_protocol() -> None:
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        variables = {one["name"]: one for one in json.loads(path.read_text())["templating"]["list"]}
        assert list(variables) == ["datasource", "instance", "protocol", "route"], path.name
        # The routes offered, and those that "All" stands for, follow the choice.
        assert 'durable_gateway_route_info{protocol!~"$protocol"}' in variables["route"]["query"]["query"]
        assert variables["route"].get("allValue") is None


def test_every_heatmap_shows_the_buckets_of_a_histogram_as_they_are() -> None:
    heatmaps = [panel for _, panel in panels() if panel["type"] == "heatmap"]
    assert len(heatmaps) >= 5
    for panel in heatmaps:
        (target,) = panel["targets"]
        assert re.match(r"sum by \(le\) \(increase\(\w+_seconds_bucket\{", target["expr"])
        assert (target["format"], panel["options"]["calculate"]) == ("heatmap", False)


def test_readers_that_leave_are_not_errors() -> None:
    asked = {
        panel["title"]: [query["expr"] for query in panel["targets"]] for _, panel in panels() if panel.get("targets")
    }
    for query in asked["Errors"]:
        assert "aborted" not in query or 'mode!="sse"' in query


def test_shares_spared_count_the_same_reads_on_both_sides_and_may_be_negative() -> None:
    shown = {panel["title"]: panel for name, panel in panels() if name == "overview" and panel.get("targets")}
    both = [target["expr"] for target in shown["Spared over time"]["targets"]]
    for title, said in zip(("Requests spared", "Bytes spared"), both, strict=True):
        (target,) = shown[title]["targets"]
        assert target["expr"] == said
        assert shown[title]["fieldConfig"]["defaults"]["noValue"] == "–"
    requests, of_bytes = both
    assert [set(modes.split("|")) for modes in re.findall(r'mode=~"([^"]*)"', requests)] == [set(READ_MODES)] * 2
    assert "mode" not in of_bytes
    for title in ("Requests spared", "Bytes spared", "Spared over time"):
        defaults = shown[title]["fieldConfig"]["defaults"]
        assert (defaults.get("min"), defaults["max"]) == (None, 1)


def test_every_panel_has_a_description() -> None:
    for name, panel in panels():
        if panel["type"] != "text":
            assert panel["description"], (name, panel["title"])
            assert panel["targets"], (name, panel["title"])
            assert panel["fieldConfig"]["defaults"]["unit"], (name, panel["title"])


def test_no_panels_of_a_dashboard_overlap() -> None:
    for (name, panel), (other_name, other) in combinations(panels(), 2):
        if name == other_name:
            one, two = panel["gridPos"], other["gridPos"]
            is_apart = (
                one["x"] + one["w"] <= two["x"]
                or two["x"] + two["w"] <= one["x"]
                or one["y"] + one["h"] <= two["y"]
                or two["y"] + two["h"] <= one["y"]
            )
            assert is_apart, (name, panel["title"], other["title"])
            assert panel["id"] != other["id"]


def test_grafana_provisions_the_data_source_and_the_dashboards() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert [source["type"] for source in sources] == ["prometheus"]
    scraping = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["global"]
    assert sources[0]["jsonData"]["timeInterval"] == scraping["scrape_interval"]
    providers = yaml.safe_load((PROVISIONING / "dashboards" / "durable-gateway.yml").read_text())["providers"]
    assert [provider["type"] for provider in providers] == ["file"]
