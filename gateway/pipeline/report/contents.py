"""What the report shows: its parts with their cards, in order.

In the texts `{step}` is the step of time, and `{no_reads}` says why there are no reads.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.pipeline.report import curve_panels, findings, panels
from gateway.pipeline.report.panel import Panel
from gateway.pipeline.wording import count, size

_NO_CURVE: Final = (
    "No curve was measured: `durable-gateway pipeline curve` does it, from reads that began at a known offset."
)

PARTS: Final = {
    "Offload": (
        Panel(
            "offload",
            "Offload",
            "Reads that caused no request at the origin, of all reads; and 1 − bytes from the origin / bytes to "
            "readers.",
            panels.offload,
            is_wide=True,
        ),
        Panel(
            "reads",
            "Reads, and requests to the origin",
            "Every {step}: catch-up reads, long-polls and SSE connections that ended.",
            partial(panels.amounts, series=panels.REQUESTS, write=count),
        ),
        Panel(
            "bytes",
            "Bytes to readers, and from the origin",
            "Every {step}: bodies of reads, before they were compressed.",
            partial(panels.amounts, series=panels.BYTES, write=size),
        ),
        Panel(
            "savers",
            "Who saves what",
            "Reads every {step}, by where the answer came from.",
            partial(panels.amounts, series=panels.SAVERS, write=count, stacked=True),
            is_wide=True,
        ),
    ),
    "Memory": (
        Panel(
            "curve-bytes",
            "Miss ratio by memory: bytes",
            "Share of the bytes of catch-up reads that the origin has to send.",
            partial(curve_panels.curve, is_bytes=True),
            _NO_CURVE,
        ),
        Panel(
            "curve-reads",
            "Miss ratio by memory: reads",
            "Share of catch-up reads of which bytes are missing in memory.",
            partial(curve_panels.curve, is_bytes=False),
            _NO_CURVE,
        ),
        Panel(
            "plan",
            "The plan",
            "What the gateway should keep, and in how much memory.",
            curve_panels.plan,
            "No plan was given: `durable-gateway pipeline plan` makes one, and `report --plan` shows it here.",
            is_wide=True,
        ),
    ),
    "Time": (
        Panel(
            "first-byte",
            "Time to the first byte",
            "Of catch-up reads, from the request to the beginning of the answer.",
            partial(panels.waits, of="first_byte", counted="Reads"),
            "There were no catch-up reads that were answered.",
        ),
        Panel(
            "delivery",
            "Delivery delay",
            "From the end of an append through the gateway to the end of the long-poll that it woke.",
            partial(panels.waits, of="delivery", counted="Deliveries"),
            "No append of this log woke a long-poll: writers bypass the gateway, or there are no long-polls.",
        ),
        Panel(
            "latency",
            "Latency by route and mode",
            "How long requests took from end to end; live reads, whose time is their wait, are not among them.",
            panels.latency,
            "There were no requests but live reads.",
            is_wide=True,
        ),
    ),
    "Who and what": (
        Panel(
            "streams-by-bytes",
            "Top streams by bytes",
            "What their readers got, before it was compressed, and what of it came from the origin.",
            panels.streams_by_bytes,
            "No stream is known to have been read.",
        ),
        Panel(
            "streams-by-requests",
            "Top streams by requests",
            "How often they were asked for, and by how many readers (about).",
            panels.streams_by_requests,
            "No stream is known to have been asked for.",
        ),
        Panel(
            "fan-out",
            "Fan-out",
            "How many readers, at least, shared a stream (live reads) or a fetch (catch-up reads).",
            panels.fan_out,
            "No read shared anything with another, or none is in the log.",
        ),
        Panel("routes", "Routes", "What each route's reads cost the origin.", panels.routes),
    ),
    "What to look at": findings.PANELS,
}
