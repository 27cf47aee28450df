"""Forks the workers' processes, receives their messages, and acts on their ends."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Never

from gateway.cli.supervisor.slots import Slot, end_of
from gateway.workers.control import ChannelEnd, Control, Message
from gateway.workers.shared_counts import SharedCounts
from gateway.workers.shared_memory import SharedMemory, SlotState
from gateway.workers.shared_origins import SharedOrigins
from gateway.workers.write_log import WriteLog

Run = Callable[[Slot, Control], int]
"""Runs a worker in the process that has been forked for it, and returns the exit status."""


class Workers:
    """The slots and their processes.

    `hear` is called with each message of a worker.  `ended` is called with a description when a worker has ended or
    could not be forked.  Only this class writes the slots' states into the shared memory.
    """

    def __init__(
        self,
        count: int,
        shared: SharedMemory,
        selector: selectors.BaseSelector,
        now: Callable[[], float],
        hear: Callable[[Slot, Message], None],
        ended: Callable[[Slot, str], None],
    ) -> None:
        self.slots = [Slot(number) for number in range(count)]
        self.shared = shared
        self._selector = selector
        self._now = now
        self._hear = hear
        self._ended = ended

    def __repr__(self) -> str:
        return f"<Workers {sum(bool(slot.pid) for slot in self.slots)} of {len(self.slots)} run>"

    def __bool__(self) -> bool:
        """Whether any worker runs."""
        return any(slot.pid for slot in self.slots)

    def fork(self, slot: Slot, run: Run) -> None:
        """Start a worker in a slot."""
        slot.begins(self._now())
        self.shared.set_slot(slot.number, SlotState.STARTING, slot.generation, 0)
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            self._end(slot, f"cannot be forked: {error.strerror}")
            return
        if pid == 0:
            ours.close()
            self._become(slot, theirs, run)
        theirs.close()
        slot.pid, slot.channel = pid, ChannelEnd(ours, partial(self._watch, slot, ours))
        self.shared.set_slot(slot.number, SlotState.STARTING, slot.generation, pid)
        self._selector.register(ours, selectors.EVENT_READ, partial(self._attend, slot))

    def _watch(self, slot: Slot, sock: socket.socket, is_waiting: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_waiting else 0)
        self._selector.modify(sock, events, partial(self._attend, slot))

    def _attend(self, slot: Slot) -> None:
        """Read a worker's messages, and send the messages that wait for room in the channel."""
        if slot.channel is not None:
            slot.channel.flush()
        self._read(slot)

    def _become(self, slot: Slot, sock: socket.socket, run: Run) -> Never:
        """Run the worker of a slot in the process just forked, and end the process."""
        status = 1
        try:
            self.shared.record_process(slot.number)
            # If a worker held the supervisor's end of another worker's channel, that worker would not notice the
            # supervisor's end.
            for other in self.slots:
                if other.channel is not None:
                    other.channel.close()
            status = run(slot, Control(sock))
        except BaseException:
            traceback.print_exc()
        finally:
            # This process must not continue to run the supervisor's code.
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def admit(self, slot: Slot) -> None:
        """Allow a slot's worker to accept connections and own streams.  Does nothing if this is already allowed, or if
        the worker has to end."""
        if self.shared.state(slot.number) is SlotState.STARTING:
            self.shared.set_slot(slot.number, SlotState.SERVING, slot.generation, slot.pid)
            slot.is_accepting = True
            self.tell(slot, "accept")

    def drains(self, slot: Slot) -> None:
        """Record that a slot's worker drains."""
        self.shared.set_slot(slot.number, SlotState.DRAINING, slot.generation, slot.pid)

    def reap(self) -> None:
        """Act on the end of each worker that has ended.  Called at SIGCHLD."""
        for slot in self.slots:
            if slot.pid:
                pid, status = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    self._read(slot)
                    self._close_channel(slot)
                    self._end(slot, end_of(status))

    def _end(self, slot: Slot, how: str) -> None:
        self._settle(slot.number, slot.generation)
        self._ended(slot, how)

    def _settle(self, number: int, generation: int) -> None:
        self.shared.set_slot(number, SlotState.DEAD, generation, 0)
        # The worker's writes under way will never be answered, and its counts of clients no longer hold.
        WriteLog(self.shared, number, self._now).settle(number)
        SharedCounts(self.shared, number).clear()
        SharedOrigins(self.shared, number).clear()

    def settle_left(self) -> None:
        """Record the ends of other versions' workers that their own supervisor has not recorded, because it was killed
        or has failed.  The next version can then take their places."""
        for number in self.shared.left_slots():
            self._settle(number, self.shared.generation(number))

    def kill(self, slots: Iterable[Slot] | None = None) -> None:
        """End the workers of these slots, or all workers, by SIGKILL."""
        for slot in self.slots if slots is None else slots:
            if slot.pid:
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)

    def tell(self, slot: Slot, kind: str, descriptor: int | None = None, **fields: object) -> bool:
        """Send a message to a slot's worker, if there is one.  Returns False if the message is lost."""
        return slot.channel is not None and slot.channel.send({"kind": kind, **fields}, descriptor)

    def _read(self, slot: Slot) -> None:
        """Read a worker's messages."""
        messages = slot.channel.receive() if slot.channel is not None else []
        if messages is None:
            # The worker is about to end, which SIGCHLD reports.
            self._close_channel(slot)
            return
        for message in messages:
            self._hear(slot, message)

    def _close_channel(self, slot: Slot) -> None:
        if slot.channel is not None:
            self._selector.unregister(slot.channel.sock)
            slot.channel.close()
            slot.channel = None

    def close(self) -> None:
        """Close all channels."""
        for slot in self.slots:
            self._close_channel(slot)
