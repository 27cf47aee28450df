"""What a full cache gives up for streams that are read once."""

from __future__ import annotations

from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Edge, Start


async def created(edge: Edge, origin: RunningOrigin, path: str, size: int) -> None:
    """Create a stream at the origin, unknown to the gateway."""
    await edge.send_to(origin.url, "PUT", path, {"Content-Type": "application/octet-stream"}, b"x" * size)


async def is_in_memory(edge: Edge, path: str) -> bool:
    """Whether a read of the path finds its bytes in memory."""
    answer = await edge.get(f"{path}?offset=-1")
    assert answer.status == 200
    return "fwd=uri-miss" not in answer.headers["Cache-Status"]


async def test_a_body_that_is_too_large_to_be_stored_evicts_nothing(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, cache_bytes=400_000)
    small = [f"/small/{number}" for number in range(20)]
    for path in small:
        await created(edge, origin, path, 10_000)
        assert not await is_in_memory(edge, path)
    await created(edge, origin, "/large", 300_000)
    assert not await is_in_memory(edge, "/large")
    assert not await is_in_memory(edge, "/large")
    assert [await is_in_memory(edge, path) for path in small] == [True] * len(small)
