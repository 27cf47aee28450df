"""A lake held by one step at a time: who writes the same tables must not do so twice at once.

Only a lake on this machine can be held.  Elsewhere it is up to whoever runs the steps.
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
    """Another run of the step has the lake."""


@contextmanager
def held(lake: Lake, step: str) -> Iterator[None]:
    """The lake for one run of this step, until the block ends; AtWork where another one has it."""
    if "://" in lake.url or lake.url.startswith("file:"):
        yield
        return
    folder = Path(lake.url)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / f".{step}.lock").open("wb"))
            # The system lets go of it when the process ends, in whatever way.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AtWork(f"{lake.url}: another {step} is at work there") from None
        except OSError as error:
            raise PipelineFailed(f"{lake.url}: {error.strerror or error}") from None
        yield
