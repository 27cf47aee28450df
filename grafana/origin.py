"""The dashboard of the origin's view: requests to it, its answers, and connections to it."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, buckets, quantiles, rate, total

ORIGIN: Final = Board(
    "origin",
    "durable-gateway: the origin's view",
    "Health of the origins; requests to them, answers, failures, times and connections.",
    (
        Row(
            "Health",
            (
                Panel(
                    "Origins that answer",
                    "1 while an origin's circuit breaker is closed and it is not ejected; the minimum over all "
                    "gateways.",
                    "short",
                    (Query(f"min by (origin) (durable_gateway_origin_up{{{GATEWAY}}})", "{{origin}}"),),
                    most=1,
                ),
                Panel(
                    "Circuit breakers",
                    "Origins by the state of their breaker, counted by each gateway. open: nothing is sent. half_open: "
                    "only probes.",
                    "short",
                    (Query(total("durable_gateway_origin_breaker_state", "state", GATEWAY), "{{state}}"),),
                    "stack",
                ),
                Panel(
                    "Refused at once",
                    "Requests that were not sent because the origin's breaker was open.",
                    "ops",
                    (Query(rate("durable_gateway_origin_refused_total", "origin", GATEWAY), "{{origin}}"),),
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    "Requests by mode",
                    "Requests to origins: reads, tail probes, live requests, relayed writes.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_requests_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
                Panel(
                    "Requests for each client request",
                    "100 % is as without a gateway. Every write is one request; the overview has the share without "
                    "them.",
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
                    "Body bytes from origins, by mode.",
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
                    "Answers by class of status. 4xx: mistakes of clients, and streams that no longer exist.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_replies_total", "class"), "{{class}}"),),
                    "stack",
                ),
                Panel(
                    "Failures",
                    "Requests without a usable answer: no connection, no answer in time, or an invalid answer.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_failures_total", "error"), "{{error}}"),),
                ),
                Panel(
                    "Retries",
                    "Retried reads, within the route's budget. Writes are never retried.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_retries_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "Reads that may not be shared",
                    "Reads relayed one by one because of Cache-Control, Set-Cookie or Vary of the origin's answers.",
                    "reqps",
                    (Query(rate("durable_gateway_unshared_reads_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "First byte of catch-up reads",
                    "Time until the origin answers, connecting included.",
                    "s",
                    quantiles("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                ),
                Panel(
                    "First byte of writes",
                    "Time until the origin answers PUT, POST and DELETE, sending the body included.",
                    "s",
                    quantiles("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                ),
                Panel(
                    "First bytes of catch-up reads",
                    "Catch-up reads by the time until the origin answers.",
                    "s",
                    buckets("durable_gateway_upstream_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Lost live requests",
                    "Followers' connections that ended before their planned end.",
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
                    "live: one for each followed stream. shared: used in turn by all other requests.",
                    "short",
                    (
                        Query(
                            total("durable_gateway_upstream_connections", "pool, state", GATEWAY), "{{pool}}, {{state}}"
                        ),
                    ),
                    "stack",
                ),
                Panel(
                    "Connections by purpose",
                    "Taken by requests now. Reads and writes get three quarters of upstream_connections each at most.",
                    "short",
                    (Query(total("durable_gateway_upstream_slots", "purpose", GATEWAY), "{{purpose}}"),),
                    "stack",
                ),
                Panel(
                    "Waiting for a connection",
                    "Requests without a connection: the origin is slow, or one client sends more than its share.",
                    "short",
                    (Query(total("durable_gateway_upstream_queue", "purpose", GATEWAY), "{{purpose}}"),),
                    "stack",
                ),
                Panel(
                    "Requests that had to wait",
                    "By the limit that delays them. connections: upstream_connections. client: "
                    "client_upstream_requests.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_waited_total", "reason", GATEWAY), "{{reason}}"),),
                ),
                Panel(
                    "Refused for want of a connection",
                    "503s. queue: upstream_queue waited. client: too many of one client waited. time: it took longer "
                    "than upstream_wait_s.",
                    "ops",
                    (Query(rate("durable_gateway_upstream_refused_total", "reason", GATEWAY), "{{reason}}"),),
                ),
                Panel(
                    "Over HTTP/2",
                    "Connections to origins that use HTTP/2, and the requests open on them.",
                    "short",
                    (
                        Query(total("durable_gateway_upstream_http2_connections", matching=GATEWAY), "connections"),
                        Query(total("durable_gateway_upstream_http2_streams", matching=GATEWAY), "requests"),
                    ),
                ),
                Panel(
                    "Ended over HTTP/2",
                    "Requests that the gateway reset, and connections that it ended, by error code; floods by kind of "
                    "frame. cancel is a client that left or a timeout.",
                    "ops",
                    (
                        Query(rate("durable_gateway_upstream_http2_resets_total", "code", GATEWAY), "request {{code}}"),
                        Query(
                            rate("durable_gateway_upstream_http2_goaways_total", "code", GATEWAY),
                            "connection {{code}}",
                        ),
                        Query(rate("durable_gateway_upstream_http2_floods_total", "kind", GATEWAY), "flood {{kind}}"),
                    ),
                ),
                Panel(
                    "Age of the oldest",
                    "Live connections are replaced at the end of their lifetime; shared ones stay while they are used.",
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
                    "Near 0 under load: each request opens a connection, which is slow.",
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
