"""The dashboard of the traffic pipeline, seen from the gateway: its input, and the cache plan that comes back.

The pipeline itself publishes no metrics; its findings are in its report.
"""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, rate


def _each(series: str, by: str = "instance") -> str:
    """A gauge for each gateway: ratios of several gateways cannot be summed, and each gateway has its own plan."""
    return f"max by ({by}) ({series}{{{GATEWAY}}})"


PIPELINE: Final = Board(
    "pipeline",
    "durable-gateway: traffic pipeline",
    "The access log's input to the Spark pipeline, and the results of the plan that it made.",
    (
        Row(
            "To the pipeline",
            (
                Panel(
                    "About this page",
                    "The pipeline reads the access log and publishes no metrics itself. This row shows its input: one "
                    "record for each finished request, less those dropped. The rows below compare the cache plan in "
                    "effect, if there is one, with the counts since it took effect.",
                    "",
                    (),
                    "text",
                ),
                Panel(
                    "Requests that ended",
                    "Each is one record of the access log, if that is on.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "route", ROUTE), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Records dropped",
                    "Lost records, which the pipeline will not see.",
                    "reqps",
                    (Query(rate("durable_gateway_log_drops_total", "instance", GATEWAY), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "The cache plan and its results",
            (
                Panel(
                    "Hit ratio",
                    "Share of catch-up reads that needed no fetch of their own: as the plan expects it, and as counted "
                    "since it took effect. Far apart after a day: traffic has changed, make a new plan.",
                    "percentunit",
                    (Query(_each("durable_gateway_plan_hit_ratio", "instance, kind"), "{{instance}}, {{kind}}"),),
                    most=1,
                ),
                Panel(
                    "Byte hit ratio",
                    "Share of the bytes of catch-up reads that the origin did not send, expected and counted.",
                    "percentunit",
                    (Query(_each("durable_gateway_plan_byte_hit_ratio", "instance, kind"), "{{instance}}, {{kind}}"),),
                    most=1,
                ),
                Panel(
                    "Age of the plan",
                    "Time since the plan took effect at each gateway; both ratios count from then on.",
                    "s",
                    (Query(f"time() - {_each('durable_gateway_plan_taken_timestamp_seconds')}", "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Effects of the plan's entries",
            (
                Panel(
                    "Memory of pinned streams",
                    "Bytes of the budget that pinned streams use, and their limit. At the limit, the last streams of "
                    "the list are not pinned: raise pin_share or make a new plan.",
                    "bytes",
                    (
                        Query(_each("durable_gateway_plan_pinned_bytes"), "{{instance}}, pinned"),
                        Query(_each("durable_gateway_plan_pinned_limit_bytes"), "{{instance}}, limit"),
                    ),
                ),
                Panel(
                    "Streams by kind of entry",
                    "Streams kept because they are pinned, streams that the plan says not to store, and entries that "
                    "match no route with a cache. If there are any of the last, the plan was made for other routes.",
                    "short",
                    (
                        Query(_each("durable_gateway_plan_pinned_streams"), "{{instance}}, pinned and held"),
                        Query(_each("durable_gateway_plan_unstored_streams"), "{{instance}}, not to be stored"),
                        Query(_each("durable_gateway_plan_unmatched_entries"), "{{instance}}, without a route"),
                    ),
                ),
                Panel(
                    "Fetched ahead of reads",
                    "Stream bytes that warming fetched and kept, in each gateway's latest round.",
                    "bytes",
                    (Query(_each("durable_gateway_plan_warmed_bytes_total"), "{{instance}}"),),
                ),
                Panel(
                    "Fetched and not kept",
                    "Bytes of streams that the plan says not to store; a shared fetch counts once. Excludes replies "
                    "that are too large to keep anyway.",
                    "Bps",
                    (Query(rate("durable_gateway_plan_unstored_bytes_total", "instance", GATEWAY), "{{instance}}"),),
                    width=12,
                ),
                Panel(
                    "Dropped when idle",
                    "Tapes dropped because the plan's lifetime passed without a read. Excludes evictions.",
                    "ops",
                    (Query(rate("durable_gateway_plan_given_up_tapes_total", "instance", GATEWAY), "{{instance}}"),),
                    width=12,
                ),
            ),
        ),
    ),
)
