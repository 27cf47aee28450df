"""An ingest that is killed in the middle of a step, as `kill -9` does: `python -m tests.pipeline.dying_ingest`.

Arguments: the lake, the step, and the files.  A step is a table and `before` or `after` its commit; before it, the
files of the commit are written.  It runs on the Spark of the program that starts it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from gateway.pipeline.lake import Lake, Snapshot
from tests.pipeline.access_lines import take
from tests.spark import joined


def main(url: str, step: str, *files: str) -> None:
    """Ingest, up to the step."""
    table, _, when = step.partition(" ")
    commit = Snapshot.commit

    def die(snapshot: Snapshot, at: str) -> None:
        if (snapshot.table.name, at) == (table, when):
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(self: Snapshot, *args: Any, **more: Any) -> Snapshot:
        die(self, "before")
        after = commit(self, *args, **more)
        die(self, "after")
        return after

    Snapshot.commit = dying  # type: ignore[method-assign]
    take(joined(), Lake(url), *map(Path, files))


if __name__ == "__main__":
    main(*sys.argv[1:])
