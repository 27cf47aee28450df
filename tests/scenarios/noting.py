"""The lines of the access log, for its scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ops.log_reading import lines_of
from tests.scenarios.conftest import Edge
from tests.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def log_lines(edge: Edge, log: Path, count: int) -> list[dict[str, Any]]:
    """The lines of the log, which must be exactly this many."""

    def has_come() -> bool:
        edge.clock.advance(1.0)
        return log.read_bytes().count(b"\n") >= count

    await eventually(has_come)
    lines = lines_of(log)
    assert len(lines) == count
    return lines


async def confirmed(edge: Edge, readers: int = 1) -> None:
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and len(topic.readers_now) == readers for topic in topics()))
