"""Whether a history of concurrent operations is linearizable: a search for an order that explains every answer.

An operation takes effect at one moment between its call and its return.  A history is linearizable if the operations
can be put into an order that agrees with those moments and in which each has the outcome that was seen (Herlihy and
Wing, 1990).  The search is Wing and Gong's: next is any operation that was called before the first return among those
that are left.  Where the model refuses all of them it goes back.  What was tried is remembered, as the set of
operations done and the state that they led to (Lowe, 2017), so no situation is looked at twice.

An operation that leaves the state as it is, as a read does, is taken as soon as it is possible, without a way back:
whatever order has it later, it can as well come here.

An operation that never returned is *indefinite*: it may take effect at any time after its call, or never.

The module knows nothing of streams.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)

MOST_STEPS: Final = 2_000_000
"""How many operations a search tries."""


class Undecided(Exception):
    """The search has tried as much as it may, and knows neither way."""


class Action(Protocol[State]):
    """What an operation does, and with what outcome."""

    def step(self, state: State) -> State | None:
        """The state after the operation; None if it cannot have this outcome in `state`."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[State]):
    """One operation.  Times are places in the order in which calls and returns were seen."""

    called: int
    returned: int | None
    """None if the operation is indefinite."""
    action: Action[State]
    client: str = ""

    def __str__(self) -> str:
        returned = "?" if self.returned is None else self.returned
        return f"{self.called}-{returned} {self.client}: {self.action}"


@dataclass(frozen=True, slots=True)
class Linearization(Generic[State]):
    """The longest explanation that was found."""

    order: tuple[Operation[State], ...]
    state: State
    """The state after `order`."""
    stuck: tuple[Operation[State], ...]
    """What could come next and is not possible in `state`; empty if the history is linearizable."""

    @property
    def is_complete(self) -> bool:
        """Whether every operation that has returned is explained."""
        return not self.stuck

    def __str__(self) -> str:
        if self.is_complete:
            return f"{len(self.order)} operations are linearizable"
        lines = [f"after {len(self.order)} operations, in the state {self.state}, none of these is possible:"]
        lines += [f"    {operation}" for operation in self.stuck]
        lines += ["the last that were possible:", *(f"    {operation}" for operation in self.order[-8:])]
        return "\n".join(lines)


def linearize(
    operations: Sequence[Operation[State]], initial: State, most_steps: int = MOST_STEPS
) -> Linearization[State]:
    """An order that explains the operations, or the longest beginning of one.

    Raises Undecided after `most_steps` operations tried.
    """
    return _Search(operations, initial).run(most_steps)


@dataclass(slots=True)
class _Frame(Generic[State]):
    """A situation: what is done, as a bit for each operation, the state, and what has not been tried there."""

    done: int
    state: State
    first: int
    """Every definite operation before this one is done."""
    untried: Iterator[int]


class _Search(Generic[State]):
    def __init__(self, operations: Sequence[Operation[State]], initial: State) -> None:
        definite = [(one.called, one.returned, one) for one in operations if one.returned is not None]
        indefinite = [one for one in operations if one.returned is None]
        self._definite = sorted(((called, returned) for called, returned, _ in definite))
        self._operations = [one for _, _, one in sorted(definite, key=lambda timed: timed[:2])]
        self._operations += sorted(indefinite, key=lambda one: one.called)
        self._initial = initial

    def run(self, most_steps: int) -> Linearization[State]:
        operations, count = self._operations, len(self._definite)
        frames = [self._frame(0, self._initial, 0)]
        path: list[int] = []
        seen = {(0, self._initial)}
        longest, furthest = -1, frames[0]
        best: list[int] = []
        steps = 0
        while frames:
            frame = frames[-1]
            if len(path) > longest:
                longest, furthest, best = len(path), frame, path.copy()
            if frame.first == count:
                return self._found(path, frame)
            for index in frame.untried:
                steps += 1
                if steps > most_steps:
                    raise Undecided
                state = operations[index].action.step(frame.state)
                done = frame.done | 1 << index
                if state is not None and (done, state) not in seen:
                    seen.add((done, state))
                    frames.append(self._frame(done, state, frame.first))
                    path.append(index)
                    if state == frame.state:
                        frame.untried = iter(())
                    break
            else:
                frames.pop()
                if path:
                    path.pop()
        return self._found(best, furthest)

    def _frame(self, done: int, state: State, first: int) -> _Frame[State]:
        while first < len(self._definite) and done >> first & 1:
            first += 1
        untried = self._next(done, first)
        # Those that leave the state as it is come first.
        untried.sort(key=lambda index: self._operations[index].action.step(state) != state)
        return _Frame(done, state, first, iter(untried))

    def _next(self, done: int, first: int) -> list[int]:
        """What may come next: was called before the first return of those that are left.  The first to return is the
        likeliest."""
        limit: float = float("inf")
        found: list[int] = []
        for index in range(first, len(self._definite)):
            called, returned = self._definite[index]
            if called > limit:
                break
            if not done >> index & 1:
                found.append(index)
                limit = min(limit, returned)
        found.sort(key=lambda index: self._definite[index][1])
        for index in range(len(self._definite), len(self._operations)):
            if self._operations[index].called > limit:
                break
            if not done >> index & 1:
                found.append(index)
        return found

    def _found(self, path: list[int], frame: _Frame[State]) -> Linearization[State]:
        order = tuple(self._operations[index] for index in path)
        stuck = () if frame.first == len(self._definite) else self._next(frame.done, frame.first)
        return Linearization(order, frame.state, tuple(self._operations[index] for index in stuck))
