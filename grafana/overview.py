"""The dashboard to open first: health, requests, outcomes, and the load left for the origin."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, buckets, quantile, quantiles, rate, share, total
from grafana.spared import BYTES_SPARED, BYTES_TEXT, REQUESTS_SPARED, REQUESTS_TEXT, SPARED

_ERRORS: Final = 'outcome=~"refused|failed"'
_CUT_OFF: Final = 'outcome="aborted",mode!="sse"'

OVERVIEW: Final = Board(
    "overview",
    "durable-gateway: overview",
    "What the origin is spared, and its health; requests, errors, times.",
    (
        Row(
            "What the origin is spared",
            (
                Panel(
                    "Requests spared",
                    REQUESTS_TEXT,
                    "percentunit",
                    (Query(REQUESTS_SPARED),),
                    "stat",
                    6,
                    most=1,
                    least=None,
                ),
                Panel("Bytes spared", BYTES_TEXT, "percentunit", (Query(BYTES_SPARED),), "stat", 6, most=1, least=None),
                Panel(
                    "Origins that answer",
                    "Origins whose circuit breaker is closed and that are not ejected, and all origins, counted by "
                    "each gateway. The origin's view shows which.",
                    "short",
                    (
                        Query(total("durable_gateway_origin_up", matching=GATEWAY), "answer"),
                        Query(f"count (durable_gateway_origin_up{{{GATEWAY}}})", "of"),
                    ),
                    "stat",
                    12,
                ),
                Panel(
                    "Spared over time",
                    f"requests: {REQUESTS_TEXT} bytes: {BYTES_TEXT}",
                    "percentunit",
                    SPARED,
                    width=12,
                    most=1,
                    least=None,
                ),
                Panel(
                    "Origins over time",
                    "1 while an origin answers.",
                    "short",
                    (Query(f"min by (origin) (durable_gateway_origin_up{{{GATEWAY}}})", "{{origin}}"),),
                    width=12,
                    most=1,
                ),
            ),
        ),
        Row(
            "At a glance",
            (
                Panel(
                    "Gateways that take requests",
                    "Instances that report ready. Fewer than you run: one is down or draining.",
                    "short",
                    (Query(total("durable_gateway_ready", matching=GATEWAY)),),
                    "stat",
                    4,
                ),
                Panel(
                    "Requests",
                    "Finished client requests per second.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total")),),
                    "stat",
                    4,
                ),
                Panel(
                    "Failed",
                    "Share of requests answered 5xx, by the origin or by the gateway.",
                    "percentunit",
                    (Query(share("durable_gateway_requests_total", ROUTE, 'outcome="failed"')),),
                    "stat",
                    4,
                ),
                Panel(
                    "Requests to the origin",
                    "Requests sent to origins per second, writes included.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_requests_total")),),
                    "stat",
                    4,
                ),
                Panel(
                    "Live readers",
                    "Waiting long-polls and open SSE connections.",
                    "short",
                    (Query(total("durable_gateway_subscribers")),),
                    "stat",
                    4,
                ),
                Panel(
                    "Memory for tapes",
                    "Share of the byte budget in use. It fills up and stays full; that is normal.",
                    "percentunit",
                    (
                        Query(
                            f"{total('durable_gateway_cache_bytes', matching=GATEWAY)}"
                            f" / {total('durable_gateway_cache_limit_bytes', matching=GATEWAY)}"
                        ),
                    ),
                    "stat",
                    4,
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    "By outcome",
                    "How requests were answered. hit, collapsed and followed cost the origin no request of their own; "
                    "revalidated and joined came from memory after a tail probe.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "outcome"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "By mode",
                    "Requests by mode. Long-polls and SSE are counted when they end.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
                Panel(
                    "By route",
                    "Requests by route; - stands for requests without a route.",
                    "reqps",
                    (
                        Query(
                            rate("durable_gateway_requests_total", "route"),
                            "{{route}}",
                        ),
                    ),
                    "stack",
                ),
                Panel(
                    "Errors",
                    "refused: 4xx by the gateway. failed: 5xx. aborted: connections dropped in the middle of a body; "
                    "without SSE, which clients always end this way.",
                    "reqps",
                    (
                        Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_ERRORS}"), "{{outcome}}"),
                        Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_CUT_OFF}"), "{{outcome}}"),
                    ),
                ),
                Panel(
                    "Clients and the origin",
                    "Requests of clients and requests to origins: the gap is the load that the gateway takes off.",
                    "reqps",
                    (
                        Query(rate("durable_gateway_requests_total"), "clients"),
                        Query(rate("durable_gateway_upstream_requests_total"), "origin"),
                    ),
                ),
                Panel(
                    "Bytes to clients and from the origin",
                    "Body bytes. Those to clients count as they are written, after compression, live reads included.",
                    "Bps",
                    (
                        Query(rate("durable_gateway_downstream_bytes_total", matching=GATEWAY), "to clients"),
                        Query(rate("durable_gateway_upstream_bytes_total"), "from the origin"),
                    ),
                ),
            ),
        ),
        Row(
            "Times",
            (
                Panel(
                    "First byte of catch-up reads",
                    "From reading the request to writing the first byte. Repeated hits count as 0.",
                    "s",
                    quantiles("durable_gateway_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                ),
                Panel(
                    "Duration of catch-up reads",
                    "From reading the request to handing over the last byte. Dots are traces, if there are any.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode="catchup"'),
                ),
                Panel(
                    "Duration of writes",
                    "The origin answers PUT, POST and DELETE: this is its time and the network's.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                ),
                Panel(
                    "First bytes of catch-up reads",
                    "Reads by time to the first byte: two bands are two kinds of reads, such as hits and misses.",
                    "s",
                    buckets("durable_gateway_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Durations of catch-up reads",
                    "Reads by duration. Repeated hits are in the lowest bucket.",
                    "s",
                    buckets("durable_gateway_request_duration_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Durations of writes",
                    "Writes by duration.",
                    "s",
                    buckets("durable_gateway_request_duration_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                    "heat",
                ),
                Panel(
                    "Event loop delay",
                    "How late timers are called. Beyond some tens of milliseconds, all clients wait for one core.",
                    "s",
                    tuple(
                        Query(
                            quantile(part, "durable_gateway_event_loop_delay_seconds", "instance", GATEWAY),
                            legend + " {{instance}}",
                        )
                        for part, legend in ((0.5, "half"), (0.99, "99 %"))
                    ),
                ),
                Panel(
                    "Processor",
                    "Cores in use. One gateway process can use one.",
                    "short",
                    (Query(rate("process_cpu_seconds_total", "instance", GATEWAY), "{{instance}}"),),
                ),
                Panel(
                    "Memory of the process",
                    "Resident bytes: tapes, connections and the program.",
                    "bytes",
                    (Query(total("process_resident_memory_bytes", "instance", GATEWAY), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "What runs",
            (
                Panel(
                    "Versions",
                    "Gateways by version.",
                    "short",
                    (
                        Query(
                            f"count by (version, python) (durable_gateway_build_info{{{GATEWAY}}})",
                            "{{version}}, {{python}}",
                        ),
                    ),
                    "stack",
                ),
                Panel(
                    "Open files",
                    "File descriptors in use, and their limit: each connection uses one.",
                    "short",
                    (
                        Query(total("process_open_fds", matching=GATEWAY), "open"),
                        Query(f"min (process_max_fds{{{GATEWAY}}})", "most, of one process"),
                    ),
                ),
                Panel(
                    "Access log: records dropped",
                    "Records lost because the sink was slower than the requests or gave them up.",
                    "short",
                    (Query(rate("durable_gateway_log_drops_total", matching=GATEWAY)),),
                ),
            ),
        ),
    ),
)
