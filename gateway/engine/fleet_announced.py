"""Finds the members of a fleet in Redis: each member announces itself there, and reads the others' announcements.

An announcement has the member's name and URL.  It expires `LIFE_S` after its latest renewal, so a member that has died
disappears.  A member removes its announcement when it stops in order.  All workers of a member share one announcement:
the worker that first finds that a renewal is due renews the announcement.

A member whose announcement is missing stays in the list while it answers probes, as with DNS.  If Redis was
unreachable or has lost its data, announcements may be missing for another reason.  Each present member then stays in
the list for `HOLD_S`, so that it has time to announce itself again.  This gateway detects such a case in two ways: a
look has failed, or the gateway's own announcement is missing.

A name belongs to the gateway that is announced under it.  A second gateway with the same name and another URL does not
announce itself while that announcement lasts, and reports the conflict.  A gateway with the same name and the same URL
takes the name over, because the announced process at this URL has ended.  A restarted gateway is therefore listed at
once.  In an upgrade, the earlier version still runs.  Its announcement then lists the next version too, and the next
version renews this announcement once the earlier version has stopped doing so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple, Protocol

from gateway.aio.clock import Clock
from gateway.config.fleet import MemberConfig
from gateway.engine.fleet_discovery import Finding, first_members, surplus_problem
from gateway.engine.foreign_entries import ForeignEntries
from gateway.protocol.stored_orders import Announcement, Seal

LOOK_S: Final = 1.0
"""Seconds between two looks at the announcements, varied by a fifth."""
LIFE_S: Final = 10.0
"""Seconds from the latest renewal of an announcement to its end."""
RENEW_S: Final = 3.0
"""The age in seconds at which an announcement is renewed."""
HOLD_S: Final = LIFE_S
"""Seconds for the other members to announce themselves again after Redis was unreachable or has lost its data."""
MOST_OFF_S: Final = 30.0
"""The most seconds by which the time in an announcement may be wrong.  The reason for this tolerance is that the
members' clocks differ."""
_MOST_LOST: Final = 3
"""The operator gets a report if this many successive looks have missed the announcement of this gateway that the
preceding look had written."""


class MemberStore(Protocol):
    """The announcements in Redis: `gateway.upstream.redis_members.RedisMembers`."""

    @property
    def shown(self) -> str: ...

    async def entries(self) -> list[tuple[bytes, bytes]]: ...

    async def announce(self, name: str, entry: bytes, life_s: float) -> None: ...

    async def withdraw(self, name: str, is_own: Callable[[bytes], bool]) -> None: ...

    async def close(self) -> None: ...


class PresentMember(Protocol):
    """Another member in the present list: `gateway.engine.fleet_reachability.Member`."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def answers(self) -> bool:
        """Whether the member has answered the latest probe."""


class OwnAnnouncement(NamedTuple):
    """The result of judging the announcement under this gateway's name."""

    is_due: bool
    """Whether this gateway has to announce itself now."""
    problem: str = ""
    """The conflict with another gateway, for the operator; empty if there is none."""


def judge_own(
    found: Announcement | None, own: Announcement, *, has_announced: bool, is_successor: bool = False
) -> OwnAnnouncement:
    """Judge the announcement that was found under this gateway's name.

    `own` is the announcement that this gateway would make now.  `has_announced` states whether this gateway was
    announced before.  `is_successor` states whether this gateway replaces an earlier version in an upgrade.
    """
    if found is None:
        return OwnAnnouncement(is_due=True)
    if found.instance == own.instance:
        return OwnAnnouncement(abs(own.at - found.at) >= RENEW_S)
    conflict = f"another gateway is announced as {own.name} at {found.url}"
    if found.url != own.url:
        why = "because each needs a fleet.name of its own"
        return OwnAnnouncement(False, f"{conflict}: this one is not announced, {why}")
    if has_announced:
        return OwnAnnouncement(False, f"{conflict} too: each needs a fleet.name and a fleet.url of its own")
    # The earlier version renews its announcement until it is replaced, and would report an announcement of this version
    # as a conflict.
    return OwnAnnouncement(is_due=not is_successor or abs(own.at - found.at) >= 2 * RENEW_S)


def listed_members(
    announced: Iterable[MemberConfig], own: MemberConfig, present: Iterable[PresentMember], held: Collection[str] = ()
) -> tuple[list[MemberConfig], str]:
    """Return the members after a look, and the problem with them.  `announced` are the announcements of others.

    The members are, up to `MOST_MEMBERS`: this member, the present members that answer probes, the present members in
    `held`, and then the announced members in the order of their names.  The URL in an announcement replaces the present
    URL of the member.  If two members have the same URL, only the first of them is listed.
    """
    by_name = {one.name: one for one in sorted(announced, key=lambda one: one.name)}
    now = [(one.answers, MemberConfig(name=one.name, url=one.url)) for one in present]
    answering = [one for answers, one in now if answers]
    kept = [one for _, one in now if one.name in held]
    # Present members come first, so that a second member at a URL does not replace the first one.
    known = [one for _, one in now if one.name in by_name]
    # Later values replace earlier values, so the announced URL of a name is used.
    every = {one.name: one for one in (own, *answering, *kept, *known, *by_name.values())}
    at_url: dict[str, MemberConfig] = {}
    problems = []
    for one in every.values():
        if (first := at_url.setdefault(one.url, one)) is not one:
            both = f"{first.name} and {one.name}"
            problems.append(f"{both} are both announced at {one.url}: each gateway needs a fleet.url of its own")
    problems.append(surplus_problem(len(at_url), "announcements"))
    return first_members(*at_url.values()), "; ".join(filter(None, problems))


