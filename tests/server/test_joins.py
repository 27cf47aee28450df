"""Live requests that are remembered by their bytes."""

from __future__ import annotations

from gateway.protocol.mode import Mode
from gateway.server.joins import Join, Joins
from tests.engine.bench import EngineBench


async def test_the_oldest_are_forgotten_beyond_a_number_of_bytes() -> None:
    bench = EngineBench()
    join = Join(bench.read("/s"), Mode.SSE, None)
    joins = Joins()
    requests = [b"GET /%d HTTP/1.1\r\n%b\r\n\r\n" % (number, b"X" * 3_000) for number in range(2_000)]
    for request in requests:
        joins.remember(request, join)
    assert 400 < len(joins) < (4 << 20) / 8_000
    assert joins.get(requests[0]) is None
    assert joins.get(requests[-1]) is join
    await bench.close()
