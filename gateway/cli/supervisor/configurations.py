"""Decides which configuration each worker runs with, and makes the reloads.

Configurations are numbered.  A reload is a *round*: a process reads the configuration (`configuration_reading`), the
supervisor gives the configuration the next number, and offers it to all workers.  A SIGHUP requests a round, and so
does a request to the admin port of any worker.  Requests that arrive during a round are answered by the next round,
because the file may have changed since it was read.

An offer comes into effect when the first worker takes it, unless a later offer is in effect.  An offer never comes into
effect if all workers refuse it, or if all workers end before they take it.  An offer stays open until each worker has
answered it, even after the end of the round, because a late worker may still take it.  A worker takes configurations in
the sequence in which the supervisor sends them.

A worker starts with the configuration in effect.  If a later configuration comes into effect, or is offered, before the
worker accepts connections, the worker has to take the later configuration first (`slots.may_accept`).  Therefore, no
client is served by rules that a completed reload has replaced.  If a worker that serves refuses a configuration, it
keeps its earlier configuration, and the outcome of the round reports this.

A round ends in bounded time, even if a disk or a worker hangs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from gateway.cli.supervisor.configuration_reading import Found, Reading, cannot_fork
from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.reload_round import Asker, Outcome, ReloadRound
from gateway.cli.supervisor.slots import START_S, Slot
from gateway.config.change import change as config_change
from gateway.config.gateway import GatewayConfig
from gateway.workers.control import Message

TAKE_S: Final = 12.0
"""The most seconds for which a round waits for the workers.  A worker itself waits at most 10 s for the files that the
configuration names."""
_AGAIN_S: Final = 1.0
"""Seconds until a configuration that could not be sent to a worker is sent again."""
_MOST_OFFERS: Final = 16
"""The most open offers.  The number is limited because each offer has an open file."""

StartReading = Callable[[GatewayConfig, Callable[[Found], None]], Reading]
"""Starts to read the configuration again.  The first argument is the configuration in effect.  Raises OSError."""


class Announcer(Protocol):
    """Reports the beginnings and outcomes of the rounds that a SIGHUP has requested."""

    def reloading(self) -> None:
        """Called when a round begins."""

    def reloaded(self, outcome: str) -> None:
        """Called with the outcome in one line."""

    def reloaded_late(self, outcome: str) -> None:
        """Called with the late answer of a worker, in one line.  An answer is late if its round has already ended."""


class _Offer:
    """A configuration that is offered to workers, and the workers' answers."""

    def __init__(self, config: GatewayConfig, number: int, memory: int | None) -> None:
        self.config = config
        self.number = number
        self.memory = memory
        """The open file from which workers read the configuration; None for the configuration with which the gateway
        has started."""
        self.unanswered: set[int] = set()
        """The slots whose workers have got the offer and have not answered yet."""
        self.refusals: dict[int, str] = {}
        """Why workers have refused the configuration, by slot."""

    def hears(self, slot: int, error: str) -> None:
        """Record a worker's answer.  `error` is empty if the worker has taken the configuration."""
        self.unanswered.discard(slot)
        if error:
            self.refusals[slot] = error

    def loses(self, slot: int) -> None:
        """Forget the answer of a slot's worker, because the worker has ended."""
        self.unanswered.discard(slot)
        self.refusals.pop(slot, None)

    def close(self) -> None:
        if self.memory is not None:
            os.close(self.memory)


