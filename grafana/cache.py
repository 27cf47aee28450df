"""Cache and tape: how much is answered from memory, what memory holds, what goes from it."""

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
                    "Share of catch-up reads answered from the tape alone. Those revalidated, joined or collapsed came "
                    "from memory as well: what the origin was spared is on the overview.",
                    "percentunit",
                    (Query(share("durable_gateway_requests_total", f"{ROUTE},{_CATCHUP}", 'outcome="hit"')),),
                    most=1,
                ),
                Panel(
                    "From the tape, at least in part",
                    "The same with those that were joined with a look at the tail.",
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
                    "Body bytes of answers that ended, of all modes: what came from the tape, what was fetched.",
                    "Bps",
                    (Query(rate("durable_gateway_response_bytes_total", "outcome"), "{{outcome}}"),),
                    "stack",
                ),
                Panel(
                    "Shared looks and fetches",
                    "Reads that needed the origin and had company: their fetches were shared.",
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
                    "How often a byte that left the origin is sent to clients, coded or not.",
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
                    "Who takes the budget, indexes included.",
                    "bytes",
                    (Query(total("durable_gateway_tape_bytes", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Tapes",
                    "Streams remembered, empty ones too.",
                    "short",
                    (Query(total("durable_gateway_tapes", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Blocks",
                    "Runs of bytes that tapes are made of. Many on few tapes: streams read in pieces that do not meet.",
                    "short",
                    (Query(total("durable_gateway_tape_blocks", "route"), "{{route}}"),),
                    "stack",
                ),
                Panel(
                    "Evictions",
                    "Tapes dropped for want of room. Steady and with misses: the budget is small for what is read.",
                    "ops",
                    (Query(rate("durable_gateway_evictions_total", "route"), "{{route}}"),),
                ),
                Panel(
                    "Flights and those who wait",
                    "Shared fetches in the air, and the requests that wait for them.",
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
                    "Each once for all who ask for it.",
                    "ops",
                    (Query(rate("durable_gateway_compressions_total", "coding", GATEWAY), "{{coding}}"),),
                ),
                Panel(
                    "Bytes before and after",
                    "Of these bodies.",
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
                    "How many more bytes answers had before they were coded, each time that one was sent.",
                    "Bps",
                    (Query(rate("durable_gateway_response_saved_bytes_total", "mode"), "{{mode}}"),),
                    "stack",
                ),
            ),
        ),
    ),
)
