"""Made-up workers and readings for the reloads of a supervisor."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.cli.supervisor.configuration_reading import Found, Reading
from gateway.cli.supervisor.configurations import TAKE_S, Configurations
from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.slots import Slot, may_accept
from gateway.config.gateway import GatewayConfig

NOW = 1_000.0


def config(lifetime_s: int = 60) -> GatewayConfig:
    return GatewayConfig.for_origin("http://127.0.0.1:1", admin="127.0.0.1:0", sse_lifetime_s=lifetime_s)


def open_files() -> int:
    """Return how many files of configurations this process has open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "durable-gateway-configuration" in str(one.readlink())
    return found


class Stage:
    """The reloads of a supervisor with three slots, of which two serve."""

    def __init__(self) -> None:
        self.now = NOW
        self.slots = [Slot(number, generation=1, pid=7 + number) for number in range(3)]
        for slot in self.slots[:2]:
            slot.is_prepared = slot.is_accepting = slot.is_serving = True
        self.told: list[tuple[int, str]] = []
        self.handed: list[GatewayConfig] = []
        self.number = 0
        """The number of the configuration that was handed over last."""
        self.untaken: list[list[int]] = [[], [], []]
        """The numbers that each worker has still to answer, in its order."""
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.full: set[int] = set()
        """The slots whose channels have no room."""
        self.killed: list[int] = []
        self.announced: list[str] = []
        self.done: Callable[[Found], None] | None = None
        workers = SimpleNamespace(slots=self.slots, tell=self._tell, kill=self._kill)
        self.configurations = Configurations(
            config(), cast(Workers, workers), lambda: self.now, self._start_reading, self, has_file=True
        )

    def _tell(self, slot: Slot, kind: str, descriptor: int | None = None, **fields: Any) -> bool:
        if slot.number in self.full:
            return False
        if kind == "answer":
            self.answers.append((slot.number, fields))
            return True
        self.told.append((slot.number, kind))
        if descriptor is not None:
            self.handed.append(pickle.loads(os.pread(descriptor, 1 << 20, 0)))
            self.number = fields["number"]
            self.untaken[slot.number].append(self.number)
        return True

    def _kill(self, slots: list[Slot]) -> None:
        self.killed += [slot.number for slot in slots]

    def _start_reading(self, _running: GatewayConfig, done: Callable[[Found], None]) -> Reading:
        assert self.done is None, "one reading at a time"
        self.done = done
        given_up = SimpleNamespace(
            ends_at=self.now + 11,
            look=lambda: None,
            give_up=lambda: None,
            close=lambda: None,
            too_late=lambda: Found(error="too late"),
        )
        return cast(Reading, given_up)

    def reloading(self) -> None:
        self.announced.append("reloading")

    def reloaded(self, outcome: str) -> None:
        self.announced.append(outcome)

    def reloaded_late(self, outcome: str) -> None:
        self.announced.append(outcome)

    def reads(self, found: GatewayConfig | str) -> None:
        """The reading ends."""
        done, self.done = self.done, None
        assert done is not None
        done(Found(error=found) if isinstance(found, str) else Found(pickle.dumps(found)))

    def takes(
        self, slot: int, *changed: str, error: str = "", number: int | None = None, is_temporary: bool = False
    ) -> None:
        """A worker reports its result: whether it has taken the configuration that it was handed."""
        number = self.number if number is None else number
        told = {"number": number, "changed": changed, "needs_restart": [], "error": error}
        self.configurations.hears(self.slots[slot], {**told, "is_temporary": is_temporary})

    def is_late(self) -> None:
        """The workers have had their time."""
        self.now += TAKE_S
        self.configurations.look()

    def ends_at(self) -> float | None:
        return self.configurations.ends_at

    def accepting(self) -> list[int]:
        return [slot.number for slot in may_accept(self.slots, self.configurations.needed, is_starting=False)]


class Crew:
    """Workers that answer, hang, end and start at random, on a stage."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage = stage
        self._rng = rng
        self.runs = [0, 0, 0]
        """The number of the configuration that each worker has taken last."""

    def step(self) -> None:
        stage, rng = self._stage, self._rng
        stage.full = {number for number in range(3) if rng.random() < 0.1}
        slot = stage.slots[rng.randrange(3)]
        match rng.randrange(7):
            case 0:
                stage.configurations.ask_reload()
            case 1 if stage.done is not None:
                stage.reads(config(rng.randrange(7, 10)) if rng.random() < 0.8 else "is not TOML")
            case 2 | 3:
                self.answer(slot, is_good=rng.random() < 0.5)
            case 4:
                self.admit()
            case 5 if not slot.is_prepared:
                stage.configurations.begins(slot)
                slot.begins(stage.now)
                self.runs[slot.number], slot.pid = slot.configuration, 1
                slot.prepares()
                stage.configurations.prepares(slot)
            case 6 if stage.done is None and rng.random() < 0.5:
                stage.is_late()
            case 6:
                stage.killed.append(slot.number)
        self.end_killed()

    def answer(self, slot: Slot, *, is_good: bool) -> None:
        if untaken := self._stage.untaken[slot.number]:
            number = untaken.pop(0)
            if is_good:
                self.runs[slot.number] = number
            self._stage.takes(slot.number, error="" if is_good else "refused", number=number)

    def admit(self) -> None:
        for number in self._stage.accepting():
            self._stage.slots[number].is_accepting = True

    def end_killed(self) -> None:
        for number in self._stage.killed:
            self._stage.untaken[number].clear()
            self._stage.slots[number].ends(self._stage.now)
            self._stage.configurations.loses(self._stage.slots[number])
        self._stage.killed.clear()

    def check(self) -> None:
        """Whatever happens, the supervisor knows what each worker runs with, and waits for none without an end."""
        stage = self._stage
        for slot in stage.slots:
            if slot.is_prepared:
                assert slot.configuration == self.runs[slot.number]
                assert slot.number in stage.accepting() or slot.hangs_at is not None
