"""The dashboard of cache and tape: answers from memory, the contents of memory, evictions, compression."""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Board, Panel, Query, Row, rate, share, total

_CATCHUP: Final = 'mode="catchup"'
_FROM_TAPE: Final = "hit|revalidated|joined|stale_if_error"
_SHARED: Final = "collapsed|joined|revalidated"

CACHE: Final = Board(
    "cache",
    "durable-gateway: cache and tape",
    "Hit, join and collapse ratios in requests and bytes; tapes, blocks, evictions; compression.",
    (
        Row(
            "Catch-up reads",
            (
                Panel(
                    "Hit ratio",
                    "Share of catch-up reads answered from the tape alone. Revalidated, joined and collapsed reads "
                    "came from memory too; the overview has the share spared the origin.",
                    "percentunit",
                    (Query(share("durable_gateway_requests_total", f"{ROUTE},{_CATCHUP}", 'outcome="hit"')),),
                    most=1,
                ),
                Panel(
                    "From the tape, at least in part",
                    "The hit ratio including reads joined with a tail probe, revalidated, or stale because of an "
                    "error.",
                    "percentunit",
                    (
                        Query(
                            share("durable_gateway_requests_total", f"{ROUTE},{_CATCHUP}", f'outcome=~"{_FROM_TAPE}"')
                        ),
                    ),
                    most=1,
                ),
                Panel(
                    "Requests by outcome",
                    "How catch-up reads were answered.",
                    "reqps",
                    (Query(rate("durable_gateway_requests_total", "outcome", f"{ROUTE},{_CATCHUP}"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "Bytes by outcome",
                    "Body bytes of finished answers of all modes, by outcome: from the tape, or fetched.",
                    "Bps",
                    (Query(rate("durable_gateway_response_bytes_total", "outcome"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "Shared probes and fetches",
                    "Reads that needed the origin and shared a fetch or a tail probe.",
                    "reqps",
                    (
                        Query(
                            rate(
                                "durable_gateway_requests_total", "outcome", f'{ROUTE},{_CATCHUP},outcome=~"{_SHARED}"'
                            ),
                            "{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Bytes out for each byte in",
                    "How often each byte from the origin is sent to clients, counted before compression.",
                    "short",
                    (
                        Query(
                            f"({rate('durable_gateway_downstream_bytes_total', matching=GATEWAY)}"
                            f" + {rate('durable_gateway_response_saved_bytes_total', matching=GATEWAY)})"
                            f" / {rate('durable_gateway_upstream_bytes_total', matching=GATEWAY)}"
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    "Bytes held",
                    "Tapes and compressed copies, and the budget that bounds them.",
                    "bytes",
                    (
                        Query(total("durable_gateway_cache_bytes", matching=GATEWAY), "held"),
                        Query(total("durable_gateway_cache_limit_bytes", matching=GATEWAY), "budget"),
                    ),
                ),
                Panel(
                    "Bytes of tapes by route",
                    "Bytes of the budget that each route uses, indexes included.",
                    "bytes",
                    (Query(total("durable_gateway_tape_bytes", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Tapes",
                    "Streams held, empty ones included.",
                    "short",
                    (Query(total("durable_gateway_tapes", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Blocks",
                    "Runs of bytes on the tapes. Many on few tapes: streams are read in pieces with gaps between.",
                    "short",
                    (Query(total("durable_gateway_tape_blocks", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Evictions",
                    "Tapes dropped to make room. A steady rate with misses: the budget is too small for the reads.",
                    "ops",
                    (Query(rate("durable_gateway_evictions_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "Flights and waiters",
                    "Shared fetches under way, and the requests that wait for them.",
                    "short",
                    (
                        Query(total("durable_gateway_flights"), "flights"),
                        Query(total("durable_gateway_waiters"), "waiters"),
                    ),
                ),
            ),
        ),
        Row(
            "Compression",
            (
                Panel(
                    "Bodies compressed",
                    "Compressions. A compressed body is reused for all requests.",
                    "ops",
                    (Query(rate("durable_gateway_compressions_total", "coding", GATEWAY), "{{coding}}"),),
                ),
                Panel(
                    "Bytes before and after",
                    "Bytes of these bodies before and after compression.",
                    "Bps",
                    (
                        Query(
                            rate("durable_gateway_compression_input_bytes_total", "coding", GATEWAY),
                            "{{coding}}, before",
                        ),
                        Query(
                            rate("durable_gateway_compression_output_bytes_total", "coding", GATEWAY),
                            "{{coding}}, after",
                        ),
                    ),
                ),
                Panel(
                    "Saved on the way to clients",
                    "Bytes that compression saved on answers to clients; each answer counts.",
                    "Bps",
                    (Query(rate("durable_gateway_response_saved_bytes_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
            ),
        ),
    ),
)
