"""The dashboard of clients' connections: their number, HTTP/2, and TLS."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, Board, Panel, Query, Row, rate, total

CONNECTIONS: Final = Board(
    "connections",
    "durable-gateway: connections",
    "Clients' connections, HTTP/2, TLS handshakes and certificates.",
    (
        Row(
            "Connections",
            (
                Panel(
                    "Open",
                    "Client connections by gateway, and the limit of each.",
                    "short",
                    (
                        Query(total("durable_gateway_connections", "instance", GATEWAY), "{{instance}}"),
                        Query(f"max (durable_gateway_connections_limit{{{GATEWAY}}})", "most"),
                    ),
                ),
                Panel(
                    "Refused",
                    "limit: max_connections are open. client: its network has client_connections. displaced: closed "
                    "while idle for one of a smaller network. leaving: the gateway drains. proxy: a PROXY header is "
                    "missing, malformed or not trusted.",
                    "ops",
                    (Query(rate("durable_gateway_connections_refused_total", "reason", GATEWAY), "{{reason}}"),),
                ),
                Panel(
                    "Over HTTP/2",
                    "Connections that use HTTP/2, and their open requests, live reads included.",
                    "short",
                    (
                        Query(total("durable_gateway_http2_connections", matching=GATEWAY), "connections"),
                        Query(total("durable_gateway_http2_streams", matching=GATEWAY), "requests"),
                    ),
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    "Held for clients",
                    "Unread answers that are not shared, unfinished heads and bodies; above the limit, the connections "
                    "that hold the most are dropped.",
                    "bytes",
                    (
                        Query(total("durable_gateway_client_bytes", "instance", GATEWAY), "{{instance}}"),
                        Query(f"max (durable_gateway_client_bytes_limit{{{GATEWAY}}})", "most"),
                    ),
                ),
                Panel(
                    "Resident",
                    "Memory of the process by gateway, and the limit under which it keeps itself; 0 is no limit.",
                    "bytes",
                    (
                        Query(total("process_resident_memory_bytes", "instance", GATEWAY), "{{instance}}"),
                        Query(f"max (durable_gateway_memory_limit_bytes{{{GATEWAY}}})", "most"),
                    ),
                ),
                Panel(
                    "Pressure",
                    "1: the cache shrinks. 2: clients are dropped and no fetch begins. 3: new connections are refused.",
                    "short",
                    (Query(f"max by (instance) (durable_gateway_memory_pressure{{{GATEWAY}}})", "{{instance}}"),),
                ),
                Panel(
                    "Dropped for memory",
                    "Connections dropped because they held the most. client_bytes: above that bound. memory: the "
                    "process is close to memory_max_bytes.",
                    "ops",
                    (Query(rate("durable_gateway_clients_shed_total", "reason", GATEWAY), "{{reason}}"),),
                ),
            ),
        ),
        Row(
            "Limits",
            (
                Panel(
                    "Clients beyond their share",
                    "Requests refused and clients cut off, by the key in limits: more live reads, followed streams or "
                    "reads of new streams than one network may have, or slower than client_min_rate.",
                    "ops",
                    (Query(rate("durable_gateway_client_limited_total", "limit", GATEWAY), "{{limit}}"),),
                ),
                Panel(
                    "Rate limits",
                    "Requests answered 429 because of a configured [[rate_limit]], by its name and the route.",
                    "ops",
                    (
                        Query(
                            rate("durable_gateway_rate_limited_total", "limit, route", GATEWAY), "{{limit}}, {{route}}"
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "HTTP/2",
            (
                Panel(
                    "Requests reset",
                    "Requests that the gateway reset, by error code. refused_stream: a client has more than "
                    "http2_streams requests open. cancel: a client does not keep up. protocol_error: malformed.",
                    "ops",
                    (Query(rate("durable_gateway_http2_resets_total", "code", GATEWAY), "{{code}}"),),
                ),
                Panel(
                    "Connections ended by GOAWAY",
                    "Connections to which the gateway sent GOAWAY, by error code. no_error: drains and idle "
                    "connections. enhance_your_calm: floods, and heads that do not end in time.",
                    "ops",
                    (Query(rate("durable_gateway_http2_goaways_total", "code", GATEWAY), "{{code}}"),),
                ),
                Panel(
                    "Floods",
                    "Connections ended because one kind of frame came too often. Some are scanners; many are an attack "
                    "or a faulty client.",
                    "ops",
                    (Query(rate("durable_gateway_http2_floods_total", "kind", GATEWAY), "{{kind}}"),),
                ),
            ),
        ),
        Row(
            "TLS",
            (
                Panel(
                    "Certificates expire in",
                    "Time until each certificate in use expires. Below 7 days, renewal has failed.",
                    "s",
                    (
                        Query(
                            "min by (listener, name) "
                            f"(durable_gateway_certificate_expiry_timestamp_seconds{{{GATEWAY}}}) - time()",
                            "{{name}} at {{listener}}",
                        ),
                    ),
                    least=None,
                ),
                Panel(
                    "Handshakes",
                    "Completed handshakes, and those that failed for any reason.",
                    "ops",
                    (
                        Query(rate("durable_gateway_tls_handshakes_total", matching=GATEWAY), "completed"),
                        Query(rate("durable_gateway_tls_handshake_failures_total", matching=GATEWAY), "failed"),
                    ),
                ),
                Panel(
                    "Failed handshakes",
                    "By reason. refused: clients do not trust the certificate. client_certificate: theirs is missing "
                    "or not trusted. plain_http, malformed and left are mostly scanners and health checks.",
                    "ops",
                    (Query(rate("durable_gateway_tls_handshake_failures_total", "reason", GATEWAY), "{{reason}}"),),
                ),
                Panel(
                    "Certificates not taken",
                    "Renewed files that could not be used: the old certificate stays in use and will expire.",
                    "short",
                    (
                        Query(
                            "sum by (listener) "
                            f"(increase(durable_gateway_certificate_failures_total{{{GATEWAY}}}[$__rate_interval]))",
                            "{{listener}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
