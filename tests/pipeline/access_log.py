"""A small access log for the commands of the pipeline."""

from __future__ import annotations

import json

NOON = 1_795_262_400


def access_log(count: int) -> str:
    """A log: readers of ten rooms, of which the first is read most."""
    written = []
    for number in range(count):
        room = min(number % 7 * (number % 3), 9)
        is_hit = number > 40
        line = {
            "time": NOON + number * 0.9,
            "v": 1,
            "id": f"00c0ffee.{number // 64}.{number % 64}",
            "node": "edge-1",
            "route": "default",
            "stream": f"/rooms/{room}",
            "method": "GET",
            "mode": "catchup",
            "status": 200,
            "outcome": "hit" if is_hit else "miss",
            "duration_s": 0.001,
            "first_byte_s": 0.001,
            "start": "-1",
            "next_offset": f"0000000000000001_{40_000 * (room + 1):016d}",
            "sent_bytes": 40_000 * (room + 1),
            "fetched_bytes": 0 if is_hit else 40_000 * (room + 1),
            "is_final": True,
            "client": "192.0.2.0",
            "user_agent": "reader/1",
        }
        written.append(json.dumps(line if is_hit else line | {"origin_requests": 1}))
    return "\n".join(written) + "\n"
