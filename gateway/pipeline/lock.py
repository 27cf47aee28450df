"""Exclusive lock: one writer per lake and step.

It covers lakes in a local folder only.  For a lake on another file system the operator must not run a step twice at a
time.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.pipeline.errors import PipelineFailed

if TYPE_CHECKING:
    from gateway.pipeline.lake import Lake


class AtWork(PipelineFailed):
    """Another run of the step holds the lake's lock."""


@contextmanager
def locked(lake: Lake, step: str) -> Iterator[None]:
    """Hold the lake's lock for this step until the block ends.  Raises AtWork if another run holds it."""
    if "://" in lake.url or lake.url.startswith("file:"):
        yield
        return
    folder = Path(lake.url)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / f".{step}.lock").open("wb"))
            # The system releases the lock when the process ends, even if it is killed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AtWork(f"{lake.url}: another {step} is running") from None
        except OSError as error:
            raise PipelineFailed(f"{lake.url}: {error.strerror or error}") from None
        yield
