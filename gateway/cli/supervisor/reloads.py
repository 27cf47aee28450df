"""Owner of the configuration: which one each worker runs with.

The configurations are numbered.  A reload is a round: one process reads the configuration (`reading`), the supervisor
gives it the next number, and offers the same configuration to all workers.  Whoever asks for a reload, by SIGHUP or at
the admin port of any worker, asks for a round.  Requests that arrive during a round get one further round, because the
file may have changed since it was read.

The configuration in effect is the latest one that a worker has taken.  An offer comes into effect when the first worker
takes it.  An offer that all workers refuse, or at which all end, never does: each worker that starts later runs with
what the others have.  An offer without an answer stays open until the next one, because a late worker may still take
it.

A worker begins with the configuration in effect.  If there is a later one, or an open offer in a round, when the worker
is prepared, it takes that one before it may accept connections (`slots.may_accept`).  No client therefore meets rules
that a completed reload has replaced.  A worker that serves and does not take a configuration goes on with its own, and
the outcome says so.

A round ends in bounded time, whatever a disk or a worker does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

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

    def reloaded_late(self, outcome: str) -> None:
        """Called with what a worker has said after the end of its round, in one line."""


class _Numbered(NamedTuple):
    """A configuration that workers can be handed."""

    config: GatewayConfig
    number: int
    memory: int | None
    """The open file that they read; None for the configuration that the gateway has started with."""

    def close(self) -> None:
        if self.memory is not None:
            os.close(self.memory)


class Reloads:
    """The configuration in effect, the offered one, and the reloads."""

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
        self._in_effect = _Numbered(config, 0, None)
        self._offer: _Numbered | None = None
        """The latest configuration, as long as no worker has taken it, but one may."""
        self._latest = 0
        """The number of the latest offer."""
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
        """When the workers have to have taken the offer; None if none is to take one in a round."""
        self._unreaped: list[int] = []
        """Readers that have been given up and may still run."""
        self._is_open = False
        self._why_closed = ""

    def __repr__(self) -> str:
        return f"<Reloads: configuration {self.number}, {self._round or 'no round'}, {len(self._waiting)} waiting>"

    @property
    def config(self) -> GatewayConfig:
        """The configuration in effect, with which workers begin."""
        return self._in_effect.config

    @property
    def number(self) -> int:
        """The number of `config`."""
        return self._in_effect.number

    @property
    def needed(self) -> int:
        """The number of the configuration that a worker needs before it may accept connections."""
        return self.number if (offer := self._offer_of_round) is None else offer.number

    @property
    def _offer_of_round(self) -> _Numbered | None:
        """The offer that the workers are to take in this round, as long as none has."""
        return self._offer if self._taken_by is not None else None

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
        for one in (self._in_effect, self._offer):
            if one is not None:
                one.close()

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
        slot.configuration = slot.handed = self.number

    def prepares(self, slot: Slot) -> None:
        """Hand the configuration to a worker that has prepared itself with an earlier one.

        If no worker has taken the offer of a round yet, this one takes part in the round.  It can neither accept with a
        configuration that the round replaces, nor fail because of one that all others refuse.
        """
        if (offer := self._offer_of_round) is not None and self._round is not None:
            self._round.joins(slot.number)
            self._hand(slot, offer)
        elif slot.configuration < self.number:
            self._hand(slot, self._in_effect)
        else:
            return
        slot.hangs_at = self._now() + START_S

    def hears(self, slot: Slot, message: Message) -> None:
        """Note what a worker says of a configuration that it was handed."""
        number = message["number"]
        outcome = Outcome(tuple(message["changed"]), tuple(message["needs_restart"]), message["error"])
        is_in_time = number == self._latest and self._round is not None and self._round.hears(slot.number, outcome)
        if not outcome.error:
            slot.configuration = max(slot.configuration, number)
            if self._offer is not None and number == self._offer.number:
                self._bring_into_effect(self._offer)
        if number == self.number and not slot.is_accepting:
            if outcome.error:
                self._replace(slot, outcome.error)
            else:
                slot.hangs_at = None
        if is_in_time:
            self._end_round()
        elif number == self._latest and slot.is_accepting:
            self._announcer.reloaded_late(f"worker {slot.number}, late: {outcome.text(has_file=self._has_file)}")

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
            self._round.ends_without_the_rest(TAKE_S)
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
        memory = found.error or _memory_with(found.pickled)
        if isinstance(memory, str):
            for slot in slots:
                self._workers.tell(slot, "configuration refused")
            self._round.is_read(Outcome(error=memory), ())
        else:
            change = config_change(self.config, found.config())
            if self._offer is not None:
                self._offer.close()
            self._latest += 1
            self._offer = _Numbered(change.config, self._latest, memory)
            self._round.is_read(Outcome(change.changed, change.needs_restart), [slot.number for slot in slots])
            self._taken_by = self._now() + TAKE_S
            for slot in slots:
                self._hand(slot, self._offer)
        self._end_round()

    def _hand(self, slot: Slot, numbered: _Numbered) -> None:
        slot.handed = numbered.number
        self._workers.tell(slot, "configuration", numbered.memory, number=numbered.number)

    def _bring_into_effect(self, offer: _Numbered) -> None:
        self._in_effect.close()
        self._in_effect, self._offer = offer, None
        refusals = self._round.refusals if self._round is not None else {}
        for slot in self._workers.slots:
            if slot.number in refusals and not slot.is_accepting:
                self._replace(slot, refusals[slot.number])
            elif slot.is_prepared and slot.handed < offer.number:
                # It has been admitted between the end of the round and the answer of a late worker.
                self._hand(slot, offer)

    def _replace(self, slot: Slot, why: str) -> None:
        """End a worker that may not accept, because it cannot take the configuration in effect.  The next one begins
        with it."""
        slot.failure = {"text": why, "is_misuse": False}
        self._workers.kill([slot])

    def _end_round(self) -> None:
        """Tell the outcome of the round, once it is over, and begin the next one."""
        ended = self._round
        if ended is None or not ended.is_over:
            return
        self._round, self._taken_by = None, None
        outcome = ended.outcome()
        if self._offer is not None and not outcome.error:
            # There is no worker that could have taken it.
            self._bring_into_effect(self._offer)
        for slot in self._workers.slots:
            if slot.is_prepared and slot.configuration >= self.number:
                slot.hangs_at = None
        self._answer(ended.askers, outcome)
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


def _memory_with(pickled: bytes) -> int | str:
    """Write a configuration into an open file that workers can read.  Returns the file, or why there can be none."""
    try:
        memory = os.memfd_create("durable-gateway-configuration")
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(pickled)
    except OSError as error:
        return f"the configuration cannot be handed to the workers: {error.strerror}"
    return memory
