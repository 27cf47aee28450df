"""Every series of `/metrics`, from the families that the gateway exposes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client.metrics_core import Metric

from gateway.aio.clock import ManualClock
from gateway.config.cache_plan import parse_plan
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.disk.store import DiskCounts
from gateway.ops.disk_families import DiskState
from gateway.ops.gathering.worker_families import worker_families
from gateway.ops.metrics import Metrics
from gateway.ops.plan_state import PlanState
from gateway.ops.state import State
from gateway.upstream.origin_pool import Origins
from reference_pages.part import table

_PLAN = Path(__file__).parent.parent / "config" / "cache-plan.json"


def metrics() -> str:
    """A table of the families: name, type, labels and help text."""
    rows = []
    for family in sorted(_own_families(), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # The library has no public name for the labels of a family without samples.
        labels = getattr(family, "_labelnames", ())
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    return table(("series", "type", "labels", "what it counts"), rows)


def every_family() -> list[Metric]:
    """The families of `/metrics`, with those of the process."""
    metrics = _everything()
    return [*metrics.registry.collect(), *worker_families({}, {})]


def _own_families() -> list[Metric]:
    return [*_everything().collect(), *worker_families({}, {})]


def _everything() -> Metrics:
    """The metrics of a gateway that has an origin and a cache plan, so that each family is there."""
    metrics = Metrics(limits={"connections": 1, "followed_streams": 1})
    nothing: dict[str, Any] = dict.fromkeys((field.name for field in fields(PlanState)), 0)
    state = PlanState(**{**nothing, "plan": parse_plan(_PLAN.read_bytes())})
    metrics.plan = lambda: state
    metrics.disk = lambda: DiskState(DiskCounts())
    origins = Origins(ManualClock(), Random(1), lambda line: None)
    origins.configure([RouteConfig(origin="http://a")], OriginsConfig(), {})
    metrics.look = lambda: State(origins=origins.snapshot())
    return metrics
