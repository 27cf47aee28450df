"""What a worker takes from others when it starts: revocations, a drain, and the log level.

A worker that starts again takes them from the other workers.  In an upgrade, the workers take them from those of the
version before, except for a drain, which that version may just begin.  They ask again until that version has ended,
because its admin port answers until then: a revocation that it confirms has to hold at the next version too.  So does a
worker that starts again during that time.

Operators set these at run time, at all workers.  A worker that has died has lost them.  Its successor listens on its
private socket before it asks the others.  A change that begins meanwhile therefore reaches the successor too, and none
falls in between.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from pydantic import ValidationError

from gateway.auth.remembered_verdicts import Revocation
from gateway.ops.admin.controls import set_level
from gateway.ops.admin.endpoint import adapter_of
from gateway.ops.admin.subject import Subject
from gateway.ops.gathering.peers import Peers
from gateway.ops.gathering.private import SETTINGS, WorkerSettings

_ADOPT_S: Final = 2.0
"""The most seconds to wait for the others."""
_SAME_S: Final = 1.0
"""Two ends of a revocation that differ by less are the same: the answers have taken some time."""

_log = logging.getLogger("gateway.admin")


def version_before(paths: Sequence[str]) -> Peers | None:
    """Return the workers with these sockets; None if their version has ended, which removes the sockets."""
    return Peers(paths, lambda _: 0) if any(map(os.path.exists, paths)) else None


async def adopt_at_start(
    subject: Subject, siblings: Peers | None, earlier: Peers | None, *, but: int, start: Callable[[Peers], None]
) -> None:
    """Take over the settings from the other workers of this version, if they have served before, and from the version
    before, if there is one.  `start` has to begin `follow_settings` with the given workers of that version."""
    has_adopted = siblings is not None and await adopt_settings(subject, siblings, but=but)
    if earlier is not None:
        if not has_adopted:
            await adopt_settings(subject, earlier, is_earlier_version=True)
        start(earlier)


async def adopt_settings(
    subject: Subject, peers: Peers, *, but: int | None = None, is_earlier_version: bool = False
) -> bool:
    """Ask workers for their settings, except the worker of the slot `but`, and apply them to this worker.  Returns
    whether any has answered."""
    found, drain_changes, level_changes = [], subject.drain_changes, subject.level_changes
    for answer in await peers.ask_all("GET", SETTINGS, within_s=_ADOPT_S, but=but):
        if answer.is_good:
            try:
                found.append(adapter_of(WorkerSettings).validate_json(answer.body))
            except ValidationError:
                _log.exception("worker %d has answered in another form", answer.slot)
    # What operators have changed at this worker too meanwhile may be newer than the others' answers.
    drains = not is_earlier_version and subject.drain_changes == drain_changes
    levels = subject.level_changes == (0 if is_earlier_version else level_changes)
    apply_settings(subject, found, drains=drains, levels=levels)
    if not is_earlier_version and levels and any(one.is_level_set for one in found):
        # The level of the version before is none for this version any more.
        subject.level_changes += 1
    return bool(found)


async def follow_settings(subject: Subject, earlier: Peers, pause: Callable[[], Awaitable[None]]) -> None:
    """Take over what operators set at the version before, until none of its workers answers.  `pause` is called between
    two questions."""
    while await adopt_settings(subject, earlier, is_earlier_version=True):
        await pause()


def apply_settings(subject: Subject, found: Iterable[WorkerSettings], *, drains: bool, levels: bool) -> None:
    """Apply the settings of other workers: a drain only if `drains`, and the log level only if `levels`."""
    verdicts = subject.routes.verdicts
    for settings in found:
        if levels:
            set_level(settings.level)
        known = dict(verdicts.revocations())
        for one in settings.revocations:
            revocation = Revocation(one.subject, one.name, one.issuer)
            # A revocation that has come meanwhile may hold for longer.  Repeating one would drop kept verdicts.
            if revocation not in known or known[revocation] < one.for_s - _SAME_S:
                verdicts.revoke(revocation, one.for_s)
        if drains and settings.is_draining and not subject.engine.drain.is_set:
            subject.drain()
