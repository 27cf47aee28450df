"""Watching a descriptor that others share.

uvloop makes what it watches non-blocking, and that is a property of the open file and not of the descriptor: on a
terminal it would hold for our own stdout, which would then refuse what the terminal cannot show at once, and for the
shell that we came from.  So the mode is put back as soon as the watch is set; one read of what is ready never waits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(descriptor: int, ready: Callable[[], object]) -> Iterator[None]:
    """Call `ready` whenever the descriptor can be read, or has ended."""
    loop = asyncio.get_running_loop()
    is_blocking = os.get_blocking(descriptor)
    loop.add_reader(descriptor, ready)
    os.set_blocking(descriptor, is_blocking)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