class Configurations:
    """Owner of the configuration in effect, of the open offers, and of the round under way."""

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
        self._in_effect = _Offer(config, 0, None)
        self._offers: dict[int, _Offer] = {}
        """The open offers by their numbers.  All numbers are above the number of the configuration in effect."""
        self._latest = 0
        """The number of the latest offer."""
        self.reloads = 0
        """The number of requests for reloads so far."""
        self._workers = workers
        self._now = now
        self._start_reading = start_reading
        self._announcer = announcer
        self._has_file = has_file
        self._waiting: list[Asker | None] = []
        """The requests for the next round.  None among them means a SIGHUP."""
        self._round: ReloadRound | None = None
        self._reading: Reading | None = None
        self._taken_by: float | None = None
        """The time at which the round stops waiting for workers to take its offer; None if no round waits for
        workers."""
        self._again_at: float | None = None
        """The time at which to send again each configuration that could not be sent; None if all were sent."""
        self._unreaped: list[int] = []
        """The pids of the reading processes that were given up and have not been reaped."""
        self._is_open = False
        self._why_closed = ""

    def __repr__(self) -> str:
        return f"<Configurations: number {self.number}, {self._round or 'no round'}, {len(self._waiting)} waiting>"

    @property
    def config(self) -> GatewayConfig:
        """The configuration in effect.  New workers start with it."""
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
    def _offer_of_round(self) -> _Offer | None:
        """The offer of the round that waits for workers; None once a worker has taken this offer, or if no round waits
        for workers."""
        return self._offers.get(self._latest) if self._taken_by is not None else None

    def open(self) -> None:
        """Allow rounds from now on, because the gateway serves."""
        self._is_open = True
        self._begin()

    def close(self, why: str) -> None:
        """Begin no further round, because the gateway drains.  `why` is the answer to requests for a reload."""
        self._is_open, self._why_closed = False, why
        waiting, self._waiting = self._waiting, []
        self._answer(waiting, Outcome(error=why, is_temporary=True))

    def end(self) -> None:
        """End the process that reads the configuration, and close the files, because the supervisor ends."""
        if self._reading is not None:
            self._reading.give_up()
            self._reading = None
        self.close_files()

    def close_files(self) -> None:
        """Close the files.  Called in a worker that has just been forked, and at the end of the supervisor."""
        if self._reading is not None:
            self._reading.close()
        for one in (self._in_effect, *self._offers.values()):
            one.close()

    @property
    def ends_at(self) -> float | None:
        """The time at which to call `look`.  Then the reading or the wait for the workers has taken too long, or a
        configuration has to be sent again."""
        end = self._reading.ends_at if self._reading is not None else self._taken_by
        return min((at for at in (end, self._again_at) if at is not None), default=None)

    def ask_reload(self, asker: Asker | None = None) -> None:
        """Request a reload.  `asker` is the request of a client of a worker's admin port; None for a SIGHUP."""
        self.reloads += 1
        if self._why_closed:
            self._answer([asker], Outcome(error=self._why_closed, is_temporary=True))
            return
        self._waiting.append(asker)
        self._begin()

    def begins(self, slot: Slot) -> None:
        """Record that a worker starts in this slot."""
        slot.configuration = self.number

    def prepares(self, slot: Slot) -> None:
        """Offer the latest configuration to a worker that has just become ready to accept connections.

        If the round waits and no worker has taken its offer yet, this worker takes part in the round.  It then does not
        accept connections with a configuration that the round replaces.  If all workers refuse the offer, this worker
        runs with the configuration in effect, like the other workers.
        """
        if (offer := self._offer_of_round) is not None and self._round is not None:
            self._round.joins(slot.number)
            self._hand(slot, offer)
        self._settle()

    def hears(self, slot: Slot, message: Message) -> None:
        """Record a worker's answer to a configuration that was sent to it."""
        number = message["number"]
        outcome = Outcome(
            tuple(message["changed"]), tuple(message["needs_restart"]), message["error"], message["is_temporary"]
        )
        is_in_time = number == self._latest and self._round is not None and self._round.hears(slot.number, outcome)
        for one in (self._in_effect, *self._offers.values()):
            if one.number == number:
                one.hears(slot.number, outcome.error)
        # The worker has answered, so it does not hang.  If it has to take a further configuration, `_settle` sets a new
        # time limit.
        slot.hangs_at = None
        if not outcome.error:
            slot.configuration = max(slot.configuration, number)
            self._bring_into_effect(number)
        if is_in_time:
            self._end_round()
        elif slot.is_accepting:
            self._announcer.reloaded_late(f"worker {slot.number}, late: {outcome.text(has_file=self._has_file)}")
        self._settle()

    def loses(self, slot: Slot) -> None:
        """Record that a slot's worker has ended."""
        for one in (self._in_effect, *self._offers.values()):
            one.loses(slot.number)
        if self._round is not None:
            self._round.loses(slot.number)
            self._end_round()
        self._settle()

    def look(self) -> None:
        """End the reading or the wait for the workers, if it has taken too long.  Send again the configurations that
        could not be sent.  Called at `ends_at` or later."""
        now = self._now()
        if self._reading is not None:
            self._reading.look()
        if self._again_at is not None and self._again_at <= now:
            self._again_at = None
            self._settle()
        if self._reading is not None and self._reading.ends_at <= now:
            if (pid := self._reading.give_up()) is not None:
                self._unreaped.append(pid)
            self._has_read(self._reading.too_late())
        elif self._round is not None and self._taken_by is not None and self._taken_by <= now:
            self._round.ends_without_the_rest(TAKE_S)
            self._end_round()
            self._settle()

    def _begin(self) -> None:
        """Begin a round if there are requests for a reload and no round is under way."""
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
        """Offer the configuration that has been read to the workers.  If it could not be read, report this."""
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
            self._latest += 1
            offer = self._offers[self._latest] = _Offer(change.config, self._latest, memory)
            self._round.is_read(Outcome(change.changed, change.needs_restart), [slot.number for slot in slots])
            self._taken_by = self._now() + TAKE_S
            for slot in slots:
                self._hand(slot, offer)
        self._end_round()
        self._settle()

    def _hand(self, slot: Slot, offer: _Offer) -> None:
        """Send an offer to a worker.  If the worker's channel has no room, the offer is sent again later
        (`_settle_one`), and no answer is expected before."""
        if self._workers.tell(slot, "configuration", offer.memory, number=offer.number):
            offer.unanswered.add(slot.number)
        elif self._again_at is None:
            self._again_at = self._now() + _AGAIN_S

    def _bring_into_effect(self, number: int) -> None:
        """Bring an open offer into effect, because a worker has taken it.  Earlier offers can then no longer come into
        effect.

        The offer may belong to an earlier round.  It is replaced when a worker takes the offer of a later round.
        """
        if number in self._offers:
            self._in_effect.close()
            self._in_effect = self._offers.pop(number)

    def _settle(self) -> None:
        """Send the configuration in effect to the workers that have not taken it, or end these workers.  Close the
        offers that no worker can take any more.  Called after each event."""
        offers, number = self._offers, self.number
        of_round = self._offer_of_round
        kept = [one for one in offers.values() if one.number > number and (one.unanswered or one is of_round)]
        self._offers = {one.number: one for one in kept[-_MOST_OFFERS:]}
        for one in offers.values():
            if one.number not in self._offers:
                one.close()
        if self._why_closed:
            # The workers drain.
            return
        for slot in self._workers.slots:
            if slot.is_prepared and slot.failure is None:
                self._settle_one(slot)

    def _settle_one(self, slot: Slot) -> None:
        current = self._in_effect
        # If the worker has got a later configuration, wait for its answer.  If the configuration in effect were sent
        # meanwhile, the worker would first take the later configuration, and then return to the earlier one.
        has_later = any(slot.number in one.unanswered for one in self._offers.values())
        if slot.configuration < current.number and not has_later:
            why = current.refusals.get(slot.number)
            if why is not None and not slot.is_accepting:
                self._replace(slot, why)
            elif why is None and slot.number not in current.unanswered:
                self._hand(slot, current)
        offer = self._offer_of_round
        is_awaited = self._round is not None and self._round.awaits(slot.number)
        if offer is not None and is_awaited and slot.number not in offer.unanswered:
            self._hand(slot, offer)
        if slot.is_accepting or slot.configuration >= self.needed:
            slot.hangs_at = None
        elif slot.hangs_at is None:
            slot.hangs_at = self._now() + START_S

    def _replace(self, slot: Slot, why: str) -> None:
        """End a worker that has refused the configuration in effect and therefore may not accept connections.  The
        slot's next worker starts with this configuration."""
        slot.failure = {"text": why, "is_misuse": False}
        self._workers.kill([slot])

    def _end_round(self) -> None:
        """Report the outcome of the round once the round is over, and begin the next round."""
        ended = self._round
        if ended is None or not ended.is_over:
            return
        self._round, self._taken_by = None, None
        outcome = ended.outcome()
        if not outcome.error:
            # If no worker runs, no answer has brought the offer into effect.
            self._bring_into_effect(self._latest)
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
    """Write a configuration to a new memory file, which workers can read.  Returns the file's descriptor, or the reason
    why the file could not be written."""
    try:
        memory = os.memfd_create("durable-gateway-configuration")
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(pickled)
    except OSError as error:
        return f"the configuration cannot be handed to the workers: {error.strerror}"
    return memory
