"""The settings that a worker takes over when it starts: revocations, a drain, and the log level.

Operators set these at run time, at all workers.  A worker that has died has lost them, so its successor asks the other
workers before it accepts connections.  The successor listens on its private socket before it asks.  A change that
begins during the questions therefore reaches the successor too.  A worker is *late* if it has not answered in time.  It
may be the only worker that knows a revocation, because the others may have started at the same moment.  A late worker
is therefore asked again until it has answered or ended.

While an upgrade ends, the admin port of the previous version still answers.  A revocation that this port confirms must
be in effect at the new version too.  Each worker that starts during this time therefore asks the previous version, and
repeats the question until the previous version has ended.  A worker of the previous version first refuses changes.  It
ends only when each of these workers has had the time to ask once more.

A starting worker waits for the first answers of the previous version before it accepts connections.  The answers of the
other workers of its own version do not suffice: these workers may have started at the same moment, and may know no
revocation yet.  A drain of the previous version is not taken over, because that version drains only because it is
replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.auth.remembered_verdicts import Revocation
from gateway.ops.admin.controls import set_level
from gateway.ops.admin.endpoint import adapter_of
from gateway.ops.admin.subject import Subject
from gateway.ops.gathering.peers import PeerAnswer, Peers
from gateway.ops.gathering.private import SETTINGS, WorkerSettings

_ADOPT_S: Final = 2.0
"""The most seconds to wait for the answers of the other workers in one round of questions."""
_ROUNDS: Final = 3
"""The most rounds in which a starting worker asks the other workers.  A further round follows only if no worker has
given a good answer, and at least one worker is late."""
MOST_PAUSES: Final = 300
"""After this many successive pauses without a good answer, the previous version is no longer asked.  If its workers are
late each time, this takes longer than the longest drain."""

_Found = dict[PeerAnswer, WorkerSettings]
"""The settings in the workers' answers."""

_log = logging.getLogger("gateway.admin")


def version_before(paths: Sequence[str]) -> Peers | None:
    """Return the workers with these sockets; None if no socket exists any more, because their versions have ended.

    `paths` has the sockets of the previous version first.  After two upgrades in a row, the sockets of a still earlier
    version may follow.  Each version has a folder of its own."""
    if not any(map(os.path.exists, paths)):
        return None
    folders = [Path(path).parent for path in paths]
    earlier = {
        index: f"worker {index - folders.index(folder)} of an earlier version"
        for index, folder in enumerate(folders)
        if folder != folders[0]
    }
    return Peers(paths, lambda _: 0, earlier)


async def adopt_at_start(
    subject: Subject, siblings: Peers | None, earlier: Peers | None, *, but: int, start: Callable[[Peers], None]
) -> set[int]:
    """Take over the settings from the other workers of this version, if they have served before, and from the previous
    version, if there is one.  Takes at most `_ADOPT_S` for each of `_ROUNDS` rounds.

    `but` is the slot of this worker.  `start` is called with the workers of the previous version, and must begin
    `follow_settings` with them.  Returns the slots of the late workers of this version, for `follow_late`."""
    drain_changes, level_changes = subject.drain_changes, subject.level_changes
    (found, late), (found_before, _) = await asyncio.gather(
        _first_settings_of(siblings, but), _first_settings_of(earlier)
    )
    # If an operator has changed a drain or the level at this worker meanwhile, the others' answers may be older.
    drains, levels = subject.drain_changes == drain_changes, subject.level_changes == level_changes
    _apply_siblings(subject, found.values(), drains=drains, levels=levels)
    if earlier is not None:
        _apply_earlier(subject, found_before)
        start(earlier)
    return late


