"""The series of the plan in effect; there is none of them where there is no plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge

if TYPE_CHECKING:
    from gateway.ops.plan_state import PlanState


def plan_families(state: PlanState) -> Iterator[Metric]:
    """What the plan says and what came of it."""
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
            f"The share of {of} that the origin did not send: as the cache plan expects it, and as counted since it "
            "was taken. Excludes live reads, and reads refused or relayed.",
            ("kind",),
            [(expected, wanted), *([(actual, found)] if found is not None else [])],
        )
    for name, text, value in (
        ("pinned_streams", "Streams kept because the cache plan pins them. Excludes those it pins that are not here.",
         state.pinned_streams),
        ("pinned_bytes", "Bytes of the budget that pinned streams take. Excludes those past their share of it.",
         state.pinned_bytes),
        ("pinned_limit_bytes", "The most that durable_gateway_plan_pinned_bytes may be.", state.pinned_limit_bytes),
        ("unstored_streams", "Streams that the cache plan holds to be not worth storing. Excludes those of no route.",
         state.unstored_streams),
        ("unmatched_entries", "Entries of the cache plan that no route leads to. Excludes those not granted.",
         state.unmatched),
    ):  # fmt: skip
        yield gauge(f"durable_gateway_plan_{name}", text, (), [((), value)])
    for name, text, value in (
        ("warmed_streams", "Streams fetched before anybody asked, in the latest round. Excludes those held already.",
         state.warmed_streams),
        ("warmed_bytes", "Stream bytes so fetched and kept. Excludes those that were too many to keep.",
         state.warmed_bytes),
        ("unstored_bytes",
         "Bytes fetched and not kept, as the cache plan has it. Excludes live reads' and replies too large to be kept.",
         state.unstored_bytes),
        ("given_up_tapes", "Tapes given up because nobody asked for them in time. Excludes evictions.", state.given_up),
    ):  # fmt: skip
        yield counter(f"durable_gateway_plan_{name}", text, (), [((), value)])
