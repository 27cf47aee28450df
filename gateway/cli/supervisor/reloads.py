"""Owner of the configuration: which one each worker runs with.

The configurations are numbered.  A reload is a round: one process reads the configuration (`reading`), the supervisor
takes it and gives it the next number, and all workers get the same configuration from the supervisor.  Whoever asks
for a reload, by SIGHUP or at the admin port of any worker, asks for a round.  Requests that arrive during a round get
one further round, because the file may have changed since it was read.

A worker begins with the supervisor's configuration of that moment.  If a later one has been taken while the worker
started, the worker takes that one before it may accept connections (`slots.may_accept`).  No client therefore meets
rules that a completed reload has replaced.  A worker that serves and does not take a configuration goes on with its
own, and the outcome says so.

A round ends in bounded time, whatever a disk or a worker does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.reading import Found, Reading, cannot_fork
from gateway.cli.supervisor.reload_round import Asker, Outcome, ReloadRound
from gateway.cli.supervisor.slots import START_S, Slot
from gateway.config.change import change as config_change
from gateway.config.gateway import GatewayConfig
from gateway.workers.control import Message

TAKE_S: Final = 12.0
"""The longest wait for the workers: a worker itself waits for 10 s for the files that the configuration names."""

StartReading = Callable[[GatewayConfig, Callable[[Found], None]], Reading]
"""Starts to read a configuration next to the given one.  Raises OSError."""


class Announcer(Protocol):
    """Hears of the rounds that a SIGHUP has asked for."""

    def reloading(self) -> None:
        """Called when a round begins."""

    def reloaded(self, outcome: str) -> None:
        """Called with the outcome in one line."""


class Reloads:
    """The configuration in effect, and the reloads."""

    def __init__(
        self,
        config: GatewayConfig,
        workers: Workers,
        now: Callable[[], float],
        start_reading: StartReading,
        announcer: Announcer,
        *,
        has_file: bool,
    ) -> None:
        self.config = config
        """The configuration that workers begin with."""
        self.number = 0
        """The number of `config`."""
        self.requests = 0
        """How many reloads have been asked for."""
        self._workers = workers
        self._now = now
        self._start_reading = start_reading
        self._announcer = announcer
        self._has_file = has_file
        self._waiting: list[Asker | None] = []
        """Who has asked for the next round; None for a SIGHUP."""
        self._round: ReloadRound | None = None
        self._reading: Reading | None = None
        self._taken_by: float | None = None
        """When the workers have to have taken the configuration; None if none is to take one."""
        self._memory: int | None = None
        """The open file that hands `config` to the workers; None for the one that the gateway has started with."""
        self._unreaped: list[int] = []
        """Readers that have been given up and may still run."""
        self._is_open = False
        self._why_closed = ""

    def __repr__(self) -> str:
        return f"<Reloads: configuration {self.number}, {self._round or 'no round'}, {len(self._waiting)} waiting>"

    def open(self) -> None:
        """Begin rounds from now on: the gateway serves."""
        self._is_open = True
        self._begin()

    def close(self, why: str) -> None:
        """Begin no more rounds: the gateway drains."""
        self._is_open, self._why_closed = False, why
        waiting, self._waiting = self._waiting, []
        self._answer(waiting, Outcome(error=why, is_temporary=True))

    def end(self) -> None:
        """End the process that reads, and close the files: the supervisor ends."""
        if self._reading is not None:
            self._reading.give_up()
            self._reading = None
        self.close_files()

    def close_files(self) -> None:
        """Close the files, in a worker that has just been forked or at the end."""
        if self._reading is not None:
            self._reading.close()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    @property
    def ends_at(self) -> float | None:
        """When the reading or the wait for the workers has taken too long."""
        return self._reading.ends_at if self._reading is not None else self._taken_by

    def ask(self, asker: Asker | None = None) -> None:
        """Ask for a reload, for a client of a worker's admin port, or for a SIGHUP."""
        self.requests += 1
        if self._why_closed:
            self._answer([asker], Outcome(error=self._why_closed, is_temporary=True))
            return
        self._waiting.append(asker)
        self._begin()

    def begins(self, slot: Slot) -> None:
        """Note that a worker begins in this slot."""
        slot.configuration = self.number

    def prepares(self, slot: Slot) -> None:
        """Hand the configuration to a worker that has prepared itself with an earlier one."""
        if slot.configuration < self.number:
            slot.hangs_at = self._now() + START_S
            self._hand(slot)

    def hears(self, slot: Slot, message: Message) -> None:
        """Note what a worker says of a configuration that it was handed."""
        outcome = Outcome(tuple(message["changed"]), tuple(message["needs_restart"]), message["error"])
        if not outcome.error:
            slot.configuration = max(slot.configuration, message["number"])
        is_latest = message["number"] == self.number
        if is_latest and not slot.is_accepting:
            if outcome.error:
                # The next worker begins with the configuration.
                slot.failure = {"text": outcome.error, "is_misuse": False}
                self._workers.kill([slot])
            else:
                slot.hangs_at = None
        if is_latest and self._round is not None:
            self._round.hears(slot.number, outcome)
            self._end_round()

    def loses(self, slot: Slot) -> None:
        """Note that a slot's worker has ended."""
        if self._round is not None:
            self._round.loses(slot.number)
            self._end_round()

    def look(self) -> None:
        """End what has taken too long.  Called at `ends_at` or later."""
        now = self._now()
        if self._reading is not None and self._reading.ends_at <= now:
            if (pid := self._reading.give_up()) is not None:
                self._unreaped.append(pid)
            self._has_read(self._reading.too_late())
        elif self._round is not None and self._taken_by is not None and self._taken_by <= now:
            self._round.ends_without_the_rest()
            self._end_round()

    def _begin(self) -> None:
        """Begin a round, if one is asked for and none is under way."""
        if not self._is_open or self._round is not None or not self._waiting:
            return
        self._round, self._waiting = ReloadRound(self._waiting), []
        if self._round.is_hung_up:
            self._announcer.reloading()
        with suppress(ChildProcessError):
            self._unreaped = [pid for pid in self._unreaped if not os.waitpid(pid, os.WNOHANG)[0]]
        try:
            self._reading = self._start_reading(self.config, self._has_read)
        except OSError as error:
            self._has_read(cannot_fork(error))

    def _has_read(self, found: Found) -> None:
        """Have the workers take the configuration that has been read."""
        self._reading = None
        if self._round is None:
            return
        slots = [slot for slot in self._workers.slots if slot.is_prepared]
        if error := found.error or self._keep(found.pickled):
            for slot in slots:
                self._workers.tell(slot, "configuration refused")
            self._round.is_read(Outcome(error=error), ())
        else:
            change = config_change(self.config, found.config())
            self.config = change.config
            self.number += 1
            self._round.is_read(Outcome(change.changed, change.needs_restart), [slot.number for slot in slots])
            self._taken_by = self._now() + TAKE_S
            for slot in slots:
                self._hand(slot)
        self._end_round()

    def _keep(self, pickled: bytes) -> str:
        """Write the configuration into an open file that workers can read.  Returns why this fails; empty if it does
        not."""
        try:
            memory = os.memfd_create("durable-gateway-configuration")
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(pickled)
        except OSError as error:
            return f"the configuration cannot be handed to the workers: {error.strerror}"
        if self._memory is not None:
            os.close(self._memory)
        self._memory = memory
        return ""

    def _hand(self, slot: Slot) -> None:
        self._workers.tell(slot, "configuration", self._memory, number=self.number)

    def _end_round(self) -> None:
        """Tell the outcome of the round, once it is over, and begin the next one."""
        ended = self._round
        if ended is None or not ended.is_over:
            return
        self._round, self._taken_by = None, None
        self._answer(ended.askers, ended.outcome())
        if ended.is_hung_up:
            self._announcer.reloaded(ended.text(has_file=self._has_file))
        self._begin()

    def _answer(self, askers: list[Asker] | list[Asker | None], outcome: Outcome) -> None:
        slots = self._workers.slots
        for one in askers:
            if one is not None and slots[one.slot].generation == one.generation:
                self._workers.tell(
                    slots[one.slot],
                    "answer",
                    request=one.request,
                    changed=outcome.changed,
                    needs_restart=outcome.needs_restart,
                    error=outcome.error,
                    is_temporary=outcome.is_temporary,
                )
