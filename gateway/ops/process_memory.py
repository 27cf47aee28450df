"""The process's memory as the operating system counts it."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from typing import Final

_STATM: Final = "/proc/self/statm"
_PAGE_BYTES: Final = resource.getpagesize()


def resident_bytes() -> int:
    """Return the resident bytes now.  Without `/proc`, the highest value so far."""
    try:
        # Near the limit this is called hundreds of times a second, and a file object would cost three times as much.
        statm = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(statm, 256).split()[1]) * _PAGE_BYTES
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def return_freed_memory() -> None:
    """Return freed memory that the C library keeps (glibc) to the system.  May take tens of milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass
