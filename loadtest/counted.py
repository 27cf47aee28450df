"""Run `durable-gateway …` and write the counters of its in-memory origin to a file when it has stopped.

`python -m loadtest.counted FILE dev --listen 127.0.0.1:0` is `durable-gateway dev --listen 127.0.0.1:0`: the same
command line runs the same code, with a wrapper around `start_origin` that keeps the counters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gateway import cli
from gateway.origin import app
from gateway.origin.counters import Counters


def as_json(counters: Counters) -> dict[str, Any]:
    """Requests, body bytes and connections at the origin."""
    return {
        "requests": {str(kind): count for kind, count in counters.requests.items()},
        "body_bytes": {str(kind): count for kind, count in counters.body_bytes.items()},
        "live_peak": counters.live_peak,
        "connections": counters.connections,
    }


def main() -> int:
    """Run the command line after the file's name; return its exit status."""
    file = Path(sys.argv.pop(1))
    started: list[Counters] = []
    start_origin = app.start_origin

    async def start(*args: Any, **kwargs: Any) -> app.RunningOrigin:
        running = await start_origin(*args, **kwargs)
        started.append(running.origin.counters)
        return running

    app.start_origin = start
    status = cli.main()
    for counters in started:
        file.write_text(json.dumps(as_json(counters), indent=2) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
