"""What a worker takes from others when it starts: revocations, a drain, and the log level.

A worker that starts again takes them from the other workers.  After an upgrade, the workers take them from those of the
version before, except for a drain, which that version may just begin.

Operators set these at run time, at all workers.  A worker that has died has lost them.  Its successor listens on its
private socket before it asks the others.  A change that begins meanwhile therefore reaches the successor too, and none
falls in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
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

_log = logging.getLogger("gateway.admin")


async def adopt_settings(subject: Subject, peers: Peers, *, but: int | None = None, drains: bool = True) -> None:
    """Ask workers for their settings, except the worker of the slot `but`, and apply them to this worker.  A drain is
    taken over only if `drains`."""
    found, drain_changes, level_changes = [], subject.drain_changes, subject.level_changes
    for answer in await peers.ask_all("GET", SETTINGS, within_s=_ADOPT_S, but=but):
        if answer.is_good:
            try:
                found.append(adapter_of(WorkerSettings).validate_json(answer.body))
            except ValidationError:
                _log.exception("worker %d has answered in another form", answer.slot)
    # What operators have changed at this worker too meanwhile may be newer than the others' answers.
    drains = drains and subject.drain_changes == drain_changes
    apply_settings(subject, found, drains=drains, levels=subject.level_changes == level_changes)


def apply_settings(subject: Subject, found: Iterable[WorkerSettings], *, drains: bool, levels: bool) -> None:
    """Apply the settings of other workers: a drain only if `drains`, and the log level only if `levels`."""
    verdicts = subject.routes.verdicts
    for settings in found:
        if levels:
            set_level(settings.level)
        known = dict(verdicts.revocations())
        for one in settings.revocations:
            revocation = Revocation(one.subject, one.name, one.issuer)
            # A revocation that has come meanwhile may hold for longer.
            if known.get(revocation, 0.0) < one.for_s:
                verdicts.revoke(revocation, one.for_s)
        if drains and settings.is_draining and not subject.engine.drain.is_set:
            subject.drain()
