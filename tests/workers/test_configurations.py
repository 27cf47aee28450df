"""Which configuration each worker runs with: rounds of reloads, with made-up workers and readings."""

from __future__ import annotations

import os

import pytest

from gateway.cli.supervisor.configuration_reading import Reading
from gateway.cli.supervisor.configurations import TAKE_S
from gateway.cli.supervisor.reload_round import Asker
from gateway.cli.supervisor.slots import START_S
from tests.workers.reload_stage import NOW, Stage, config

LATER = "workers that start from now on"
LATE = f"not reloaded yet: no answer within {TAKE_S:g} s, and a late worker may still take the configuration"


def test_each_worker_is_handed_the_same_configuration_once(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    assert stage.told == [(0, "configuration"), (1, "configuration")]
    assert stage.handed == [config(7)] * 2
    stage.takes(0, "a")
    assert stage.configurations.config == config(7), "workers that start later begin with it"
    assert stage.announced == ["reloading"]
    stage.takes(1, "a")
    assert stage.announced == ["reloading", "reloaded: a"]
    assert len(stage.told) == 2


def test_a_worker_that_starts_during_a_reload_takes_the_configuration_before_it_accepts(stage: Stage) -> None:
    late = stage.slots[2]
    stage.configurations.begins(late)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.told.clear()
    late.prepares()
    stage.configurations.prepares(late)
    assert stage.told == [(2, "configuration")]
    assert stage.accepting() == [0, 1]
    assert late.hangs_at == NOW + START_S
    stage.takes(2, "a")
    assert stage.accepting() == [0, 1, 2]
    assert late.hangs_at is None


def test_a_worker_that_starts_after_a_reload_accepts_at_once(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0)
    late = stage.slots[2]
    stage.configurations.begins(late)
    late.prepares()
    stage.told.clear()
    stage.configurations.prepares(late)
    assert (stage.told, stage.accepting()) == ([], [0, 1, 2])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_worker_that_may_not_accept_yet_and_cannot_take_the_configuration_is_replaced(
    stage: Stage, is_first: bool
) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.slots[2].prepares()
    stage.configurations.prepares(stage.slots[2])
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
        stage.configurations.ask_reload()
        stage.reads(config(lifetime_s))
        late.is_prepared = True
        stage.configurations.prepares(late)
        stage.takes(0)
        stage.takes(1)
        stage.configurations.look()
        stage.now += TAKE_S
        stage.configurations.look()
    stage.takes(2, number=1)
    assert stage.accepting() == [0, 1]
    stage.takes(2, number=2)
    assert stage.accepting() == [0, 1, 2]


def test_requests_during_a_round_get_one_further_round_and_each_is_answered(stage: Stage) -> None:
    stage.configurations.ask_reload(Asker(0, 1, 5))
    stage.reads(config(7))
    for request in (Asker(1, 1, 5), Asker(0, 1, 6), None, None):
        stage.configurations.ask_reload(request)
    stage.takes(0, "a")
    stage.takes(1, "a", "b")
    assert [(slot, answer["request"], answer["changed"]) for slot, answer in stage.answers] == [(0, 5, ("a", "b"))]
    assert stage.announced == ["reloading"], "no SIGHUP has asked for the first round"
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    assert [(slot, answer["request"]) for slot, answer in stage.answers[1:]] == [(1, 5), (0, 6)]
    assert stage.announced == ["reloading", "reloaded: nothing has changed"]
    assert (stage.done, stage.configurations.reloads) == (None, 5)


def test_the_next_worker_of_a_slot_gets_no_answer_to_its_predecessors_request(stage: Stage) -> None:
    stage.configurations.ask_reload(Asker(0, 1, 5))
    stage.slots[0].generation = 2
    stage.reads("no such file")
    assert stage.answers == []


def test_an_unusable_file_is_refused_before_any_worker_takes_it(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.configurations.ask_reload(Asker(1, 1, 0))
    stage.reads("gateway.toml:1: is not TOML")
    assert stage.announced == ["reloading", "not reloaded, all stays as it was: gateway.toml:1: is not TOML"]
    assert stage.told == [(0, "configuration refused"), (1, "configuration refused")], "they count it"
    assert (stage.configurations.number, stage.configurations.config) == (0, config())
    stage.reads("gateway.toml:2: is not TOML")
    ((_, answer),) = stage.answers
    assert (answer["error"], answer["is_temporary"]) == ("gateway.toml:2: is not TOML", False)


def test_workers_that_differ_are_named(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.configurations.ask_reload(Asker(1, 1, 0))
    stage.reads("first")
    stage.reads(config(7))
    stage.takes(1, error="key: cannot be read")
    stage.takes(0, "a")
    ((_, answer),) = stage.answers
    assert answer["is_temporary"]
    assert answer["error"] == f"not done by all workers: worker 1: key: cannot be read; done by 0, and by {LATER}"


def test_all_workers_that_cannot_take_it_say_so_once(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    for slot in (0, 1):
        stage.takes(slot, error="key: cannot be read")
    assert stage.announced[1:] == ["not reloaded, all stays as it was: key: cannot be read"]


@pytest.mark.parametrize("is_temporary", [True, False])
def test_all_workers_that_refuse_it_in_different_words_refuse_it_for_good(stage: Stage, is_temporary: bool) -> None:
    stage.configurations.ask_reload(Asker(0, 1, 5))
    stage.reads(config(7))
    stage.takes(0, error="key0: cannot be read", is_temporary=is_temporary)
    stage.takes(1, error="key1: cannot be read")
    ((_, answer),) = stage.answers
    assert answer["error"] == "worker 0: key0: cannot be read; worker 1: key1: cannot be read"
    assert answer["is_temporary"] is is_temporary


def test_a_round_is_bounded_whatever_hangs(stage: Stage) -> None:
    stage.configurations.ask_reload()
    assert stage.ends_at() == NOW + 11
    stage.now += 11
    stage.done = None
    stage.configurations.look()
    assert stage.announced.pop() == "not reloaded, all stays as it was: too late"
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0, "a")
    assert stage.ends_at() == stage.now + TAKE_S
    stage.now += TAKE_S
    stage.configurations.look()
    ran = f"worker 0: reloaded: a; worker 1: {LATE}; {LATER} run with the new configuration"
    assert stage.announced.pop() == ran
    assert stage.ends_at() is None
    # The hung worker's late word is none on the next configuration.
    stage.configurations.ask_reload()
    stage.reads(config(8))
    stage.takes(0, "a")
    stage.takes(1, "a", number=1)
    assert stage.announced[-2:] == ["reloading", "worker 1, late: reloaded: a"]
    stage.takes(1, "a")
    assert (stage.announced.pop(), stage.configurations.config) == ("reloaded: a", config(8))


def test_a_configuration_that_every_worker_refuses_is_not_for_those_that_start_later(stage: Stage) -> None:
    starting, ending = stage.slots[2], stage.slots[1]
    stage.configurations.begins(starting)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    starting.prepares()
    stage.configurations.prepares(starting)
    stage.takes(0, error="key: cannot be read")
    stage.takes(2, error="key: cannot be read")
    assert stage.accepting() == [0, 1], "one worker may still take it"
    stage.configurations.loses(ending)
    assert stage.announced[1:] == ["not reloaded, all stays as it was: key: cannot be read"]
    assert stage.configurations.config == config()
    assert (stage.accepting(), stage.killed, starting.hangs_at) == ([0, 1, 2], [], None)
    stage.configurations.begins(ending)
    stage.told.clear()
    stage.configurations.prepares(ending)
    assert (ending.configuration, stage.told) == (0, []), "it runs with what the others have"
    # The next configuration has a number of its own: a late word on the refused one is none on it.
    stage.configurations.ask_reload()
    stage.reads(config(8))
    stage.takes(0, "a", number=1)
    assert stage.configurations.config == config()
    for slot in range(3):
        stage.takes(slot, "a")
    assert (stage.announced[-1], stage.configurations.config) == ("reloaded: a", config(8))


def test_a_configuration_at_which_every_worker_ends_is_not_for_the_next_ones(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.configurations.loses(stage.slots[2])
    stage.reads(config(7))
    for slot in stage.slots[:2]:
        stage.configurations.loses(slot)
    ended = "every worker has ended before it took the configuration"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {ended}"]
    assert stage.configurations.config == config()


def test_a_worker_that_has_taken_the_configuration_and_ended_is_in_the_outcome(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0, "a")
    stage.configurations.loses(stage.slots[0])
    stage.takes(1, error="key: cannot be read")
    refused = "worker 1: not reloaded, all stays as it was: key: cannot be read"
    assert stage.announced[1:] == [f"worker 0: reloaded: a; {refused}; {LATER} run with the new configuration"]


def test_a_worker_that_ends_does_not_hold_up_the_round(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0, "a")
    stage.configurations.loses(stage.slots[1])
    assert stage.announced[1:] == ["reloaded: a"]


def test_without_workers_the_supervisor_takes_the_configuration_for_the_next_ones(stage: Stage) -> None:
    for slot in stage.slots:
        slot.is_prepared = False
    stage.configurations.ask_reload()
    stage.reads(config(7))
    assert stage.announced[1:] == ["reloaded: route.default.sse_lifetime_s"]
    assert stage.configurations.config == config(7)


def test_reloads_wait_for_the_start_and_are_refused_in_the_drain() -> None:
    stage = Stage()
    stage.configurations.ask_reload()
    stage.configurations.ask_reload(Asker(0, 1, 0))
    assert stage.done is None
    stage.configurations.open()
    stage.configurations.ask_reload(Asker(0, 1, 1))
    stage.configurations.close("the gateway stops")
    stage.configurations.ask_reload(Asker(0, 1, 2))
    assert [(one["request"], one["error"], one["is_temporary"]) for _, one in stage.answers] == [
        (1, "the gateway stops", True),
        (2, "the gateway stops", True),
    ]
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    assert [one["request"] for _, one in stage.answers] == [1, 2, 0], "the round under way is completed"
    stage.configurations.end()


def test_a_reader_that_cannot_be_forked_is_an_outcome(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Reading:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(stage.configurations, "_start_reading", refused)
    stage.configurations.ask_reload()
    reason = "no process can be forked to read the configuration: Resource temporarily unavailable"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {reason}"]


def test_a_configuration_that_cannot_be_handed_over_is_not_taken(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    reason = "the configuration cannot be handed to the workers: Too many open files"
    assert stage.announced[1:] == [f"not reloaded, all stays as it was: {reason}"]
    assert stage.configurations.config == config()


def test_a_refused_file_leaves_the_configuration_that_starting_workers_take(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0)
    stage.takes(1)
    stage.configurations.ask_reload()
    stage.reads("is not TOML")
    stage.slots[2].prepares()
    stage.configurations.prepares(stage.slots[2])
    assert stage.handed == [config(7)] * 3