async def follow_late(
    subject: Subject, siblings: Peers, late: set[int], pause: Callable[[], Awaitable[None]], *, but: int
) -> None:
    """Take over the settings of the workers of this version that were late at the start, until each of them has
    answered or ended.  `pause` is called before each round of questions.  `but` is the slot of this worker."""
    names = ", ".join(map(str, sorted(late)))
    _log.warning("late with revocations and other settings, and asked until they answer: workers %s", names)
    while late:
        await pause()
        answers = [one for one in await _ask(siblings, but) if one.slot in late]
        # Settings that operators have made at this worker may be newer than the late workers' answers.
        drains, levels = subject.drain_changes == 0, subject.level_changes == 0
        _apply_siblings(subject, _settings_in(answers).values(), drains=drains, levels=levels)
        late = {one.slot for one in answers if one.is_late}


async def follow_settings(subject: Subject, earlier: Peers, pause: Callable[[], Awaitable[None]]) -> None:
    """Take over the settings of the previous version, until it has ended.  `pause` is called between two rounds of
    questions, and at most `MOST_PAUSES` times in succession without a good answer."""
    pauses, strange = 0, set[int]()
    while pauses <= MOST_PAUSES:
        answers = await _ask(earlier)
        if all(one.has_ended for one in answers):
            return
        found = _settings_in(answers, strange)
        _apply_earlier(subject, found)
        pauses = 0 if found else pauses + 1
        if pauses <= MOST_PAUSES:
            await pause()


async def _first_settings_of(peers: Peers | None, but: int | None = None) -> tuple[_Found, set[int]]:
    """Return the settings of all workers except the worker of the slot `but`, and the slots of the late workers.  If no
    worker gives a good answer and some are late, ask again, because a late worker may know a revocation."""
    if peers is None:
        return {}, set()
    for _ in range(_ROUNDS):
        answers = await _ask(peers, but)
        found, late = _settings_in(answers), {one.slot for one in answers if one.is_late}
        if found or not late:
            break
    return found, late


async def _ask(peers: Peers, but: int | None = None) -> list[PeerAnswer]:
    return await peers.ask_all("GET", SETTINGS, within_s=_ADOPT_S, but=but)


def _settings_in(answers: Iterable[PeerAnswer], strange: set[int] | None = None) -> _Found:
    """Return the settings in the good answers.

    An answer of an unknown form is logged once for each slot.  `strange` has the slots for which this was done.
    Without `strange`, nothing is logged.
    """
    found = {}
    for answer in answers:
        if answer.is_good:
            try:
                found[answer] = adapter_of(WorkerSettings).validate_json(answer.body)
            except ValidationError:
                if strange is not None and answer.slot not in strange:
                    strange.add(answer.slot)
                    text = "the form of its settings is not known, so its revocations are not taken over"
                    _log.warning("%s: %s", answer.earlier or f"{answer.name} of the previous version", text)
    return found


def _apply_siblings(subject: Subject, found: Collection[WorkerSettings], *, drains: bool, levels: bool) -> None:
    """Apply the settings of other workers of this version."""
    apply_settings(subject, found, drains=drains, levels=levels)
    if levels and any(one.is_level_set for one in found):
        # An operator has set the level of this version.  The level of the previous version no longer matters.
        subject.level_changes += 1


def _apply_earlier(subject: Subject, found: _Found) -> None:
    """Apply the settings of the previous version, and of still earlier versions that drain.  If no operator has set the
    log level of this version, use the level of the previous version."""
    for answer, settings in found.items():
        apply_settings(subject, [settings], drains=False, levels=subject.level_changes == 0 and not answer.earlier)


def apply_settings(subject: Subject, found: Iterable[WorkerSettings], *, drains: bool, levels: bool) -> None:
    """Apply the settings of other workers: a drain only if `drains` is set, and the log level only if `levels` is
    set."""
    verdicts = subject.routes.verdicts
    for settings in found:
        if levels:
            set_level(settings.level)
        for one in settings.revocations:
            verdicts.take_over(Revocation(one.subject, one.name, one.issuer), one.for_s)
        if drains and settings.is_draining and not subject.engine.drain.is_set:
            subject.drain()