class MembersInRedis:
    """Announces this gateway in Redis, and finds the other members there
    (`gateway.engine.fleet_discovery.MembersSource`)."""

    def __init__(
        self,
        store: MemberStore,
        seal: Seal,
        own: MemberConfig,
        instance: str,
        present: Callable[[], Collection[PresentMember]],
        is_replaced: Callable[[], bool],
        foreign: ForeignEntries,
        clock: Clock,
        rng: Random,
        *,
        is_successor: bool = False,
    ) -> None:
        """`present` returns the other members in the list.  `is_replaced` returns whether another version of this
        gateway serves in its place, under its name.  `is_successor` states whether this gateway replaces an earlier
        version."""
        self.where: Final = f"in Redis at {store.shown}"
        self.setting: Final = f"fleet.members_redis at {store.shown}"
        self.noun: Final = "announcement", "announcements"
        self.retry_s: Final = LOOK_S
        self.is_replaced = is_replaced
        self._is_successor = is_successor
        self._store = store
        self._seal = seal
        self._own = own
        self._instance = instance
        self._present = present
        self._foreign = foreign
        self._clock = clock
        self._rng = rng
        self._has_announced = False
        """Whether Redis has ever had an announcement of this gateway since it started."""
        self._is_new = False
        """Whether this process has written the announcement at the latest look."""
        self._lost = 0
        """The number of successive looks that have missed the announcement which the preceding look had written."""
        self._is_away = True
        """Whether Redis could not be reached at the latest look.  True before the first look."""
        self._held_until: dict[str, float] = {}
        """By the names of members: the time until which the member stays in the list without an announcement.  Has the
        members that have not announced themselves again since Redis was unreachable or has lost its data."""

    def __repr__(self) -> str:
        return f"<MembersInRedis {self._own.name} {self.where}>"

    async def look(self) -> Finding:
        """Find the announcements of all members, and announce this gateway if an announcement is due."""
        try:
            entries = await self._store.entries()
        except OSError:
            self._is_away = True
            raise
        was_away, self._is_away = self._is_away, False
        own = Announcement(self._own.name, self._own.url, self._instance, self._clock.wall())
        announced, problem = self._read(entries, own.at)
        found = announced.pop(own.name, None)
        self._hold(announced, may_lack=was_away or (self._has_announced and found is None))
        judged = OwnAnnouncement(is_due=False)
        if not self.is_replaced():
            judged = judge_own(found, own, has_announced=self._has_announced, is_successor=self._is_successor)
        is_announced = found is not None and found.instance == own.instance
        self._lost = self._lost + 1 if self._is_new and found is None else 0
        self._is_new = False
        lost = "the announcement of this gateway is lost again and again" if self._lost >= _MOST_LOST else ""
        problems = [judged.problem, problem, lost]
        if judged.is_due:
            try:
                await self._store.announce(own.name, self._seal.announcement(own), LIFE_S)
                is_announced = self._is_new = True
            except OSError as error:
                problems.append(f"this gateway cannot be announced: {error}")
        self._has_announced |= is_announced
        others = [MemberConfig(name=one.name, url=one.url) for one in announced.values()]
        members, problem = listed_members(others, self._own, self._present(), self._held_until)
        return Finding(
            members,
            len(announced) + is_announced,
            "; ".join(filter(None, [*problems, problem])),
            LOOK_S * self._rng.uniform(0.8, 1.2),
        )

    def _hold(self, announced: Collection[str], *, may_lack: bool) -> None:
        """Decide which present members stay for now without an announcement.  `may_lack` states whether Redis may lack
        announcements of members that are alive."""
        now = self._clock.now()
        if may_lack:
            # A member that is held gets no more time.  Otherwise a dead one would stay while Redis fails now and then.
            held = self._held_until
            self._held_until = {one.name: held.get(one.name, now + HOLD_S) for one in self._present()}
        self._held_until = {
            name: until for name, until in self._held_until.items() if name not in announced and now < until
        }

    def _read(self, entries: Iterable[tuple[bytes, bytes]], wall: float) -> tuple[dict[str, Announcement], str]:
        """Return the announcements of this fleet's members, by name, and the problem with these announcements."""
        found: dict[str, Announcement] = {}
        off: list[str] = []
        for name, entry in entries:
            try:
                announcement = self._seal.read_announcement(entry)
                if announcement.name.encode() != name:
                    raise ValueError("another name")
                MemberConfig(name=announcement.name, url=announcement.url)
            except ValueError:
                self._foreign.ignore()
                continue
            if -MOST_OFF_S <= wall - announcement.at <= LIFE_S + MOST_OFF_S:
                found[announcement.name] = announcement
            elif announcement.name != self._own.name:
                off.append(announcement.name)
        names = ", ".join(sorted(off))
        why = "the clocks differ, or it was written again"
        return found, f"the time in the announcement of {names} is wrong: {why}" if off else ""

    def _is_own(self, entry: bytes) -> bool:
        try:
            return self._seal.read_announcement(entry).instance == self._instance
        except ValueError:
            return False

    async def close(self) -> None:
        """Remove the announcement of this gateway, unless another version serves in its place, and close the
        connection."""
        if self._has_announced and not self._is_away and not self.is_replaced():
            # An announcement that cannot be removed now expires later.
            with suppress(OSError):
                await self._store.withdraw(self._own.name, self._is_own)
        await self._store.close()
