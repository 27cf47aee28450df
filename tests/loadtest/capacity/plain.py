"""Plain costs for tests of the model."""

from __future__ import annotations

from loadtest.capacity.costs import Costs

MIB = 1 << 20
COSTS = Costs(
    idle_us=5_000,
    event_us=60,
    delivery_us=8,
    hop_event_us=80,
    hop_relay_us=20,
    join_us=100,
    poll_us=40,
    heartbeat_us=5,
    follow_us=400,
    hop_follow_us=300,
    hop_serve_us=150,
    process_bytes=60 * MIB,
    sse_bytes=2_500,
    long_poll_bytes=1_700,
    socket_bytes=4_000,
    stream_bytes=10_000,
    hop_stream_bytes=12_000,
    hop_reader_bytes=6_000,
    frame_bytes=130,
    join_reply_bytes=700,
    poll_reply_bytes=500,
)
