"""Workers that take or refuse a configuration after the end of its round, or before they may accept connections."""

from __future__ import annotations

import random

import pytest

from gateway.cli.supervisor import configurations
from gateway.cli.supervisor.configurations import TAKE_S
from gateway.cli.supervisor.reload_round import Asker
from gateway.cli.supervisor.slots import START_S, Slot
from tests.workers.reload_stage import NOW, Crew, Stage, config, open_files

LATE = f"not reloaded yet: no answer within {TAKE_S:g} s, and a late worker may still take the configuration"


def test_late_workers_may_still_take_the_configuration(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.configurations.ask_reload(Asker(1, 1, 0))
    for _ in range(2):
        stage.reads(config(7))
        stage.now += TAKE_S
        stage.configurations.look()
    assert stage.announced[1:] == [LATE]
    ((_, answer),) = stage.answers
    assert answer["is_temporary"], "a refusal would say that all stays as it was"
    assert stage.configurations.config == config()
    stage.configurations.ask_reload()
    stage.reads("is not TOML")
    stage.takes(0, "a", number=2)
    assert stage.configurations.config == config(7), "workers that start later run with it too"
    stage.takes(1, error="key: cannot be read", number=2)
    assert stage.announced[-2:] == [
        "worker 0, late: reloaded: a",
        "worker 1, late: not reloaded, all stays as it was: key: cannot be read",
    ]


def test_a_late_worker_may_take_a_configuration_that_a_later_offer_has_replaced(stage: Stage) -> None:
    """The supervisor knows what each slot runs with, and workers that start later run with the latest."""
    starting = stage.slots[2]
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0, error="7: refused")
    stage.is_late()
    stage.configurations.ask_reload()
    stage.reads(config(8))
    starting.prepares()
    stage.configurations.prepares(starting)
    stage.takes(1, "a", number=1)
    assert stage.announced[-1] == "worker 1, late: reloaded: a"
    assert (stage.configurations.number, stage.configurations.config) == (1, config(7))
    stage.told.clear()
    for slot in range(3):
        stage.takes(slot, error="8: refused")
    assert stage.announced[-1] == "not reloaded, all stays as it was: 8: refused"
    assert stage.told == [(2, "configuration")], "it has been handed only what all have refused"
    assert stage.handed[-1] == config(7)
    stage.takes(2, "a", number=1)
    assert stage.accepting() == [0, 1, 2]
    # The next configuration replaces both.
    stage.configurations.ask_reload()
    stage.reads(config(9))
    for slot in range(3):
        stage.takes(slot, "a")
    assert (stage.announced[-1], stage.configurations.config) == ("reloaded: a", config(9))


