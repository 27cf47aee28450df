"""The process before the program is loaded: its descriptors and its signals.

Loading the program takes half a second.  Meanwhile a signal or a closed descriptor must not end the process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_hangups = 0


def prepare(arguments: Sequence[str]) -> None:
    """Make the process safe for the command with these arguments."""
    open_standard_descriptors()
    if arguments[:1] == ["serve"]:
        # By default, SIGHUP ends a process.  `run_serve` replaces the handler once a configuration is loaded.
        signal.signal(signal.SIGHUP, _note_hangup)


def open_standard_descriptors() -> None:
    """Open descriptors 0 to 2 on the null device if they are closed.

    A supervisor may close them.  The first sockets would then get these numbers: output would go to a client, and libuv
    aborts the process if it finds its own descriptors there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The new descriptor gets the closed one's number, because open() returns the lowest free number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Make the stream objects that are missing because Python found their descriptors closed at its start.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def was_hung_up() -> bool:
    """Whether a SIGHUP has arrived since `prepare`."""
    return _hangups > 0


def _note_hangup(_number: int, _frame: FrameType | None) -> None:
    global _hangups
    _hangups += 1
