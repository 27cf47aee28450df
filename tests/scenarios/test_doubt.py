"""What a write of unknown outcome costs the others: a look at the origin, and nothing where the origin never had it."""

import pytest

from gateway.origin.counters import Counters
from tests.scenarios.conftest import Edge, eventually

HALF = b"%s /s HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize("method", [b"PUT", b"POST"])
async def test_a_body_that_its_client_does_not_finish_concerns_nobody(
    edge: Edge, counters: Counters, method: bytes
) -> None:
    await edge.put("/s", b"hello")
    tail = (await edge.get("/s?offset=-1")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    await counters.parked_is(1)
    (stream,) = edge.gateway.engine.library
    for _ in range(3):
        wire = await edge.wire()
        await wire.send(HALF % method)
        await eventually(lambda: bool(edge.gateway.engine.relay._writes))
        await wire.send(b"ZZ\r\n")
        assert (await wire.answer()).status == 400
        await eventually(lambda: not edge.gateway.engine.relay._writes)
    assert stream.tape.block_count == 1
    assert not stream.is_doubted
    assert (await edge.post("/s", b"more")).status == 204
    assert (await waiting).body == b"more"
