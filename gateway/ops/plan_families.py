"""The metric families of the cache plan in effect.  Without a plan, there are no such families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge

if TYPE_CHECKING:
    from gateway.ops.plan_state import PlanState


def plan_families(state: PlanState) -> Iterator[Metric]:
    """Return the plan's expectations and its results."""
    memory = state.plan.memory
    yield gauge(
        "durable_gateway_plan_taken_timestamp_seconds",
        "When the cache plan in effect was taken, in Unix seconds. Excludes reloads that found the same plan.",
        (),
        [((), state.taken_at)],
    )
    expected, actual = ("expected",), ("actual",)
    for name, of, wanted, found in (
        ("hit", "catch-up reads that needed no fetch of their own", memory.expected_hit_ratio, state.hit_ratio),
        ("byte_hit", "bytes of catch-up reads", memory.expected_byte_hit_ratio, state.byte_hit_ratio),
    ):
        yield gauge(
            f"durable_gateway_plan_{name}_ratio",
            f"The share of {of} that the origin did not send: as the cache plan expects it, and as counted since the "
            "plan took effect. Excludes live reads, and reads refused or relayed.",
            ("kind",),
            [(expected, wanted), *([(actual, found)] if found is not None else [])],
        )
    for name, text, value in (
        ("pinned_streams", "Streams kept because the cache plan pins them. Excludes pinned streams that are not held.",
         state.pinned_streams),
        ("pinned_bytes", "Bytes of the budget that pinned streams use. Excludes those past their share of it.",
         state.pinned_bytes),
        ("pinned_limit_bytes", "The most that durable_gateway_plan_pinned_bytes may be.", state.pinned_limit_bytes),
        ("unstored_streams", "Streams that the cache plan says not to store. Excludes those that match no route.",
         state.unstored_streams),
        ("unmatched_entries",
         "Entries of the cache plan that match no route, or would warm an S2 stream. Excludes those not granted.",
         state.unmatched),
    ):  # fmt: skip
        yield gauge(f"durable_gateway_plan_{name}", text, (), [((), value)])
    for name, text, value in (
        ("warmed_streams", "Streams warmed in the latest round, ahead of the first read. Excludes those held already.",
         state.warmed_streams),
        ("warmed_bytes", "Stream bytes fetched by warming and kept. Excludes those that were too many to keep.",
         state.warmed_bytes),
        ("unstored_bytes",
         "Bytes fetched and not kept because of the cache plan. Excludes live reads and replies too large to keep.",
         state.unstored_bytes),
        ("given_up_tapes", "Tapes dropped because their idle time in the cache plan passed. Excludes evictions.",
         state.given_up),
    ):  # fmt: skip
        yield counter(f"durable_gateway_plan_{name}", text, (), [((), value)])
