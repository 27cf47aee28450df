"""Watch a descriptor that other processes share.

uvloop makes a watched descriptor non-blocking, and that mode belongs to the open file, not to the descriptor.  On a
terminal it would also apply to our stdout, where large writes would then fail, and to the parent shell.  So the mode is
restored as soon as the watch is set.  One read of a ready descriptor never blocks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(descriptor: int, ready: Callable[[], object]) -> Iterator[None]:
    """Call `ready` whenever the descriptor is readable or at its end."""
    loop = asyncio.get_running_loop()
    is_blocking = os.get_blocking(descriptor)
    loop.add_reader(descriptor, ready)
    os.set_blocking(descriptor, is_blocking)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
