"""The place of the traffic pipeline, which has no figures of its own yet: the gateway's side of it is shown."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, rate

PIPELINE: Final = Board(
    "pipeline",
    "durable-gateway: traffic pipeline",
    "What the access log hands over to the Spark pipeline.",
    (
        Row(
            "From the gateway",
            (
                Panel(
                    "About this page",
                    "The pipeline reads the access log and publishes no figures itself. Here is what it is given: one "
                    "record for each request that ended, less those dropped.",
                    "",
                    (),
                    "text",
                ),
                Panel(
                    "Requests that ended",
                    "Each is one record of the access log, where that is on.",
                    "reqps",
                    (Query(rate("gateway_requests_total", "route", ROUTE), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Records dropped",
                    "What the pipeline will not see.",
                    "reqps",
                    (Query(rate("gateway_log_drops_total", "instance", GATEWAY), "{{instance}}"),),
                ),
            ),
        ),
    ),
)
