"""The change to the next version of the gateway, without a refused connection.

The supervisor starts the program again, with its own arguments, and hands over every listening socket and the shared
memory.  The new supervisor forks its workers.  Once all new workers are prepared, they accept from the same queues as
the old workers, and the old workers drain.  If the new supervisor ends before, nothing has changed: the new workers end
without touching the sockets.

Until the old workers drain, the two versions share each open socket and its state.  If one supervisor dies, the other
version continues to serve on these sockets.  A worker without a supervisor must therefore never make the kernel ignore
new connections (`gateway.server.sockets.accept_queued`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Final

from gateway.cli.supervisor.sockets import HandedSockets, ListeningSockets
from gateway.config.variables import HANDED_VARIABLE
from gateway.workers.control import ChannelEnd, Message
from gateway.workers.shared_memory import SharedMemory

_BOUND_S: Final = 120.0
"""The most seconds from the start of the next version until it serves."""
_END_S: Final = 1.0
"""A next version that has failed is killed if it has not ended within this number of seconds."""


class Upgrade:
    """The next version, from its start until it serves.  This object belongs to the version that has started it."""

    def __init__(
        self,
        sockets: ListeningSockets,
        shared: SharedMemory,
        peers: Sequence[str],
        secret: bytes,
        environ: Mapping[str, str],
        now: float,
        store_lock: int | None = None,
    ) -> None:
        """Start the next version.  Raises OSError.

        `peers` are the private admin sockets of this version's workers.  `secret` is the workers' secret.  It is sent
        over the channel, because other programs can show the environment of processes.  `store_lock` is the descriptor
        with the lock of the store on disk.
        """
        ours, theirs = socket.socketpair()
        described = sockets.described()
        handed = {
            "sockets": described,
            "memory": shared.descriptor,
            "places": [shared.first, shared.workers],
            "channel": theirs.fileno(),
            "peers": list(peers),
            "store_lock": store_lock,
        }
        passed = [fd for by_slot in described.values() for fds in by_slot for fd in fds]
        self.ends_at = now + _BOUND_S
        self.channel = ChannelEnd(ours)
        self.channel.send({"secret": secret.hex()})
        try:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**environ, HANDED_VARIABLE: json.dumps(handed)},
                pass_fds=[*passed, shared.descriptor, theirs.fileno(), *([] if store_lock is None else [store_lock])],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.has_failed = False
        """Whether the next version has reported that it cannot start, or has closed its channel."""
        self._report = ""
        self.reloads = 0
        """The number of reloads that were requested before the start of the next version.  The next version reads the
        configuration after these requests, so it needs no reload for them."""

    def __repr__(self) -> str:
        return f"<Upgrade to process {self.pid}>"

    def fails(self, now: float, why: str) -> None:
        """Record that the next version will not serve.  `why` is its own report, and is empty if it has closed its
        channel without a report.  Its process should end by itself within `_END_S`."""
        self.channel.close()
        self.has_failed, self._report, self.ends_at = True, why, now + _END_S

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended.  Does not wait for its end, because a process that waits for a disk may not
        end even when it is killed."""
        return self._process.poll() is not None

    def failure(self, now: float) -> str:
        """Return why the next version has to be given up; empty if there is no reason."""
        if self.ends_at > now and not (self.has_failed and self.has_ended):
            return ""
        if not self.has_failed:
            return "not upgraded: the next version does not serve in time"
        why, status = self._report or "it has closed its channel", self._process.returncode
        if not self._report and status is not None:
            why = f"it ended with status {status}" if status >= 0 else f"it was ended by {signal.Signals(-status).name}"
        return f"not upgraded, all stays as it was: the next version does not start: {why}"

    def give_up(self) -> None:
        """Kill the next version, without waiting for its end."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self.channel.close()

    def release(self) -> None:
        """Stop watching the next version, because it serves."""
        self.channel.close()
        # This process ends before the next version does.  Set an exit status, so that nothing waits for it.
        self._process.returncode = 0


class Predecessor:
    """The version that has started this version in an upgrade.  Without an upgrade, it has nothing to hand over."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the descriptors that the environment names, and remove the variable."""
        text = environ.pop(HANDED_VARIABLE, "")
        handed = json.loads(text) if text else {"sockets": {}}
        self.sockets = HandedSockets(handed["sockets"])
        self.peers: tuple[str, ...] = tuple(handed.get("peers", ()))
        """The private admin sockets of the workers of the previous version, and of earlier versions that had not ended
        at the start of this version."""
        self._memory: int | None = handed.get("memory")
        self._places: list[int] = handed.get("places", [0, 0])
        """The first place of the previous version in the memory, and the number of its places."""
        self._store_lock: int | None = handed.get("store_lock")
        self.secret = os.urandom(32)
        """The workers' secret.  In an upgrade, it is the secret of the previous version, so that both versions compute
        the same ids of streams."""
        if self._store_lock is not None:
            os.set_inheritable(self._store_lock, False)
        self._channel: ChannelEnd | None = None
        if (fd := handed.get("channel")) is not None:
            sock = socket.socket(fileno=fd)
            sock.set_inheritable(False)
            self._channel = ChannelEnd(sock)
            for message in self._channel.receive() or ():
                self.secret = bytes.fromhex(message["secret"])

    @property
    def goes_on(self) -> bool:
        """Whether the previous version serves, because this version has not yet reported that it serves itself."""
        return self._channel is not None

    @property
    def shared(self) -> tuple[str, ...]:
        """The addresses at which the previous version accepts connections too.  Until this version reports that it
        serves, these are all addresses that this version has taken over.  Later there are none."""
        return tuple(self.sockets.taken) if self.goes_on else ()

    def take_store_lock(self) -> int | None:
        """Return the descriptor with the lock of the previous version's store on disk; None if there is none.  From now
        on, the caller owns the descriptor."""
        lock, self._store_lock = self._store_lock, None
        return lock

    def shared_memory(self, workers: int, secret: bytes | None) -> SharedMemory:
        """Return the memory of the previous version, to be shared by both versions.  If its layout or its key of the
        path hash does not fit, return a new memory.

        `secret` is the key that the path hash must have.  With None, any key is accepted.
        """
        shared = None
        if self._memory is not None:
            os.set_inheritable(self._memory, False)
            shared = SharedMemory.attach(self._memory, workers, secret, self._places)
            if shared is None:
                os.close(self._memory)
        shared = shared or SharedMemory.create(workers, secret)
        shared.counts_writes = secret is not None
        return shared

    def tell(self, message: Message) -> None:
        """Send a message to the previous version, which waits for one message, and close the channel."""
        if self._channel is not None:
            self._channel.send(message)
        self.close()

    def close(self) -> None:
        """Close the channel and the descriptors that were not taken over.  A worker calls this at its start, because it
        reports nothing to the previous version."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if (lock := self.take_store_lock()) is not None:
            os.close(lock)
        self.sockets.close_rest()
