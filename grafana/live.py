"""Live reads: who follows, how fast they are told, who cannot keep up."""

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
                    "The same, by route.",
                    "short",
                    (Query(total("durable_gateway_subscribers", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Readers for each followed stream",
                    "How many share one live request at the origin, on average. 1 is no fan-out at all.",
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
                    "By outcome. A peak of followed is a drain, or an append that woke many long-polls.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_LIVE}"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "Length of SSE connections",
                    "They are ended in order after sse_lifetime_s, less some jitter. Much shorter ones: something "
                    "between clients and gateway cuts them.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode="sse"'),
                ),
                Panel(
                    "Length of long-polls",
                    "Until data came or the time was up.",
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
                    "Times a live reader was handed what a follower had brought.",
                    "ops",
                    (Query(rate("durable_gateway_deliveries_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "Delay of deliveries",
                    "From the arrival of an event until the last reader of its stream was handed it.",
                    "s",
                    quantiles("durable_gateway_delivery_delay_seconds"),
                ),
                Panel(
                    "Delays of deliveries",
                    "How many rounds over the readers of a stream took how long.",
                    "s",
                    buckets("durable_gateway_delivery_delay_seconds"),
                    "heat",
                ),
                Panel(
                    "Bytes to clients",
                    "Bodies as they are written, of all modes.",
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
                    "Written for clients and not taken yet: of all, and of the one that has left most.",
                    "bytes",
                    (
                        Query(total("durable_gateway_lag_bytes", matching=GATEWAY), "all"),
                        Query(f"max (durable_gateway_lag_most_bytes{{{GATEWAY}}})", "the one with most"),
                    ),
                ),
                Panel(
                    "Slow consumers",
                    "moved: read from the tape at their own pace from there on. closed: took nothing for "
                    "client_write_timeout_s; they resume from their last offset.",
                    "ops",
                    (Query(rate("durable_gateway_slow_consumers_total", "action", GATEWAY), "{{action}}"),),
                ),
                Panel(
                    "Client connections",
                    "Open now, and the most that are taken.",
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
                    "Streams with live readers, each one live request at the origin; and the most there may be.",
                    "short",
                    (
                        Query(total("durable_gateway_followed_streams", matching=GATEWAY), "followed"),
                        Query(total("durable_gateway_followed_streams_limit", matching=GATEWAY), "most"),
                    ),
                ),
                Panel(
                    "Reconnects",
                    "planned: at the end of a connection's life. lost: the origin or the network ended it.",
                    "ops",
                    (Query(rate("durable_gateway_reconnects_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "Live requests to the origin",
                    "One a stream and connection's life, however many clients follow it.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_requests_total", "mode", f"{ROUTE},{_LIVE}"), "{{mode}}"),),
                ),
            ),
        ),
    ),
)
