"""What a worker that starts takes over from the others."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from aiohttp import web

from gateway.auth.remembered_verdicts import Revocation, Verdicts
from gateway.ops.admin.controls import LOGGER, Level, LogLevel, controls_endpoints
from gateway.ops.admin.endpoint import ApiRequest, Nothing
from gateway.ops.admin.subject import Subject
from gateway.ops.gathering import adoption, worker_admin
from gateway.ops.gathering.adoption import MOST_PAUSES, adopt_at_start, follow_late, follow_settings, version_before
from gateway.ops.gathering.peers import PeerAnswer, Peers
from gateway.ops.gathering.private import SETTINGS, WorkerRevocation, WorkerSettings
from gateway.ops.gathering.worker_admin import WorkerAdmin
from gateway.ops.partition_ids import PartitionIds
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_memory import SharedMemory, SlotState

ENDED = PeerAnswer(0, 503, b"", has_ended=True)
LATE = PeerAnswer(0, 504, b"")


class Started:
    """A worker that has just started and asks the others."""

    def __init__(self) -> None:
        self.drains = 0
        self.level_changes = self.drain_changes = 0
        self.engine = SimpleNamespace(drain=SimpleNamespace(is_set=False))
        self.verdicts = Verdicts(lambda: 1_000.0, lambda: 0.0)
        self.routes = SimpleNamespace(verdicts=self.verdicts)

    def drain(self) -> None:
        self.drains += 1


@pytest.fixture
def level() -> Iterator[logging.Logger]:
    logger = logging.getLogger(LOGGER)
    before = logger.level
    yield logger
    logger.setLevel(before)


async def adopt(subject: Any, meanwhile: Level | None) -> None:
    """Take over the settings of a worker that logs errors and drains, while the operator sets the level."""
    endpoints = controls_endpoints(cast(Subject, subject))
    (put,) = (one for one in endpoints if (one.method, one.path) == ("PUT", "/api/log-level"))

    async def ask_all(*_: object, **__: object) -> list[PeerAnswer]:
        if meanwhile is not None:
            await put.handle(ApiRequest(Nothing(), LogLevel(meanwhile), {}))
        return [PeerAnswer(1, 200, orjson.dumps(WorkerSettings([], True, "error")))]

    siblings = cast(Peers, SimpleNamespace(ask_all=ask_all))
    await adopt_at_start(cast(Subject, subject), siblings, None, but=0, start=lambda _: None)


async def test_a_worker_takes_over_the_level_and_a_drain(level: logging.Logger) -> None:
    subject = Started()
    await adopt(subject, None)
    assert (level.level, subject.drains) == (logging.ERROR, 1)


async def test_a_level_that_is_set_meanwhile_is_newer_than_the_others_answers(level: logging.Logger) -> None:
    await adopt(Started(), "debug")
    assert level.level == logging.DEBUG


async def test_a_revocation_that_the_version_before_still_confirms_holds_at_the_next(level: logging.Logger) -> None:
    subject, answers = Started(), 0
    editions: list[int] = []

    async def ask_all(*_: object, **__: object) -> list[PeerAnswer]:
        """Nothing at first, then a revocation, which each answer states a little later, and at last the end."""
        nonlocal answers
        answers += 1
        revoked = [WorkerRevocation("principal", "bob", None, 60.0 + answers / 100)] if answers > 2 else []
        settings = WorkerSettings(revoked, True, "error")
        return [PeerAnswer(0, 200, orjson.dumps(settings)) if answers < 6 else ENDED]

    async def pause() -> None:
        editions.append(subject.verdicts.edition)
        if answers == 4:
            subject.level_changes += 1
            level.setLevel(logging.DEBUG)

    await follow_settings(cast(Subject, subject), cast(Peers, SimpleNamespace(ask_all=ask_all)), pause)
    assert [one for one, _ in subject.verdicts.revocations()] == [Revocation("principal", "bob")]
    assert editions == [0, 0, 1, 1, 1], "a revocation that is known is not repeated"
    assert level.level == logging.DEBUG, "a level that is set at the next version stays"
    assert subject.drains == 0


class Before:
    """A version that gives these answers in turn, and the last of them again and again."""

    def __init__(self, *answers: list[PeerAnswer]) -> None:
        self.answers = list(answers)
        self.asked = self.pauses = 0

    async def ask_all(self, *_: object, **__: object) -> list[PeerAnswer]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def pause(self) -> None:
        self.pauses += 1


def revoking(*names: str) -> PeerAnswer:
    revoked = [WorkerRevocation("principal", name, None, 60.0) for name in names]
    return PeerAnswer(0, 200, orjson.dumps(WorkerSettings(revoked, False, "info")))


@pytest.mark.parametrize("other", [LATE, PeerAnswer(0, 502, b""), PeerAnswer(0, 503, b"")])
async def test_the_version_before_is_followed_until_it_has_ended_even_if_it_is_late_meanwhile(
    level: logging.Logger, other: PeerAnswer
) -> None:
    subject = Started()
    before = Before([revoking()], [other], [ENDED, other], [ENDED, revoking("bob")], [ENDED, ENDED])
    await follow_settings(cast(Subject, subject), cast(Peers, before), before.pause)
    assert [one for one, _ in subject.verdicts.revocations()] == [Revocation("principal", "bob")]
    assert (before.asked, before.pauses) == (5, 4)


async def test_a_version_that_never_answers_is_not_followed_for_ever(level: logging.Logger) -> None:
    before = Before(*[[LATE]] * 5, [revoking()], [LATE])
    await follow_settings(cast(Subject, Started()), cast(Peers, before), before.pause)
    assert before.pauses == 6 + MOST_PAUSES


@pytest.mark.parametrize("who", ["siblings", "earlier"])
async def test_a_worker_that_starts_asks_again_if_the_others_are_late(level: logging.Logger, who: str) -> None:
    subject, asked = Started(), Before([LATE], [LATE, ENDED], [LATE, revoking("bob")])
    peers = {"siblings": None, "earlier": None} | {who: cast(Peers, asked)}
    await adopt_at_start(cast(Subject, subject), peers["siblings"], peers["earlier"], but=0, start=lambda _: None)
    assert [one for one, _ in subject.verdicts.revocations()] == [Revocation("principal", "bob")]


@pytest.mark.parametrize(
    ("answers", "times", "late"),
    [
        ([LATE], 3, {0}),
        ([ENDED], 1, set()),
        ([], 1, set()),
        ([revoking(), PeerAnswer(1, 502, b"")], 1, {1}),
        ([PeerAnswer(0, 500, b"")], 1, set()),
    ],
)
async def test_a_start_waits_for_late_workers_in_bounded_time_and_names_them(
    level: logging.Logger, answers: list[PeerAnswer], times: int, late: set[int]
) -> None:
    asked = Before(answers)
    found = await adopt_at_start(cast(Subject, Started()), cast(Peers, asked), None, but=2, start=lambda _: None)
    assert (asked.asked, found) == (times, late)


@pytest.mark.parametrize("last", [[], [ENDED], [PeerAnswer(0, 500, b"")], [revoking("eve")]])
async def test_workers_that_were_late_are_asked_until_each_has_answered_or_ended(
    level: logging.Logger, last: list[PeerAnswer], caplog: pytest.LogCaptureFixture
) -> None:
    """The workers that have answered at the start may have started at the same moment, without the revocations."""
    subject = Started()
    bob = PeerAnswer(1, 200, revoking("bob").body)
    siblings = Before([LATE, PeerAnswer(1, 502, b"")], [LATE, bob], [LATE, bob], last, [revoking("nobody")])
    await follow_late(cast(Subject, subject), cast(Peers, siblings), {0, 1}, siblings.pause, but=2)
    assert (siblings.asked, siblings.pauses) == (4, 4)
    names = ["bob", "eve"] if last and last[0].is_good else ["bob"]
    assert [one.name for one, _ in subject.verdicts.revocations()] == names
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("workers 0, 1")


async def test_a_worker_serves_without_the_late_ones_and_hears_of_their_revocations_later(
    level: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(adoption, "_ADOPT_S", 0.05)
    monkeypatch.setattr(worker_admin, "_FOLLOW_S", 0.0)
    is_open = asyncio.Event()

    async def late(_: web.Request) -> web.Response:
        await is_open.wait()
        return web.Response(body=revoking("bob").body)

    application = web.Application()
    application.add_routes([web.get(SETTINGS, late)])
    sibling = web.AppRunner(application)
    await sibling.setup()
    await web.UnixSite(sibling, other := str(tmp_path / "peer1")).start()
    shared = SharedMemory.create(2)
    for slot in range(2):
        shared.set_slot(slot, SlotState.SERVING, 2, 1)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(path := str(tmp_path / "peer0"))
        place = SimpleNamespace(
            folder="", slot=0, generation=2, shared=shared, peer_paths=(path, other), peer_socket=own, predecessors=()
        )
        subject: Any = Started()
        clock = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
        subject.engine = SimpleNamespace(
            worker_store=None,
            clock=clock,
            live=None,
            s2=SimpleNamespace(streams=None),
            fleet=None,
            origins=SimpleNamespace(),
            health=SimpleNamespace(),
        )
        admin = WorkerAdmin(cast(WorkerPlace, place), subject, PartitionIds())
        await admin.open()
        is_open.set()
        await asyncio.wait_for(admin._tasks.finished(), 30.0)
        await admin.close()
    await sibling.cleanup()
    assert [one.name for one, _ in subject.verdicts.revocations()] == ["bob"]


async def test_a_late_workers_drain_and_level_hold_unless_an_operator_has_set_them_here(level: logging.Logger) -> None:
    settings = PeerAnswer(0, 200, orjson.dumps(WorkerSettings([], True, "error", True)))
    for is_set in (True, False):
        logging.getLogger(LOGGER).setLevel("INFO")
        subject = Started()
        subject.drain_changes = subject.level_changes = int(is_set)
        siblings = Before([settings])
        await follow_late(cast(Subject, subject), cast(Peers, siblings), {0}, siblings.pause, but=1)
        assert (level.level, subject.drains) == ((logging.INFO, 0) if is_set else (logging.ERROR, 1))
        assert subject.level_changes == 1


def answering(settings: WorkerSettings | None, asked: list[str], name: str) -> Peers:
    """Workers that all have these settings; None for workers that have ended."""

    async def ask_all(*_: object, **__: object) -> list[PeerAnswer]:
        asked.append(name)
        return [PeerAnswer(0, 200, orjson.dumps(settings)) if settings is not None else ENDED]

    return cast(Peers, SimpleNamespace(ask_all=ask_all))


@pytest.mark.parametrize("is_level_set", [True, False])
@pytest.mark.parametrize("siblings", ["none", "ended", "started", "served"])
async def test_a_worker_that_starts_during_an_upgrade_has_the_revocations_of_the_version_before_when_it_serves(
    level: logging.Logger, siblings: str, is_level_set: bool
) -> None:
    """Workers of this version that have started at the same moment answer, but have no revocations either."""
    subject, asked, held = Started(), list[str](), list[Revocation]()
    found = {
        "none": None,
        "ended": answering(None, asked, "siblings"),
        "started": answering(WorkerSettings([], False, "info", False), asked, "siblings"),
        "served": answering(WorkerSettings([], False, "debug", is_level_set), asked, "siblings"),
    }
    revoked = [WorkerRevocation("principal", "eve", None, 60.0)]
    earlier = answering(WorkerSettings(revoked, True, "error"), asked, "earlier")

    def follow(followed: Peers) -> None:
        assert followed is earlier
        held.extend(one for one, _ in subject.verdicts.revocations())

    await adopt_at_start(cast(Subject, subject), found[siblings], earlier, but=1, start=follow)
    assert held == [Revocation("principal", "eve")]
    has_level = siblings == "served" and is_level_set
    assert level.level == (logging.DEBUG if has_level else logging.ERROR), "a level of this version stays"
    assert (subject.level_changes > 0) is has_level, "and does at the next worker that asks this one"
    assert subject.drains == 0


async def test_the_version_before_and_the_other_workers_are_asked_at_once(level: logging.Logger) -> None:
    """A worker that starts again waits for one of them to be late, not for one after the other."""
    asked, are_both = list[str](), asyncio.Event()

    def waiting(name: str) -> Peers:
        async def ask_all(*_: object, **__: object) -> list[PeerAnswer]:
            asked.append(name)
            if len(asked) == 2:
                are_both.set()
            await are_both.wait()
            return []

        return cast(Peers, SimpleNamespace(ask_all=ask_all))

    start = adopt_at_start(
        cast(Subject, Started()), waiting("siblings"), waiting("earlier"), but=1, start=lambda _: asked.append("follow")
    )
    await asyncio.wait_for(start, 30.0)
    assert asked[-1] == "follow"


@pytest.mark.parametrize("has_previous_ended", [True, False])
async def test_the_level_is_that_of_the_previous_version_after_two_upgrades(
    level: logging.Logger, has_previous_ended: bool
) -> None:
    logging.getLogger(LOGGER).setLevel("INFO")
    revoked = [WorkerRevocation("principal", "eve", None, 60.0)]
    settings = orjson.dumps(WorkerSettings(revoked, True, "debug", True))
    previous = (
        ENDED if has_previous_ended else PeerAnswer(0, 200, orjson.dumps(WorkerSettings([], True, "error", True)))
    )
    subject = Started()
    before = Before([previous, PeerAnswer(1, 200, settings, earlier="worker 0 of an earlier version")], [ENDED])
    await follow_settings(cast(Subject, subject), cast(Peers, before), before.pause)
    assert level.level == (logging.INFO if has_previous_ended else logging.ERROR)
    assert [one for one, _ in subject.verdicts.revocations()] == [Revocation("principal", "eve")]


async def test_settings_of_an_unknown_form_are_logged_once_for_each_worker(
    level: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    strange = [PeerAnswer(slot, 200, b'{"revoked": []}') for slot in range(2)]
    before = Before(strange, strange, strange, [ENDED])
    await follow_settings(cast(Subject, Started()), cast(Peers, before), before.pause)
    text = "of the previous version: the form of its settings is not known, so its revocations are not taken over"
    assert caplog.messages == [f"worker {slot} {text}" for slot in range(2)]
    assert all(record.exc_info is None for record in caplog.records)


def test_a_version_that_has_ended_is_not_asked(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("peer0", "peer1")]
    assert version_before(paths) is None
    Path(paths[1]).touch()
    assert version_before(paths) is not None


async def test_without_a_version_before_only_the_other_workers_are_asked(level: logging.Logger) -> None:
    asked: list[str] = []
    siblings = answering(WorkerSettings([], False, "error"), asked, "siblings")
    await adopt_at_start(cast(Subject, Started()), siblings, None, but=1, start=lambda _: asked.append("follow"))
    assert asked == ["siblings"]
