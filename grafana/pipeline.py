"""The traffic pipeline from the gateway's side: what it hands over, and what comes back as a cache plan.

The pipeline itself publishes no figures; what it found is in its report.
"""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, rate


def _each(series: str, by: str = "instance") -> str:
    """A gauge of each gateway's own: shares of several gateways have no sum, and each has a plan for itself."""
    return f"max by ({by}) ({series}{{{GATEWAY}}})"


PIPELINE: Final = Board(
    "pipeline",
    "durable-gateway: traffic pipeline",
    "What the access log hands over to the Spark pipeline, and what came of the plan that it made.",
    (
        Row(
            "To the pipeline",
            (
                Panel(
                    "About this page",
                    "The pipeline reads the access log and publishes no figures itself. Beside this is what it is "
                    "given: one record for each request that ended, less those dropped. Below is what came back: the "
                    "cache plan in effect, where there is one, against what has been counted since it was taken.",
                    "",
                    (),
                    "text",
                ),
                Panel(
                    "Requests that ended",
                    "Each is one record of the access log, where that is on.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "route", ROUTE), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Records dropped",
                    "What the pipeline will not see.",
                    "reqps",
                    (Query(rate("durable_gateway_log_drops_total", "instance", GATEWAY), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "The cache plan against what came of it",
            (
                Panel(
                    "Hit ratio",
                    "Share of catch-up reads that needed no fetch of their own: as the plan expects it, and as counted "
                    "since it was taken. Far apart after a day: traffic has changed, make another plan.",
                    "percentunit",
                    (Query(_each("durable_gateway_plan_hit_ratio", "instance, kind"), "{{instance}}, {{kind}}"),),
                    most=1,
                ),
                Panel(
                    "Byte hit ratio",
                    "Share of the bytes of catch-up reads that the origin did not send, in the same way.",
                    "percentunit",
                    (Query(_each("durable_gateway_plan_byte_hit_ratio", "instance, kind"), "{{instance}}, {{kind}}"),),
                    most=1,
                ),
                Panel(
                    "Age of the plan",
                    "Time since each gateway took the plan that is in effect; both ratios count from then on.",
                    "s",
                    (Query(f"time() - {_each('durable_gateway_plan_taken_timestamp_seconds')}", "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "What the plan's wishes do",
            (
                Panel(
                    "Memory of pinned streams",
                    "What streams that the plan pins take of the budget, and the most that they may. At the limit, the "
                    "last of the list are treated as all other streams: raise pin_share or make another plan.",
                    "bytes",
                    (
                        Query(_each("durable_gateway_plan_pinned_bytes"), "{{instance}}, pinned"),
                        Query(_each("durable_gateway_plan_pinned_limit_bytes"), "{{instance}}, limit"),
                    ),
                ),
                Panel(
                    "Streams by wish",
                    "Streams kept because they are pinned, those that the plan lists as not to be stored, and entries "
                    "that no route with a cache leads to. Any of the last: the plan was made for other routes.",
                    "short",
                    (
                        Query(_each("durable_gateway_plan_pinned_streams"), "{{instance}}, pinned and here"),
                        Query(_each("durable_gateway_plan_unstored_streams"), "{{instance}}, not to be stored"),
                        Query(_each("durable_gateway_plan_unmatched_entries"), "{{instance}}, without a route"),
                    ),
                ),
                Panel(
                    "Fetched before anybody asked",
                    "Stream bytes that warming fetched and kept, in each gateway's latest round.",
                    "bytes",
                    (Query(_each("durable_gateway_plan_warmed_bytes_total"), "{{instance}}"),),
                ),
                Panel(
                    "Fetched and not kept",
                    "Bytes of streams that the plan holds to be not worth storing, once for all who shared the fetch. "
                    "Leaves out replies that are too large to be kept anyway.",
                    "Bps",
                    (Query(rate("durable_gateway_plan_unstored_bytes_total", "instance", GATEWAY), "{{instance}}"),),
                    width=12,
                ),
                Panel(
                    "Given up when idle",
                    "Tapes whose lifetime ended without a reader. Evictions are not among them.",
                    "ops",
                    (Query(rate("durable_gateway_plan_given_up_tapes_total", "instance", GATEWAY), "{{instance}}"),),
                    width=12,
                ),
            ),
        ),
    ),
)
