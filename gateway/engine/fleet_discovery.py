"""Finds the members of a fleet in DNS (`gateway.engine.fleet_dns`) or in Redis (`gateway.engine.fleet_announced`), if
the configuration does not list them.

`FoundMembers` asks such a source for the members at regular times (a *look*), hands each list to the fleet, and reports
each problem of the source once.  A look that fails changes nothing: the fleet keeps its present members.

A worker writes its list to a file for workers of its gateway that start later (`KeptMembers`).  A worker that starts
while the source is unreachable therefore has the members that its siblings know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import orjson

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.config.fleet import MOST_MEMBERS, MemberConfig

_FIRST_S: Final = 3.0
"""The most seconds for which the start of the gateway waits for a successful look."""
_RETRY_S: Final = 0.5
"""The most seconds between two looks while the start waits."""
_SETTLE_S: Final = 0.1
"""The most seconds for which `FoundMembers.close` waits for a look that is under way."""

_log = logging.getLogger("gateway.fleet")


class Finding(NamedTuple):
    """The members after a successful look."""

    members: list[MemberConfig]
    """This member first, and then the others."""
    found: int
    """The number of entries that the source had.  The entry of this member counts too, if there is one."""
    problem: str
    """What is wrong with the entries, for the operator; empty if nothing is wrong."""
    again_s: float
    """Seconds until the next look."""


class MembersSource(Protocol):
    """Finds members: `gateway.engine.fleet_dns.MembersInDns`, `gateway.engine.fleet_announced.MembersInRedis`."""

    @property
    def where(self) -> str:
        """Where the members are found, in words."""

    @property
    def setting(self) -> str:
        """The setting, as the log shows it."""

    @property
    def noun(self) -> tuple[str, str]:
        """The singular and the plural of the word for an entry of the source."""

    @property
    def retry_s(self) -> float:
        """Seconds from a failed look to the next look."""

    async def look(self) -> Finding:
        """Find the members.  Raises OSError with a short line, which is equal for equal failures."""

    async def close(self) -> None:
        """Release the source, because this gateway stops."""


class KeptMembers:
    """The file with the latest list that a worker of this gateway has found."""

    def __init__(self, folder: Path, slot: int, earlier: Iterable[Path] = ()) -> None:
        """`folder` is private to the workers of this gateway.  `slot` is the number of this worker.  `earlier` are the
        folders of the versions that this version replaces in an upgrade."""
        self._file = folder / "members.json"
        self._fresh = folder / f"members-{slot}.new"
        self._files = [self._file, *(one / self._file.name for one in earlier)]
        self._kept: list[MemberConfig] = []

    def __repr__(self) -> str:
        return f"<KeptMembers in {self._file}>"

    def keep(self, setting: str, members: list[MemberConfig]) -> None:
        """Write the list that was found with this setting (`MembersSource.setting`)."""
        if members == self._kept:
            return
        try:
            self._fresh.write_bytes(orjson.dumps([setting, [[one.name, one.url] for one in members]]))
            self._fresh.replace(self._file)
            self._kept = members
        except OSError as error:
            _log.warning("cannot keep the list of members for workers that start later: %s", error)

    def read(self, setting: str) -> list[MemberConfig]:
        """Return the list that was found with this setting; empty if there is none."""
        for file in self._files:
            with suppress(OSError, ValueError):
                kept_setting, members = orjson.loads(file.read_bytes())
                if kept_setting == setting:
                    return [MemberConfig(name=name, url=url) for name, url in members]
        return []


class FoundMembers:
    """Looks for the members at regular times, from `start` to `close`."""

    def __init__(
        self,
        source: MembersSource,
        on_members: Callable[[list[MemberConfig]], object],
        clock: Clock,
        kept: KeptMembers | None = None,
    ) -> None:
        """`on_members` is called with each new list.  `kept` is None if this process is the only one."""
        self.source: Final = source
        self._kept = kept
        self._on_members = on_members
        self._clock = clock
        self.problem = ""
        """The problem of the latest look, for the operator."""
        self.has_answer = False
        """Whether the latest look has succeeded."""
        self.found = 0
        """The number of entries that the latest successful look has found."""
        self.looked = 0
        """The number of looks that have ended."""
        self._has_list = False
        """Whether a list is known, from a look of this process or from the file of `KeptMembers`."""
        self._is_alone = True
        """Whether the latest list has no other member."""
        self._on_started = asyncio.Event()
        """Set once there is a list, or the start has waited long enough."""
        self._timer: Timer | None = None
        self._tasks = Tasks()

    def __repr__(self) -> str:
        return f"<FoundMembers {self.source.where}: {self.problem or self.shown_found}>"

    @property
    def shown_found(self) -> str:
        """The number of entries in words."""
        one, several = self.source.noun
        return f"1 {one}" if self.found == 1 else f"{self.found} {several}"

    @property
    def why_unknown(self) -> str:
        """Why the other members are not known; empty if they are known."""
        why = f"{self.source.where}: {self.problem or 'no look has ended yet'}"
        return "" if self._has_list else f"the other members are not known ({why})"

    async def start(self) -> None:
        """Begin the looks, and wait at most `_FIRST_S` for a list of members."""
        if self._kept is not None and (kept := self._kept.read(self.source.setting)):
            self._use(kept)
            self._on_started.set()
        self._begin()
        limit = self._clock.call_later(_FIRST_S, self._on_started.set)
        try:
            await self._on_started.wait()
        finally:
            limit.cancel()

    async def close(self) -> None:
        """End the looks."""
        self._on_started.set()
        self._cancel_timer()
        # If the creation of a UDP socket is cancelled, uvloop leaks the socket, and closing the loop then hangs.  A
        # look-up creates its socket first.  Give a look-up that has just begun a moment to do so.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._tasks.finished()
        await self._tasks.close()
        self._cancel_timer()
        await self.source.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._tasks.start(self._look(), f"look for members {self.source.where}")

    async def _look(self) -> None:
        again_s, has_answer = self.source.retry_s, False
        try:
            finding = await self.source.look()
            self._take(finding)
            again_s, has_answer = finding.again_s, True
        except OSError as error:
            self._report_failure(str(error))
        except Exception as error:
            # Report the error instead of raising it: the looks must continue, and the start must not fail.
            name = type(error).__name__
            self._report_failure(f"the {self.source.noun[1]} could not be used ({name})", error)
        self.has_answer = has_answer
        self.looked += 1
        if has_answer:
            self._on_started.set()
        elif not self._on_started.is_set():
            again_s = min(again_s, _RETRY_S)
        self._timer = self._clock.call_later(again_s, self._begin)

    def _take(self, finding: Finding) -> None:
        self._use(finding.members)
        if self._kept is not None:
            self._kept.keep(self.source.setting, finding.members)
        self.found = finding.found
        # The operator has to correct a problem with the entries.  A failed look may succeed later without the operator.
        self._report(finding.problem, level=logging.ERROR if finding.problem else logging.WARNING)

    def _use(self, members: list[MemberConfig]) -> None:
        self._on_members(members)
        self._has_list, self._is_alone = True, len(members) == 1

    def _report_failure(self, failure: str, error: Exception | None = None) -> None:
        effect = "this gateway serves alone" if self._is_alone else "the present members stay"
        self._report(f"{failure}; {effect}", error)

    def _report(self, problem: str, error: Exception | None = None, *, level: int = logging.WARNING) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        usable = f"the {self.source.noun[1]} are usable again"
        _log.log(level, "%s: %s", self.source.setting, problem or usable, exc_info=error)


def first_members(*members: MemberConfig) -> list[MemberConfig]:
    """Return the first `MOST_MEMBERS` of these members, each name once."""
    named: dict[str, MemberConfig] = {}
    for one in members:
        named.setdefault(one.name, one)
    return list(named.values())[:MOST_MEMBERS]


def surplus_problem(count: int, noun: str) -> str:
    """Return the report to the operator that this number of members is too great; empty if it is not."""
    return f"there are too many {noun}: only {MOST_MEMBERS} are members" if count > MOST_MEMBERS else ""
