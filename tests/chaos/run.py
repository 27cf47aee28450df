"""One run: what all actors share, and what they have found.

Trouble comes in turns: a *storm*, in which anything may fail, a moment to recover, and a *calm*, in which nothing may.
`epoch` counts the turns, so that an answer is excused for the trouble that there was at any time since its request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from tests.answers import Answer
from tests.chaos.history import History, watch
from tests.chaos.judge import Asked, Shown, Wrong
from tests.chaos.manners import TENANT
from tests.chaos.parties import OWN, PARTIES, SHARED, keepers, origin_path
from tests.chaos.system import System

T = TypeVar("T")

_TAGS: Final = 4_000
_HELD: Final = 3


@dataclass(frozen=True)
class Place:
    """A stream that clients know by its path."""

    path: str
    content_type: str
    is_quiet: bool = False
    """Whether its writers pause for long, so that readers wait at its tail together."""

    @property
    def is_json(self) -> bool:
        return self.content_type == "application/json"

    @property
    def is_text(self) -> bool:
        return self.content_type.startswith("text/")

    @property
    def is_own(self) -> bool:
        """Whether several parties have one of their own there."""
        return bool(keepers(self.path))


TYPES: Final = ("application/json", "text/plain", "application/octet-stream")


def places(shared: int) -> list[Place]:
    """So many streams that all parties share and a quiet one, two that each has for itself, and two that each tenant
    has."""
    common = [Place(f"{SHARED}/{number}", TYPES[number % len(TYPES)]) for number in range(shared)]
    own = [Place(f"{prefix}{number}", TYPES[number]) for prefix in (OWN, TENANT) for number in range(2)]
    return [*common, Place(f"{SHARED}/quiet", TYPES[0], is_quiet=True), *own]


@dataclass(frozen=True)
class Violation:
    """An impossible answer, for the report."""

    asked: str
    came: str
    why: str
    seed: int
    answers: int
    events: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"asked   {self.asked}", f"came    {self.came}", f"wrong   {self.why}"]
        lines += [
            f"where   seed {self.seed}, after {self.answers} answers; the latest of the stream, the system and its log:"
        ]
        return "\n".join([*lines, *(f"        {event}" for event in self.events)])


@dataclass(eq=False)
class Run:
    """Everything that actors share."""

    seed: int
    system: System
    places: list[Place]
    most_violations: int = 5
    epoch: int = 0
    is_calm: bool = False
    is_recovering: bool = False
    """Whether a storm is over and its last effects are not: no more faults, and no reproach yet."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when enough violations are found."""
    happened: deque[str] = field(default_factory=lambda: deque(maxlen=12))
    """What was done to the system of late."""

    def __post_init__(self) -> None:
        self.began = 0.0
        self.began = self.now()
        self.histories: dict[str, History] = {}
        for place in self.places:
            for party in PARTIES:
                path = origin_path(place.path, party)
                if path not in self.histories:
                    self.histories[path] = History(path, self.now, self.system.clock.wall)
        watch(self.system.origin.store, self.histories)
        self.system.on_wrong_line = self.violate
        self.tokens: defaultdict[tuple[str, str], deque[str]] = defaultdict(lambda: deque(["-1"], maxlen=24))
        self._held: OrderedDict[tuple[str, str, str | None], deque[Shown]] = OrderedDict()
        self._named: OrderedDict[tuple[str, str, str], Shown] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[asyncio.Future[Place]] = []

    def now(self) -> float:
        """Real seconds since the run began, without those that the system's clock leaves out."""
        clock = self.system.clock
        return clock.now() / clock.speed - self.began

    def rng(self, name: str) -> Random:
        """A generator of this run's for one actor."""
        return Random(f"{self.seed}/{name}")

    def history(self, path: str, party: str) -> History:
        return self.histories[origin_path(path, party)]

    def forget_lifetimes(self, path: str | None = None) -> None:
        """The gateway may have forgotten what it was told of the stream that clients know by this path, or of all."""
        for party in PARTIES:
            for place in self.places:
                if path in (None, place.path):
                    self.history(place.path, party).told.clear()

    @property
    def answers(self) -> int:
        """Answers judged so far; an event of a live connection counts as one."""
        return sum(self.counts.values())

    # -- trouble

    @property
    def is_stormy(self) -> bool:
        """Whether faults may be caused now."""
        return not (self.is_calm or self.is_recovering)

    def turn(self, *, is_calm: bool) -> None:
        """A turn of the weather."""
        self.epoch += 1
        self.is_calm = is_calm
        self.note("calm" if is_calm else "storm")

    def note(self, what: str) -> None:
        """Something was done to the system."""
        self.happened.append(f"{self.now():9.3f}s  {what}")

    def was_calm(self, asked: Asked, epoch: int) -> bool:
        """Whether nothing was in trouble from the request, in that epoch, until now."""
        return asked.is_calm and self.is_calm and epoch == self.epoch

    # -- judging

    def judge(self, asked: Asked | str, answer: Answer | str, history: History, rule: Callable[[], T]) -> T | None:
        """What the rule makes of the answer; None where it is a violation, which is noted."""
        kind = asked if isinstance(asked, str) else asked.live or asked.method
        self.counts[kind] += 1
        try:
            found = rule()
            if history.wrong:
                raise Wrong(history.wrong.pop())
        except Wrong as wrong:
            came = answer if isinstance(answer, str) else _spelled(answer)
            when = "" if isinstance(asked, str) else f", asked at {asked.since.at:.3f}s"
            self.violate(f"{asked}{when}", came, f"{wrong}, at {history.now():.3f}s", history)
            return None
        return found

    def violate(self, asked: str, came: str, why: str, history: History | None = None) -> None:
        """Note a violation."""
        events = (*(history.events if history is not None else ()), *self.happened, *self.system.logged())
        if len(self.violations) < self.most_violations:
            self.violations.append(Violation(asked, came, why, self.seed, self.answers, events))
        if len(self.violations) >= self.most_violations:
            self.stopped.set()

    # -- who reads when

    def acknowledged(self, place: Place) -> None:
        """A write was acknowledged: the reads that show what a gateway makes of it are those that come at once."""
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            if not reader.done():
                reader.set_result(place)

    async def next_write(self, within_s: float) -> Place | None:
        """Where a write was acknowledged just now; None where none is within that time."""
        written: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        await asyncio.wait({written}, timeout=within_s)
        if written.done():
            return written.result()
        written.cancel()
        return None

    # -- what clients hold

    def held(self, path: str, party: str, offset: str | None) -> tuple[Shown, ...]:
        """The representations that the party holds of what lies after an offset."""
        return tuple(self._held.get((path, party, offset), ()))

    def hold(self, path: str, party: str, offset: str | None, shown: Shown) -> None:
        """The party has been shown a representation; Wrong where its tag named another before (RFC 9110 §8.8.1)."""
        key = (path, party, shown.etag)
        known = self._named.get(key)
        if known is not None and (known.body, known.end, known.is_closed, known.coding) != (
            shown.body, shown.end, shown.is_closed, shown.coding
        ):  # fmt: skip
            raise Wrong(f"the tag {shown.etag} named {known} before, and names {shown} now")
        self._named[key] = shown
        place = (path, party, offset)
        held = self._held.setdefault(place, deque(maxlen=_HELD))
        if shown not in held:
            held.append(shown)
        self._held.move_to_end(place)
        if len(self._held) > _TAGS:
            self._held.popitem(last=False)
        if len(self._named) > 4 * _TAGS:
            self._named.popitem(last=False)

    # -- tasks

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """An actor at work; what it fails with is a violation."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            import traceback

            where = "".join(traceback.format_exception(error)[-3:])
            self.violate(task.get_name(), repr(error), f"an actor failed: {where}")
            self.stopped.set()

    async def close(self) -> None:
        """End every actor."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _spelled(answer: Answer) -> str:
    names = ("stream-", "etag", "cache-status", "content-encoding", "age")
    headers = ", ".join(f"{k}: {v}" for k, v in answer.headers.items() if k.lower().startswith(names))
    return f"{answer.status} {{{headers}}} {len(answer.body)} bytes {answer.body[:100]!r}"
