"""Which configuration each worker runs with: rounds of reloads, with made-up workers and readings."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.supervisor import reading
from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.reading import Found, Reading
from gateway.cli.supervisor.reload_round import Asker
from gateway.cli.supervisor.reloads import TAKE_S, Reloads
from gateway.cli.supervisor.slots import START_S, Slot, may_accept
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import READ_S

NOW = 1_000.0
BOUND_S = 30.0
LATER = "workers that start from now on"
LATE = f"not reloaded yet: no answer within {TAKE_S:g} s, and a late worker may still take the configuration"


def config(lifetime_s: int = 60) -> GatewayConfig:
    return GatewayConfig.for_origin("http://127.0.0.1:1", admin="127.0.0.1:0", sse_lifetime_s=lifetime_s)


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
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.killed: list[int] = []
        self.announced: list[str] = []
        self.done: Callable[[Found], None] | None = None
        workers = SimpleNamespace(slots=self.slots, tell=self._tell, kill=self._kill)
        self.reloads = Reloads(
            config(), cast(Workers, workers), lambda: self.now, self._start_reading, self, has_file=True
        )

    def _tell(self, slot: Slot, kind: str, descriptor: int | None = None, **fields: Any) -> None:
        if kind == "answer":
            self.answers.append((slot.number, fields))
            return
        self.told.append((slot.number, kind))
        if descriptor is not None:
            self.handed.append(pickle.loads(os.pread(descriptor, 1 << 20, 0)))
            self.number = fields["number"]

    def _kill(self, slots: list[Slot]) -> None:
        self.killed += [slot.number for slot in slots]

    def _start_reading(self, _running: GatewayConfig, done: Callable[[Found], None]) -> Reading:
        assert self.done is None, "one reading at a time"
        self.done = done
        given_up = SimpleNamespace(
            ends_at=self.now + 11, give_up=lambda: None, close=lambda: None, too_late=lambda: Found(error="too late")
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

    def takes(self, slot: int, *changed: str, error: str = "", number: int | None = None) -> None:
        """A worker says what has come of the configuration that it was handed."""
        number = self.number if number is None else number
        told = {"number": number, "changed": changed, "needs_restart": [], "error": error}
        self.reloads.hears(self.slots[slot], told)

    def ends_at(self) -> float | None:
        return self.reloads.ends_at

    def accepting(self) -> list[int]:
        return [slot.number for slot in may_accept(self.slots, self.reloads.needed, is_starting=False)]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    made.reloads.open()
    yield made
    made.reloads.end()


def test_each_worker_is_handed_the_same_configuration_once(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    assert stage.told == [(0, "configuration"), (1, "configuration")]
    assert stage.handed == [config(7)] * 2
    stage.takes(0, "a")
    assert stage.reloads.config == config(7), "workers that start later begin with it"
    assert stage.announced == ["reloading"]
    stage.takes(1, "a")
    assert stage.announced == ["reloading", "reloaded: a"]
    assert len(stage.told) == 2


def test_a_worker_that_starts_during_a_reload_takes_the_configuration_before_it_accepts(stage: Stage) -> None:
    late = stage.slots[2]
    stage.reloads.begins(late)
    stage.reloads.ask()
    stage.reads(config(7))
    stage.told.clear()
    late.prepares()
    stage.reloads.prepares(late)
    assert stage.told == [(2, "configuration")]
    assert stage.accepting() == [0, 1]
    assert late.hangs_at == NOW + START_S
    stage.takes(2, "a")
    assert stage.accepting() == [0, 1, 2]
    assert late.hangs_at is None


def test_a_worker_that_starts_after_a_reload_accepts_at_once(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.takes(0)
    late = stage.slots[2]
    stage.reloads.begins(late)
    late.prepares()
    stage.told.clear()
    stage.reloads.prepares(late)
    assert (stage.told, stage.accepting()) == ([], [0, 1, 2])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_worker_that_may_not_accept_yet_and_cannot_take_the_configuration_is_replaced(
    stage: Stage, is_first: bool
) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.slots[2].prepares()
    stage.reloads.prepares(stage.slots[2])
    stage.takes(1, error="key: cannot be read")
    if is_first:
        stage.takes(2, error="key: cannot be read")
        assert stage.killed == [], "the others may refuse it too"
    stage.takes(0)
    if not is_first:
        stage.takes(2, error="key: cannot be read")
    assert stage.killed == [2], "a worker that serves goes on"
    assert stage.slots[2].failure == {"text": "key: cannot be read", "is_misuse": False}


def test_an_earlier_configuration_is_not_enough_to_accept(stage: Stage) -> None:
    late = stage.slots[2]
    for lifetime_s in (7, 8):
        stage.reloads.ask()
        stage.reads(config(lifetime_s))
        late.is_prepared = True
        stage.reloads.prepares(late)
        stage.takes(0)
        stage.takes(1)
        stage.reloads.look()
        stage.now += TAKE_S
        stage.reloads.look()
    stage.takes(2, number=1)
    assert stage.accepting() == [0, 1]
    stage.takes(2, number=2)
    assert stage.accepting() == [0, 1, 2]


def test_requests_during_a_round_get_one_further_round_and_each_is_answered(stage: Stage) -> None:
    stage.reloads.ask(Asker(0, 1, 5))
    stage.reads(config(7))
    for request in (Asker(1, 1, 5), Asker(0, 1, 6), None, None):
        stage.reloads.ask(request)
    stage.takes(0, "a")
    stage.takes(1, "a", "b")
    assert [(slot, answer["request"], answer["changed"]) for slot, answer in stage.answers] == [(0, 5, ("a", "b"))]
    assert stage.announced == ["reloading"], "no SIGHUP has asked for the first round"
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    assert [(slot, answer["request"]) for slot, answer in stage.answers[1:]] == [(1, 5), (0, 6)]
    assert stage.announced == ["reloading", "reloaded: nothing has changed"]
    assert (stage.done, stage.reloads.requests) == (None, 5)


def test_the_next_worker_of_a_slot_gets_no_answer_to_its_predecessors_request(stage: Stage) -> None:
    stage.reloads.ask(Asker(0, 1, 5))
    stage.slots[0].generation = 2
    stage.reads("no such file")
    assert stage.answers == []


def test_an_unusable_file_is_refused_before_any_worker_takes_it(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reloads.ask(Asker(1, 1, 0))
    stage.reads("gateway.toml:1: is not TOML")
    assert stage.announced == ["reloading", "not reloaded, all stays as it was: gateway.toml:1: is not TOML"]
    assert stage.told == [(0, "configuration refused"), (1, "configuration refused")], "they count it"
    assert (stage.reloads.number, stage.reloads.config) == (0, config())
    stage.reads("gateway.toml:2: is not TOML")
    ((_, answer),) = stage.answers
    assert (answer["error"], answer["is_temporary"]) == ("gateway.toml:2: is not TOML", False)


def test_workers_that_differ_are_named(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reloads.ask(Asker(1, 1, 0))
    stage.reads("first")
    stage.reads(config(7))
    stage.takes(1, error="key: cannot be read")
    stage.takes(0, "a")
    ((_, answer),) = stage.answers
    assert answer["is_temporary"]
    assert answer["error"] == f"not done by all workers: worker 1: key: cannot be read; done by 0, and by {LATER}"


def test_all_workers_that_cannot_take_it_say_so_once(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    for slot in (0, 1):
        stage.takes(slot, error="key: cannot be read")
    assert stage.announced[1:] == ["not reloaded, all stays as it was: key: cannot be read"]


def test_a_round_is_bounded_whatever_hangs(stage: Stage) -> None:
    stage.reloads.ask()
    assert stage.ends_at() == NOW + 11
    stage.now += 11
    stage.done = None
    stage.reloads.look()
    assert stage.announced.pop() == "not reloaded, all stays as it was: too late"
    stage.reloads.ask()
    stage.reads(config(7))
    stage.takes(0, "a")
    assert stage.ends_at() == stage.now + TAKE_S
    stage.now += TAKE_S
    stage.reloads.look()
    ran = f"worker 0: reloaded: a; worker 1: {LATE}; {LATER} run with the new configuration"
    assert stage.announced.pop() == ran
    assert stage.ends_at() is None
    # The hung worker's late word is none on the next configuration.
    stage.reloads.ask()
    stage.reads(config(8))
    stage.takes(0, "a")
    stage.takes(1, "a", number=1)
    assert stage.announced.pop() == "reloading"
    stage.takes(1, "a")
    assert stage.announced.pop() == "reloaded: a"


def test_a_configuration_that_every_worker_refuses_is_not_for_those_that_start_later(stage: Stage) -> None:
    starting, ending = stage.slots[2], stage.slots[1]
    stage.reloads.begins(starting)
    stage.reloads.ask()
    stage.reads(config(7))
    starting.prepares()
    stage.reloads.prepares(starting)
    stage.takes(0, error="key: cannot be read")
    stage.takes(2, error="key: cannot be read")
    assert stage.accepting() == [0, 1], "one worker may still take it"
    stage.reloads.loses(ending)
    assert stage.announced[1:] == ["not reloaded, all stays as it was: key: cannot be read"]
    assert stage.reloads.config == config()
    assert (stage.accepting(), stage.killed, starting.hangs_at) == ([0, 1, 2], [], None)
    stage.reloads.begins(ending)
    stage.told.clear()
    stage.reloads.prepares(ending)
    assert (ending.configuration, stage.told) == (0, []), "it runs with what the others have"
    # The next configuration has a number of its own: a late word on the refused one is none on it.
    stage.reloads.ask()
    stage.reads(config(8))
    stage.takes(0, "a", number=1)
    assert stage.reloads.config == config()
    for slot in range(3):
        stage.takes(slot, "a")
    assert (stage.announced[-1], stage.reloads.config) == ("reloaded: a", config(8))


def test_late_workers_may_still_take_the_configuration(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reloads.ask(Asker(1, 1, 0))
    for _ in range(2):
        stage.reads(config(7))
        stage.now += TAKE_S
        stage.reloads.look()
    assert stage.announced[1:] == [LATE]
    ((_, answer),) = stage.answers
    assert answer["is_temporary"], "a refusal would say that all stays as it was"
    assert stage.reloads.config == config()
    stage.reloads.ask()
    stage.reads("is not TOML")
    stage.takes(0, "a", number=2)
    assert stage.reloads.config == config(7), "workers that start later run with it too"
    stage.takes(1, error="key: cannot be read", number=2)
    assert stage.announced[-2:] == [
        "worker 0, late: reloaded: a",
        "worker 1, late: not reloaded, all stays as it was: key: cannot be read",
    ]


def test_a_worker_that_is_admitted_before_a_late_one_takes_the_configuration_is_handed_it_then(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.now += TAKE_S
    stage.reloads.look()
    late, admitted = stage.slots[1:]
    admitted.prepares()
    stage.reloads.prepares(admitted)
    assert stage.accepting() == [0, 1, 2]
    admitted.is_accepting = True
    stage.told.clear()
    stage.takes(late.number, "a")
    assert stage.told == [(2, "configuration")], "the others have been handed it"
    stage.takes(2, "a")
    assert stage.announced[2:] == ["worker 1, late: reloaded: a", "worker 2, late: reloaded: a"]


def test_a_configuration_at_which_every_worker_ends_is_not_for_the_next_ones(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reloads.loses(stage.slots[2])
    stage.reads(config(7))
    for slot in stage.slots[:2]:
        stage.reloads.loses(slot)
    ended = "every worker has ended before it took the configuration"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {ended}"]
    assert stage.reloads.config == config()


def test_a_worker_that_has_taken_the_configuration_and_ended_is_in_the_outcome(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.takes(0, "a")
    stage.reloads.loses(stage.slots[0])
    stage.takes(1, error="key: cannot be read")
    refused = "worker 1: not reloaded, all stays as it was: key: cannot be read"
    assert stage.announced[1:] == [f"worker 0: reloaded: a; {refused}; {LATER} run with the new configuration"]


def test_a_worker_that_ends_does_not_hold_up_the_round(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.takes(0, "a")
    stage.reloads.loses(stage.slots[1])
    assert stage.announced[1:] == ["reloaded: a"]


def test_without_workers_the_supervisor_takes_the_configuration_for_the_next_ones(stage: Stage) -> None:
    for slot in stage.slots:
        slot.is_prepared = False
    stage.reloads.ask()
    stage.reads(config(7))
    assert stage.announced[1:] == ["reloaded: route.default.sse_lifetime_s"]
    assert stage.reloads.config == config(7)


def test_reloads_wait_for_the_start_and_are_refused_in_the_drain() -> None:
    stage = Stage()
    stage.reloads.ask()
    stage.reloads.ask(Asker(0, 1, 0))
    assert stage.done is None
    stage.reloads.open()
    stage.reloads.ask(Asker(0, 1, 1))
    stage.reloads.close("the gateway stops")
    stage.reloads.ask(Asker(0, 1, 2))
    assert [(one["request"], one["error"], one["is_temporary"]) for _, one in stage.answers] == [
        (1, "the gateway stops", True),
        (2, "the gateway stops", True),
    ]
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    assert [one["request"] for _, one in stage.answers] == [1, 2, 0], "the round under way is completed"
    stage.reloads.end()


def test_a_reader_that_cannot_be_forked_is_an_outcome(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Reading:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(stage.reloads, "_start_reading", refused)
    stage.reloads.ask()
    reason = "no process can be forked to read the configuration: Resource temporarily unavailable"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {reason}"]


def test_a_configuration_that_cannot_be_handed_over_is_not_taken(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    stage.reloads.ask()
    stage.reads(config(7))
    reason = "the configuration cannot be handed to the workers: Too many open files"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {reason}"]
    assert stage.reloads.config == config()


def test_a_refused_file_leaves_the_configuration_that_starting_workers_take(stage: Stage) -> None:
    stage.reloads.ask()
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    stage.reloads.ask()
    stage.reads("is not TOML")
    stage.slots[2].prepares()
    stage.reloads.prepares(stage.slots[2])
    assert stage.handed == [config(7)] * 3


# -- the process that reads --------------------------------------------------------------------------------------------


def found_by(read: Callable[[], GatewayConfig], within_s: float = 10.0, kills: int = 0) -> Found:
    """What a process finds, of which so many are killed."""
    results: list[Found] = []
    with selectors.DefaultSelector() as selector:
        running = Reading(read, selector, 0.0, results.append, within_s)
        for _ in range(kills):
            os.kill(running._pid, signal.SIGKILL)
            heard(selector)
        while not results:
            heard(selector)
        assert not selector.get_map()
    (found,) = results
    return found


def heard(selector: selectors.BaseSelector) -> None:
    ready = selector.select(BOUND_S)
    assert ready, "the process says nothing, and does not end"
    for key, _ in ready:
        key.data()


def refuse(error: Exception) -> GatewayConfig:
    raise error


def hang() -> GatewayConfig:
    signal.pause()
    raise AssertionError("nothing wakes it")


def test_a_process_reads_the_configuration() -> None:
    assert found_by(partial(config, 7)).config() == config(7)


def test_a_process_says_why_it_cannot_read_the_configuration() -> None:
    assert found_by(partial(refuse, ConfigError("key: wrong"))).error == "key: wrong"
    assert found_by(partial(refuse, ZeroDivisionError("by 0"))).error == "ZeroDivisionError: by 0"


def test_a_process_that_hangs_ends_in_time() -> None:
    assert found_by(hang, within_s=0.05).error == "the configuration could not be read within 0.05 s"


def test_a_process_that_is_killed_is_replaced() -> None:
    assert found_by(hang, within_s=0.05, kills=1).error == "the configuration could not be read within 0.05 s"
    killed = "the process that reads the configuration is killed each time"
    assert found_by(hang, kills=reading._ATTEMPTS).error == killed


def test_a_process_that_is_given_up_ends() -> None:
    with selectors.DefaultSelector() as selector:
        running = Reading(hang, selector, 0.0, lambda _found: None)
        pid = running.give_up()
        if pid is not None:
            os.waitpid(pid, 0)
        assert not selector.get_map()


def test_the_wait_for_workers_is_longer_than_theirs_for_the_disk() -> None:
    assert TAKE_S > READ_S
