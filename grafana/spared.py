"""What the origin was spared, in PromQL: the definition of `gateway.ops.spared` over one interval of a dashboard.

A read counts when it begins: reads that ended in the interval, and how many more live ones are open at its end than at
its beginning.  An interval without reads has no value; one below 0 is shown as it is.
"""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Query

READS: Final = 'mode=~"catchup|longpoll|sse|head"'
"""What counts as a read, on both sides."""


def _grown(series: str, matching: str, how: str = "increase") -> str:
    return f"sum ({how}({series}{{{matching}}}[$__rate_interval]))"


REQUESTS_SPARED: Final = (
    f"1 - {_grown('durable_gateway_upstream_requests_total', f'{ROUTE},{READS}')}"
    f" / ({_grown('durable_gateway_requests_total', f'{ROUTE},{READS}')}"
    f" + {_grown('durable_gateway_subscribers', ROUTE, 'delta')} > 0)"
)
"""1 - requests to origins for reads / reads that clients began."""

BYTES_SPARED: Final = (
    f"1 - {_grown('durable_gateway_upstream_bytes_total', GATEWAY)}"
    f" / ({_grown('durable_gateway_downstream_bytes_total', GATEWAY)}"
    f" + {_grown('durable_gateway_response_saved_bytes_total', GATEWAY)} > 0)"
)
"""1 - bytes from origins / bytes of answers before they were coded.  Bytes as they go to clients are of no route."""

REQUESTS_TEXT: Final = (
    "1 - requests to origins for reads / reads that clients began, both in the same interval. Live reads count when "
    "they come; writes are left out. Below 0 the origin was asked more often than the gateway."
)
BYTES_TEXT: Final = (
    "1 - body bytes from origins / body bytes of answers before they were compressed, both in the same interval, of "
    "all routes."
)
SPARED: Final = (Query(REQUESTS_SPARED, "requests"), Query(BYTES_SPARED, "bytes"))
