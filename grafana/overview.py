"""The first dashboard to open: is it well, what is asked, how is it answered, what is left for the origin."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, buckets, quantile, quantiles, rate, share, total
from grafana.spared import BYTES_SPARED, BYTES_TEXT, REQUESTS_SPARED, REQUESTS_TEXT, SPARED

_ERRORS: Final = 'outcome=~"refused|failed"'
_CUT_OFF: Final = 'outcome="aborted",mode!="sse"'

OVERVIEW: Final = Board(
    "overview",
    "durable-gateway: overview",
    "What the origin is spared and how it is; requests, errors, times.",
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
                    "Origins whose circuit breaker is closed and that are not ejected, beside all of them, as each "
                    "gateway sees them. The origin's view says which.",
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
                    "Instances that say they are ready. Less than you run: one is down or draining.",
                    "short",
                    (Query(total("durable_gateway_ready", matching=GATEWAY)),),
                    "stat",
                    4,
                ),
                Panel(
                    "Requests",
                    "Client requests that ended, in a second.",
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
                    "Requests sent to origins in a second, those for writes too.",
                    "reqps",
                    (Query(rate("durable_gateway_upstream_requests_total")),),
                    "stat",
                    4,
                ),
                Panel(
                    "Live readers",
                    "Long-polls that wait and SSE connections that are open.",
                    "short",
                    (Query(total("durable_gateway_subscribers")),),
                    "stat",
                    4,
                ),
                Panel(
                    "Memory for tapes",
                    "Share of the byte budget in use. It fills and then stays full: that is what it is for.",
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
                    "revalidated and joined came from memory behind a look at the tail.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "outcome"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "By mode",
                    "What was asked. Long-polls and SSE are counted when they end.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
                Panel(
                    "By route",
                    "Where it was asked; - is where no route is.",
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
                    "without SSE, which clients end so whenever they leave.",
                    "reqps",
                    (
                        Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_ERRORS}"), "{{outcome}}"),
                        Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_CUT_OFF}"), "{{outcome}}"),
                    ),
                ),
                Panel(
                    "Clients and the origin",
                    "What clients asked beside what the origin was asked: the gap is what the gateway is for.",
                    "reqps",
                    (
                        Query(rate("durable_gateway_requests_total"), "clients"),
                        Query(rate("durable_gateway_upstream_requests_total"), "origin"),
                    ),
                ),
                Panel(
                    "Bytes to clients and from the origin",
                    "Bodies. Bytes to clients count as they are written, coded and live ones too.",
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
                    "From reading the request to the last byte handed over. Dots are traces, where there are any.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode="catchup"'),
                ),
                Panel(
                    "Duration of writes",
                    "PUT, POST and DELETE are the origin's to answer: this is its time and the network's.",
                    "s",
                    quantiles("durable_gateway_request_duration_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                ),
                Panel(
                    "First bytes of catch-up reads",
                    "How many took how long: two bands are two kinds of reads, such as hits and misses.",
                    "s",
                    buckets("durable_gateway_first_byte_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Durations of catch-up reads",
                    "How many took how long. Repeated hits are in the lowest bucket.",
                    "s",
                    buckets("durable_gateway_request_duration_seconds", f'{ROUTE},mode="catchup"'),
                    "heat",
                ),
                Panel(
                    "Durations of writes",
                    "How many took how long.",
                    "s",
                    buckets("durable_gateway_request_duration_seconds", f'{ROUTE},mode=~"create|append|delete"'),
                    "heat",
                ),
                Panel(
                    "Event loop's delay",
                    "How late timers are called. Beyond some tens of milliseconds everybody waits for one core.",
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
                    "Gateways by what they run.",
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
                    "File descriptors in use, and the most there may be: each connection is one.",
                    "short",
                    (
                        Query(total("process_open_fds", matching=GATEWAY), "open"),
                        Query(f"min (process_max_fds{{{GATEWAY}}})", "most, of one process"),
                    ),
                ),
                Panel(
                    "Access log: records dropped",
                    "Records given up because the sink was slower than the requests.",
                    "short",
                    (Query(rate("durable_gateway_log_drops_total", matching=GATEWAY)),),
                ),
            ),
        ),
    ),
)
