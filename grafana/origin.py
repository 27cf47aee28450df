"""The origin's view: what it is asked, how it answers, what the gateway holds open to it."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, buckets, quantiles, rate, total

ORIGIN: Final = Board(
    "origin",
    "durable-gateway: the origin's view",
    "How origins are; requests, answers, failures, times and connections towards them.",
    (
        Row(
            "Health",
            (
                Panel(
                    "Origins that answer",
                    "1 while an origin's circuit breaker is closed and it is not ejected; the least of all gateways.",
                    "short",
                    (Query(f"min by (origin) (durable_gateway_origin_up{{{GATEWAY}}})", "{{origin}}"),),
                    most=1,
                ),
                Panel(
                    "Circuit breakers",
                    "Origins by the state of their breaker, as each gateway has it. open: nothing is sent. half_open: "
                    "probes alone.",
                    "short",
                    (Query(total("durable_gateway_origin_breaker_state", "state", GATEWAY), "{{state}}"),),
                    "stack",
                ),
                Panel(
                    "Refused at once",
                    "Requests that were not sent because the origin's breaker was open.",
                    "reqps",
                    (Query(rate("durable_gateway_origin_refused_total", "origin", GATEWAY), "{{origin}}"),),
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    "Requests by mode",
                    "What origins are asked: reads, looks at the tail, live requests, writes passed on.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_requests_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
                Panel(
                    "Requests for each client request",
                    "1 is no gateway at all. Writes are always 1 for 1; without them, see the overview.",
                    "percentunit",
                    (
                        Query(
                            f"{rate('durable_gateway_upstream_requests_total')}"
                            f" / {rate('durable_gateway_requests_total')}"
                        ),
                    ),
                ),
                Panel(
                    "Body bytes from the origin",
                    "By what was asked.",
                    "Bps",
                    (Query(rate("durable_gateway_upstream_bytes_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
            ),
        ),
        Row(
            "Answers",
            (
                Panel(
                    "Answers by status",
                    "Classes of status. 4xx are clients' mistakes and streams that are no more.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_replies_total", "class"), "{{class}}"),),
                    "stack",
                ),
                Panel(
                    "Failures",
                    "Requests that came to nothing: no connection, no answer in time, an answer that is not valid.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_failures_total", "error"), "{{error}}"),),
                ),
                Panel(
                    "Retries",
                    "Reads asked again, within the route's budget. Writes never are.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_retries_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "First byte of catch-up reads",
                    "How long origins take to answer, connecting included.",
                    "s",
                    quantiles("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                ),
                Panel(
                    "First byte of writes",
                    "The same for PUT, POST and DELETE, their bodies included.",
                    "s",
                    quantiles("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                ),
                Panel(
                    "First bytes of catch-up reads",
                    "How many took how long.",
                    "s",
                    buckets("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Lost live requests",
                    "Followers' connections that ended before their time.",
                    "ops",
                    (Query(rate("durable_gateway_reconnects_total", "route", f'{ROUTE},reason="lost"'), "{{route}}"),),
                ),
            ),
        ),
        Row(
            "Connections",
            (
                Panel(
                    "Connections",
                    "live: one for each followed stream. shared: all other requests take turns on these.",
                    "short",
                    (
                        Query(
                            total("durable_gateway_upstream_connections", "pool, state", GATEWAY), "{{pool}}, {{state}}"
                        ),
                    ),
                    "stack",
                ),
                Panel(
                    "Age of the oldest",
                    "Live ones are made anew at the end of their life; shared ones stay while they are used.",
                    "s",
                    (
                        Query(
                            f"max by (pool) (durable_gateway_upstream_connection_oldest_seconds{{{GATEWAY}}})",
                            "{{pool}}",
                        ),
                    ),
                ),
                Panel(
                    "Mean age",
                    "Near 0 under load: connections are made for single requests, which is slow.",
                    "s",
                    (
                        Query(
                            f"max by (pool) (durable_gateway_upstream_connection_mean_seconds{{{GATEWAY}}})",
                            "{{pool}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
