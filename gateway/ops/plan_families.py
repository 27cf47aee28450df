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
        "When the cache plan took effect, in Unix seconds. Excludes reloads that found the same plan.",
        (),
        [((), state.taken_at)],
    )
    expected, actual = ("expected",), ("actual",)
    for name, of, wanted, found in (
        ("hit", "catch-up reads that needed no fetch of their own", memory.expected_hit_ratio, state.hit_ratio),
        ("byte_hit", "body bytes that the origin did not send", memory.expected_byte_hit_ratio, state.byte_hit_ratio),
    ):
        yield gauge(
            f"durable_gateway_plan_{name}_ratio",
            f"The share of {of}: as the cache plan expects it, and as counted since the plan took effect. Excludes "
            "live reads, and refused or relayed reads.",
            ("kind",),
            [(expected, wanted), *([(actual, found)] if found is not None else [])],
        )
    for name, text, value in (
        ("pinned_streams", "Pinned streams in memory. Excludes pinned streams that are not in memory.",
         state.pinned_streams),
        ("pinned_bytes", "Bytes of the budget that pinned streams use. Excludes streams unpinned for lack of room.",
         state.pinned_bytes),
        ("pinned_limit_bytes", "The upper bound of durable_gateway_plan_pinned_bytes.", state.pinned_limit_bytes),
        ("unstored_streams", "Streams that the cache plan excludes from storing. Excludes streams without a route.",
         state.unstored_streams),
        ("unmatched_entries",
         "Entries of the plan that match no route, or would warm an S2 stream. Excludes parts that are not applied.",
         state.unmatched),
    ):  # fmt: skip
        yield gauge(f"durable_gateway_plan_{name}", text, (), [((), value)])
    for name, text, value in (
        ("warmed_streams", "Streams that the latest warming fetched. Excludes streams that were in memory already.",
         state.warmed_streams),
        ("warmed_bytes", "Bytes that were fetched and stored by warming. Excludes bytes that did not fit.",
         state.warmed_bytes),
        ("unstored_bytes",
         "Bytes fetched but not stored because of the cache plan. Excludes live reads and replies too large to store.",
         state.unstored_bytes),
        ("given_up_tapes", "Tapes dropped because their idle time in the cache plan has passed. Excludes evictions.",
         state.given_up),
    ):  # fmt: skip
        yield counter(f"durable_gateway_plan_{name}", text, (), [((), value)])
