"""One reload at all workers: the requests for the reload, the outcome at each worker, and the overall outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from gateway.cli.reloading import has_reloaded, not_reloaded


class Asker(NamedTuple):
    """A request for a reload, made by a client of a worker's admin port."""

    slot: int
    generation: int
    """The serial number of the asking worker among the workers of its slot.  A later worker of the slot gets no answer
    to this request."""
    request: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reload at one worker, or at all workers together."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    error: str = ""
    """Why the configuration has not been taken; empty if it was taken."""
    is_temporary: bool = False
    """Whether a later request may succeed with the same configuration.  This is so if only some workers have taken it,
    if a late worker may still take it, if a worker could not read it or its files in time, or if the gateway stops."""

    def text(self, *, has_file: bool) -> str:
        """Return the outcome in one line."""
        if self.is_temporary:
            return f"not reloaded yet: {self.error}"
        if self.error:
            return not_reloaded(self.error)
        return has_reloaded(self.changed, self.needs_restart, has_file=has_file)


class ReloadRound:
    """A reload: first one process reads the configuration, then the workers take it.

    `askers` are the requests for the reload.  None among them means a SIGHUP.
    """

    def __init__(self, askers: Iterable[Asker | None]) -> None:
        self._asked = tuple(askers)
        self._read: Outcome | None = None
        """The outcome of reading; None until the configuration has been read."""
        self._outcomes: dict[int, Outcome | None] = {}
        """The outcome at each slot that takes part in the round; None until the slot's worker has answered."""

    def __repr__(self) -> str:
        return f"<ReloadRound {self._outcomes if self._read is not None else 'reads'}>"

    @property
    def askers(self) -> list[Asker]:
        """The requests that the outcome answers."""
        return [one for one in self._asked if one is not None]

    @property
    def is_hung_up(self) -> bool:
        """Whether a SIGHUP has requested the round."""
        return None in self._asked

    def is_read(self, outcome: Outcome, slots: Sequence[int]) -> None:
        """Record the outcome of reading, and the slots whose workers have to take the configuration."""
        self._read = outcome
        self._outcomes = dict.fromkeys(slots)

    def joins(self, slot: int) -> None:
        """Record that the worker of a further slot has to take the configuration."""
        self._outcomes[slot] = None

    def hears(self, slot: int, outcome: Outcome) -> bool:
        """Record the outcome at a slot.  Returns False if the slot takes no part in the round."""
        if slot not in self._outcomes:
            return False
        self._outcomes[slot] = outcome
        return True

    def awaits(self, slot: int) -> bool:
        """Return whether the answer of a slot's worker is still missing."""
        return slot in self._outcomes and self._outcomes[slot] is None

    def loses(self, slot: int) -> None:
        """Record that a slot's worker has ended.  If the worker had taken the configuration, its outcome is kept,
        because the slot's next worker starts with this configuration."""
        if slot not in self._outcomes or ((taken := self._outcomes[slot]) is not None and not taken.error):
            return
        del self._outcomes[slot]
        if not self._outcomes:
            # Report an error, because the configuration may have caused the end of all workers.
            self._read = Outcome(error="every worker has ended before it took the configuration")

    @property
    def refusals(self) -> dict[int, str]:
        """Why workers have not taken the configuration, by slot."""
        return {slot: one.error for slot, one in sorted(self._outcomes.items()) if one is not None and one.error}

    def ends_without_the_rest(self, within_s: float) -> None:
        """Record that the remaining workers have not answered within `within_s` seconds."""
        text = f"no answer within {within_s:g} s, and a late worker may still take the configuration"
        late = Outcome(error=text, is_temporary=True)
        self._outcomes = {slot: late if one is None else one for slot, one in self._outcomes.items()}

    @property
    def is_over(self) -> bool:
        """Whether the configuration has been read, and all workers that take part have answered."""
        return self._read is not None and None not in self._outcomes.values()

    def outcome(self) -> Outcome:
        """Return the overall outcome.  Call this only when the round is over."""
        assert self._read is not None
        found = {slot: one for slot, one in self._outcomes.items() if one is not None}
        errors = self.refusals
        if not errors:
            # If no worker runs, return the outcome of reading, because the next workers start with the configuration.
            every = list(found.values()) or [self._read]
            changed = dict.fromkeys(chain.from_iterable(one.changed for one in every))
            waiting = dict.fromkeys(chain.from_iterable(one.needs_restart for one in every))
            return Outcome(tuple(changed), tuple(waiting), self._read.error)
        reasons = "; ".join(f"worker {slot}: {error}" for slot, error in errors.items())
        if len(errors) == len(found):
            texts = {*errors.values()}
            text = texts.pop() if len(texts) == 1 else reasons
            return Outcome(error=text, is_temporary=any(one.is_temporary for one in found.values()))
        done = ", ".join(str(slot) for slot in sorted(found) if slot not in errors)
        text = f"not done by all workers: {reasons}; done by {done}, and by workers that start from now on"
        return Outcome(error=text, is_temporary=True)

    def text(self, *, has_file: bool) -> str:
        """Return the outcome in one line.  If the outcomes of the workers differ, the line has each of them."""
        texts = {slot: one.text(has_file=has_file) for slot, one in self._outcomes.items() if one is not None}
        if len({*texts.values()}) > 1:
            split = 0 < len(self.refusals) < len(texts)
            later = "; workers that start from now on run with the new configuration" if split else ""
            return "; ".join(f"worker {slot}: {text}" for slot, text in sorted(texts.items())) + later
        return self.outcome().text(has_file=has_file)
