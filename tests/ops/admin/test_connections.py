"""The admin port's bounds on a request's head, one byte below and above."""

from tests.ops.admin.conftest import Bench
from tests.scenarios.wire import Wire


def head(size: int, host: str) -> bytes:
    """A request whose head has `size` bytes, in lines that are short enough."""
    lines = [b"GET /healthz HTTP/1.1", b"Host: " + host.encode()]
    while (left := size - len(b"\r\n".join(lines)) - 4) > 0:
        lines.append(b"X: " + b"f" * (min(left, 8_000) - 5))
        if left - len(lines[-1]) - 2 in range(1, 8):
            lines[-1] = lines[-1][:-10]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def test_a_head_above_the_bound_is_refused(bench: Bench) -> None:
    connections = bench.gateway.admin_connections
    host = bench.gateway.admin_url.removeprefix("http://")
    for size, status in ((40_000, 200), (65_535, 200), (65_700, 431), (300_000, 431)):
        request = head(size, host)
        assert abs(len(request) - size) < 8
        wire = await Wire.open(bench.gateway.admin_url)
        wire.writer.write(request)
        assert (await wire.head()).status == status
        await wire.closed()
    assert connections.figures()[1]["head"] == 2
