"""A process that reads the configuration for the supervisor, which must not wait for a disk.

The process reads the configuration and every file that the configuration names, so that an unusable file is detected
before the configuration is offered to a worker.  The process sends the configuration to the supervisor without the
content of these files.  Each worker reads the files again, because OpenSSL loads a private key only by its path.

`gateway.cli.supervisor.configurations` decides which configuration each worker runs with.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.cli.reloading import failure_text
from gateway.cli.supervisor.worker import ignore_signals
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import READ_S

_SPARE_S: Final = 1.0
"""If a process still runs this many seconds after its time limit, the supervisor gives it up."""
_ATTEMPTS: Final = 3
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """The result of reading the configuration."""

    pickled: bytes = b""
    """The configuration."""
    error: str = ""
    """Why the configuration could not be read; empty if it was read."""

    def config(self) -> GatewayConfig:
        """Return the configuration."""
        config: GatewayConfig = pickle.loads(self.pickled)
        return config


class Reading:
    """One attempt to read the configuration.

    `done` is called once with the result, unless `give_up` or `close` is called before.  A killed process shows nothing
    about the configuration.  Another process then reads the configuration, up to `_ATTEMPTS` times in all.
    """

    def __init__(
        self,
        read: Callable[[], GatewayConfig],
        selector: selectors.BaseSelector,
        now: float,
        done: Callable[[Found], None],
        within_s: float = READ_S,
    ) -> None:
        """`read` runs in the process.  Raises OSError if the process cannot be forked."""
        self._read = read
        self._selector = selector
        self._done = done
        self._within_s = within_s
        self._attempts = 0
        self._data = b""
        self._has_closed = False
        """Whether the process has closed its end of the socket, and has not been reaped yet."""
        self.ends_at = now + within_s + _SPARE_S
        """The time at which to give up.  It is reached only if not even the alarm of the process can end it."""
        self._pid, self._sock = self._forked()

    def __repr__(self) -> str:
        return f"<Reading by process {self._pid}>"

    def _forked(self) -> tuple[int, socket.socket]:
        self._attempts += 1
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                _become_reader(self._read, theirs, self._within_s)
            except BaseException:
                traceback.print_exc()
            finally:
                # This process must not continue to run the supervisor's code.
                os._exit(1)
        theirs.close()
        self._selector.register(ours, selectors.EVENT_READ, self._hear)
        return pid, ours

    def _hear(self) -> None:
        if data := self._sock.recv(_READ_BYTES):
            self._data += data
            return
        self._selector.unregister(self._sock)
        self._sock.close()
        self._has_closed = True
        self.look()

    def look(self) -> None:
        """Reap the process if it has closed its end of the socket and has ended.  Does not wait for the end of the
        process, which may be delayed by a disk."""
        if not self._has_closed:
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return
        self._has_closed = False
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if not ended_by:
            found = _found(self._data)
        elif ended_by == signal.SIGALRM:
            found = self.too_late()
        elif self._attempts < _ATTEMPTS:
            self._data = b""
            try:
                self._pid, self._sock = self._forked()
            except OSError as error:
                found = cannot_fork(error)
            else:
                return
        else:
            found = Found(error="the process that reads the configuration is killed each time")
        self._done(found)

    def too_late(self) -> Found:
        """Return the result for an attempt that takes too long."""
        return Found(error=f"the configuration could not be read within {self._within_s:g} s")

    def give_up(self) -> int | None:
        """End the process without waiting for it.  Returns its pid if it is still to be reaped."""
        if not self._has_closed:
            self._selector.unregister(self._sock)
            self._sock.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return None if os.waitpid(self._pid, os.WNOHANG)[0] else self._pid

    def close(self) -> None:
        """Close the socket.  Called in a process that was forked during the reading."""
        self._sock.close()


def cannot_fork(error: OSError) -> Found:
    """Return the result for an attempt whose process cannot be forked."""
    return Found(error=f"no process can be forked to read the configuration: {error.strerror}")


def _found(data: bytes) -> Found:
    with suppress(EOFError, pickle.UnpicklingError):
        found = pickle.loads(data)
        if isinstance(found, Found):
            return found
    return Found(error="the process that reads the configuration has failed")


def _close_all_but(kept: int) -> None:
    """Close all files but the standard streams and `kept`.

    The numbers of the open files are read from /proc.  To try every possible number might take minutes.
    """
    try:
        numbers = [int(one.name) for one in Path("/proc/self/fd").iterdir()]
    except OSError:
        os.closerange(3, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number > 2 and number != kept:
            # One of the numbers belongs to the descriptor of the folder itself, which is already closed.
            with suppress(OSError):
                os.close(number)


def _become_reader(read: Callable[[], GatewayConfig], sock: socket.socket, within_s: float) -> Any:
    """Read the configuration and send the result, in the process just forked."""
    signal.set_wakeup_fd(-1)
    ignore_signals()
    # Let an alarm end this process in any case: the disk may hang, and the supervisor may have ended.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, within_s)
    # While this process had the supervisor's end of a channel, a worker would not notice the end of the supervisor.
    _close_all_but(sock.fileno())
    try:
        found = Found(pickle.dumps(read()))
    except Exception as error:
        found = Found(error=failure_text(error))
    sock.sendall(pickle.dumps(found))
    os._exit(0)