def test_a_configuration_that_is_replaced_before_a_late_worker_takes_it_has_no_effect_on_others(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.is_late()
    stage.configurations.ask_reload()
    stage.reads(config(8))
    stage.takes(0, "a", number=1)
    stage.takes(0, "a")
    stage.takes(1, "a", number=1)
    assert stage.configurations.config == config(8)
    stage.takes(1, "a")
    assert stage.announced[-2:] == ["worker 1, late: reloaded: a", "reloaded: a"]
    assert len(stage.told) == 4, "each has been handed each once"


def test_the_files_of_configurations_without_an_answer_are_bounded(stage: Stage) -> None:
    for _ in range(40):
        stage.configurations.ask_reload()
        stage.reads(config(7))
        stage.is_late()
    assert open_files() == configurations._MOST_OFFERS
    for slot in (0, 1):
        for number in range(1, 41):
            stage.takes(slot, error="key: cannot be read", number=number)
    assert open_files() == 0


def starter_with_a_configuration_in_effect(stage: Stage) -> Slot:
    """Prepare a worker that has begun before the latest reload."""
    starting = stage.slots[2]
    stage.configurations.begins(starting)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    for slot in (0, 1):
        stage.takes(slot, "a")
    starting.prepares()
    stage.configurations.prepares(starting)
    return starting


def test_a_worker_that_hangs_in_the_second_configuration_before_it_accepts_is_known_to_hang(stage: Stage) -> None:
    starting = starter_with_a_configuration_in_effect(stage)
    stage.now += 30.0
    stage.configurations.ask_reload()
    stage.reads(config(8))
    assert starting.hangs_at == NOW + START_S, "a further configuration gives it no further time"
    stage.takes(2, "a", number=1)
    assert starting.hangs_at == stage.now + START_S
    stage.takes(0, "a")
    stage.now += 1.0
    stage.takes(1, "a")
    assert stage.accepting() == [0, 1]
    assert starting.hangs_at == stage.now - 1.0 + START_S
    starting.hangs()
    assert starting.failure == {
        "text": f"worker 2 has not taken the configuration in {START_S:g} s", "is_misuse": False
    }  # fmt: skip


def test_a_worker_that_has_still_to_take_what_a_late_one_has_taken_is_known_to_hang(stage: Stage) -> None:
    # All of this happens before the supervisor admits workers.
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.is_late()
    starting = stage.slots[2]
    starting.prepares()
    stage.configurations.prepares(starting)
    assert starting.hangs_at is None, "it may accept"
    stage.takes(1, "a")
    assert stage.told[-1] == (2, "configuration")
    assert [slot.hangs_at for slot in stage.slots] == [None, None, stage.now + START_S]


def test_a_worker_that_has_refused_in_its_round_what_a_late_one_takes_is_replaced(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    starting = stage.slots[2]
    starting.prepares()
    stage.configurations.prepares(starting)
    stage.takes(2, error="key: cannot be read")
    stage.is_late()
    stage.takes(1, "a")
    assert stage.killed == [2]
    stage.takes(0, "a")
    assert stage.killed == [2], "once"


def test_a_worker_that_refuses_what_it_serves_with_is_not_handed_it_again(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0, "a")
    stage.takes(1, error="key: cannot be read")
    stage.told.clear()
    stage.configurations.loses(stage.slots[2])
    assert (stage.told, stage.killed) == ([], [])


def test_a_worker_that_is_admitted_before_a_late_one_takes_the_configuration_is_handed_it_then(stage: Stage) -> None:
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.now += TAKE_S
    stage.configurations.look()
    late, admitted = stage.slots[1:]
    admitted.prepares()
    stage.configurations.prepares(admitted)
    assert stage.accepting() == [0, 1, 2]
    admitted.is_accepting = True
    stage.told.clear()
    stage.takes(late.number, "a")
    assert stage.told == [(2, "configuration")], "the others have been handed it"
    stage.takes(2, "a")
    assert stage.announced[2:] == ["worker 1, late: reloaded: a", "worker 2, late: reloaded: a"]


@pytest.mark.parametrize("seed", range(12))
def test_the_supervisor_knows_what_each_worker_runs_with(seed: int) -> None:
    stage = Stage()
    stage.configurations.open()
    crew = Crew(stage, random.Random(seed))
    for _ in range(150):
        crew.step()
        crew.check()
    stage.full.clear()
    stage.now += 1.0
    stage.configurations.look()
    for slot in stage.slots:
        while stage.untaken[slot.number]:
            crew.answer(slot, is_good=True)
    crew.end_killed()
    if stage.done is not None:
        stage.reads("is not TOML")
    crew.admit()
    assert all(slot.is_accepting for slot in stage.slots if slot.is_prepared)
    assert open_files() == (stage.configurations.number > 0), "no file of an offer is left open"
    stage.configurations.end()


@pytest.mark.parametrize("is_round_over", [True, False])
@pytest.mark.parametrize("who", [1, 2])
def test_a_configuration_that_could_not_be_sent_is_sent_again(stage: Stage, who: int, is_round_over: bool) -> None:
    """The channel of a worker that serves, or that starts in the round, has no room."""
    starting = stage.slots[2]
    stage.full.add(who)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    starting.prepares()
    stage.configurations.prepares(starting)
    others = {0, 1, 2} - {who}
    if is_round_over:
        for slot in others:
            stage.takes(slot, "a")
        assert stage.announced == ["reloading"], "the round waits for the worker"
        stage.is_late()
    stage.full.clear()
    stage.told.clear()
    ends_at = stage.ends_at()
    assert ends_at is not None
    assert ends_at <= stage.now + 1.0
    stage.now = ends_at
    stage.configurations.look()
    assert stage.told == [(who, "configuration")]
    for slot in {who} if is_round_over else {who, *others}:
        stage.takes(slot, "a")
    assert stage.slots[who].configuration == stage.configurations.number == 1
    assert stage.accepting() == [0, 1, 2]
    assert stage.ends_at() is None
    if not is_round_over:
        assert stage.announced[1:] == ["reloaded: a"]


def test_a_worker_whose_channel_has_no_room_is_asked_again_until_it_ends(stage: Stage) -> None:
    stage.full.add(1)
    stage.configurations.ask_reload()
    stage.reads(config(7))
    stage.takes(0)
    stage.is_late()
    for _ in range(3):
        at = stage.ends_at()
        assert at is not None
        assert at > stage.now
        stage.now = at
        stage.configurations.look()
    stage.slots[1].ends(stage.now)
    stage.configurations.loses(stage.slots[1])
    stage.now += 1.0
    stage.configurations.look()
    assert stage.ends_at() is None
