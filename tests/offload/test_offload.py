"""The gateway's purpose: the origin's own counters do not depend on the number of readers.

Every case checks all bytes of all clients before it returns its figure.
"""

from __future__ import annotations

import pytest

from tests.offload import cases
from tests.offload.stage import BINARY, JSON, TEXT

TYPES = [JSON, BINARY]
GROWING_BYTES = 4 * cases.MIB
"""Size of a growing stream here; `make offload` has one of 10 MiB."""
KIB = 1024


@pytest.mark.parametrize("content_type", TYPES)
async def test_a_thousand_long_polls_with_fifty_cursors_are_one_live_request(content_type: str) -> None:
    figure = await cases.long_polls(content_type)
    assert figure.asked == 1_000
    assert figure.live_requests == 1
    assert figure.fetches <= 2


async def test_a_thousand_long_polls_of_a_text_stream_are_one_live_request_at_a_time() -> None:
    figure = await cases.long_polls(TEXT)
    assert figure.live_peak == 1
    assert figure.live_requests <= 2, "the one that the append answered, and the next"


@pytest.mark.parametrize("content_type", TYPES)
async def test_a_thousand_sse_subscribers_from_twenty_offsets_are_one_live_connection(content_type: str) -> None:
    figure = await cases.subscribers(content_type)
    assert figure.live_requests == 1
    assert figure.fetches <= 20 + 1, "an offset that the origin never named to the gateway has to be shown to it once"


@pytest.mark.parametrize("content_type", TYPES)
async def test_a_replay_larger_than_one_event_continues_live_without_a_gap(content_type: str) -> None:
    figure = await cases.subscribers(content_type, clients=60, message_bytes=40_000)
    assert figure.live_peak == 1


async def test_sse_subscribers_of_a_text_stream_are_one_live_request_at_a_time() -> None:
    figure = await cases.subscribers(TEXT)
    assert figure.live_peak == 1
    assert figure.live_requests <= 1 + 20 + 1, "one for each append, at most"


async def test_sse_and_long_poll_readers_share_one_live_connection() -> None:
    figure = await cases.both_modes()
    assert figure.live_requests == 1
    assert figure.fetches <= 2


@pytest.mark.parametrize(
    ("content_type", "max_chunk_bytes", "is_live", "most_live_requests"),
    [
        pytest.param(JSON, cases.MIB, False, 1, id="json, chunks, catch-up"),
        pytest.param(
            BINARY,
            64 * cases.MIB,
            False,
            1 + GROWING_BYTES // (128 * KIB) * 4 // 5 + 1,
            id="binary, to the tail, catch-up",
        ),
        pytest.param(JSON, 64 * cases.MIB, True, 1, id="json, to the tail, live"),
        pytest.param(BINARY, cases.MIB, True, 1 + GROWING_BYTES // (32 * KIB) // 2, id="binary, chunks, live"),
    ],
)
async def test_each_byte_of_a_growing_stream_leaves_the_origin_once(
    content_type: str, max_chunk_bytes: int, is_live: bool, most_live_requests: int
) -> None:
    figure = await cases.growing(content_type, size=GROWING_BYTES, max_chunk_bytes=max_chunk_bytes, is_live=is_live)
    assert figure.given_bytes >= 100 * figure.stream_bytes
    assert figure.origin_bytes <= 1.05 * figure.stream_bytes
    assert figure.fetches <= 15, "a read waits for the follower that brings what is missing"
    assert figure.live_peak <= 1
    assert figure.live_requests <= most_live_requests, "large binary events are long-polled, one an append"


@pytest.mark.parametrize("content_type", [JSON, TEXT])
async def test_a_loop_at_a_closed_streams_end_costs_the_origin_nothing(content_type: str) -> None:
    figure = await cases.closed_loop(content_type)
    assert figure.asked > 4_000
    assert figure.fetches <= 2, "the stream was read once, and its metadata"
    assert figure.live_requests == 0


async def test_returning_long_poll_clients_find_the_live_connection_still_open() -> None:
    figure = await cases.returning()
    assert figure.asked == 2_000
    assert figure.live_requests == 1
    assert figure.fetches <= 2


async def test_long_poll_clients_of_a_text_stream_cost_one_long_poll_per_append() -> None:
    figure = await cases.returning(TEXT)
    assert figure.live_peak == 1
    assert figure.live_requests <= 20 + 1
    assert figure.fetches <= 3


async def test_many_streams_are_one_live_request_each_and_are_released_after_the_linger() -> None:
    figure = await cases.many_streams()
    assert figure.clients == 1_000
    assert figure.live_requests == figure.live_peak == 100
    assert figure.fetches <= 200
