"""What the origin was spared, in PromQL: the definition of `gateway.ops.spared` over one interval of a dashboard.

A read counts when it begins: the sum is the reads that ended in the interval, plus the growth in open live reads over
it.  An interval without reads has no value; a value below 0 is shown as it is.
"""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, ROUTE, Query

READS: Final = 'mode=~"catchup|longpoll|sse|head"'
"""Matches reads, on both sides of the share."""


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
"""1 - bytes from origins / bytes of answers before compression.  Bytes sent to clients are not counted by route."""

REQUESTS_TEXT: Final = (
    "1 - requests to origins for reads / reads that clients began, both in the same interval. Live reads count when "
    "they begin; writes are left out. Below 0: more requests went to the origin than reads came."
)
BYTES_TEXT: Final = (
    "1 - body bytes from origins / body bytes of answers before compression, both in the same interval, over all "
    "routes."
)
SPARED: Final = (Query(REQUESTS_SPARED, "requests"), Query(BYTES_SPARED, "bytes"))
