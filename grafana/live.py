"""The dashboard of live reads: readers, deliveries and their delay, slow consumers, followers."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, buckets, quantiles, rate, total

_LIVE: Final = 'mode=~"longpoll|sse"'

LIVE: Final = Board(
    "live",
    "durable-gateway: live fan-out",
    "Live readers, deliveries and their delay, slow consumers, followers.",
    (
        Row(
            "Readers",
            (
                Panel(
                    "Live readers",
                    "Waiting long-polls and open SSE connections.",
                    "short",
                    (Query(total("durable_gateway_subscribers", "mode"), "{{mode}}"),),
                    "stack",
                ),
                Panel(
                    "Live readers by route",
                    "Waiting long-polls and open SSE connections, by route.",
                    "short",
                    (Query(total("durable_gateway_subscribers", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Readers for each followed stream",
                    "Average number of readers that share one live request to the origin. 1: no fan-out.",
                    "short",
                    (
                        Query(
                            f"{total('durable_gateway_subscribers', matching=GATEWAY)}"
                            f" / {total('durable_gateway_followed_streams', matching=GATEWAY)}"
                        ),
                    ),
                ),
                Panel(
                    "Live reads that ended",
                    "Live reads that ended, by outcome. A peak of followed: a drain, or an append that answered many "
                    "long-polls.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_LIVE}"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "Length of SSE connections",
                    "The gateway ends them after sse_lifetime_s, less some jitter. Much shorter ones: a proxy between "
                    "clients and gateway cuts them.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode="sse"'),
                ),
                Panel(
                    "Length of long-polls",
                    "Time until data arrived or the long-poll timed out.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode="longpoll"'),
                ),
            ),
        ),
        Row(
            "Deliveries",
            (
                Panel(
                    "Deliveries",
                    "Deliveries of newly followed data to live readers; each reader counts.",
                    "ops",
                    (Query(rate("durable_gateway_deliveries_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "Delay of deliveries",
                    "Time from the arrival of an event to its delivery to the last reader of the stream.",
                    "s",
                    quantiles("durable_gateway_delivery_delay_seconds"),
                ),
                Panel(
                    "Delays of deliveries",
                    "Rounds over the readers of a stream, by duration.",
                    "s",
                    buckets("durable_gateway_delivery_delay_seconds"),
                    "heat",
                ),
                Panel(
                    "Bytes to clients",
                    "Body bytes of all modes, as they are written.",
                    "Bps",
                    (Query(rate("durable_gateway_downstream_bytes_total", "instance", GATEWAY), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Slow consumers",
            (
                Panel(
                    "Unsent bytes",
                    "Bytes written for clients and not yet accepted: the total, and the most of one client.",
                    "bytes",
                    (
                        Query(total("durable_gateway_lag_bytes", matching=GATEWAY), "all"),
                        Query(f"max (durable_gateway_lag_most_bytes{{{GATEWAY}}})", "one client, most"),
                    ),
                ),
                Panel(
                    "Slow consumers",
                    "moved: now read from the tape at their own pace. closed: accepted no bytes for "
                    "client_write_timeout_s; they resume from their last offset.",
                    "ops",
                    (Query(rate("durable_gateway_slow_consumers_total", "action", GATEWAY), "{{action}}"),),
                ),
                Panel(
                    "Client connections",
                    "Open connections, and their limit.",
                    "short",
                    (
                        Query(total("durable_gateway_connections", matching=GATEWAY), "open"),
                        Query(total("durable_gateway_connections_limit", matching=GATEWAY), "most"),
                    ),
                ),
            ),
        ),
        Row(
            "Followers",
            (
                Panel(
                    "Followed streams",
                    "Streams with live readers, each with one live request to the origin; and their limit.",
                    "short",
                    (
                        Query(total("durable_gateway_followed_streams", matching=GATEWAY), "followed"),
                        Query(total("durable_gateway_followed_streams_limit", matching=GATEWAY), "most"),
                    ),
                ),
                Panel(
                    "Reconnects",
                    "planned: at the end of the connection's lifetime. lost: the origin or the network ended it.",
                    "ops",
                    (Query(rate("durable_gateway_reconnects_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "Live requests to the origin",
                    "One per stream and lifetime of a connection, however many clients follow.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_requests_total", "mode", f"{ROUTE},{_LIVE}"), "{{mode}}"),),
                ),
            ),
        ),
    ),
)
