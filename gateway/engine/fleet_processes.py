"""The processes of the other members that one member knows, and which of these processes get no new answers.

A process gets no new answers once its member has left the list, or once another process has answered at the member's
URL in the list.  After a member has left the list, a new process of that name is answered like a new member that is not
in the list yet.

A process is identified by its member's name and by the random name that it sends (`gateway.protocol.fleet_headers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_MOST: Final = 1_024
"""The most processes without new answers that are remembered, and the most processes of unlisted members."""


class Met(NamedTuple):
    """The first contact of this process with a process of another member."""

    at: float
    """The time of the first request or answer from the other process (monotonic seconds)."""
    is_successor: bool = False
    """Whether this process knew an earlier process of the same member."""


class MemberProcesses:
    """The processes of other members that one member knows."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: dict[tuple[str, str], None] = {}
        """The processes that get no new answers, each with its member's name.  Either the member has left the list, or
        another process has replaced the process."""
        self._unlisted: dict[tuple[str, str], None] = {}
        """The processes that have sent a request under a name that is not in the list."""
        self._met: dict[str, tuple[str, Met]] = {}
        """By the name of each member: its latest process, and the first contact with that process."""
        self._identified: dict[str, str] = {}
        """By the name of each member: the latest process that has answered at the member's URL in the list."""

    def __repr__(self) -> str:
        return f"<MemberProcesses {len(self._met)} met, {len(self._left)} answered no more>"

    def met(self, name: str, instance: str) -> Met:
        """Return the first contact with a member's process.  If this process is new, the first contact is now."""
        met = self._met.get(name)
        if met is None or met[0] != instance:
            met = self._met[name] = instance, Met(self._now(), met is not None)
        return met[1]

    def identify(self, name: str, instance: str) -> None:
        """Record which process answers at a member's URL in the list.  The process that has answered there before gets
        no new answers."""
        self._left.pop((name, instance), None)
        earlier = self._identified.get(name)
        if earlier is not None and earlier != instance:
            _remember(self._left, (name, earlier))
        self._identified[name] = instance
        self.met(name, instance)

    def remove(self, name: str) -> None:
        """Record that a member has left the list.  Its latest processes get no new answers."""
        met = self._met.pop(name, None)
        for process in {self._identified.pop(name, None), met[0] if met is not None else None} - {None}:
            _remember(self._left, (name, str(process)))

    def has_left(self, name: str, instance: str) -> bool:
        """Return whether a process gets no new answers, because its member has left the list or because another process
        has replaced it."""
        return (name, instance) in self._left

    def is_new_unlisted(self, name: str, instance: str) -> bool:
        """Record a request of a process whose member is not in the list.  Return whether this is the first such request
        of the process."""
        if (name, instance) in self._unlisted:
            return False
        _remember(self._unlisted, (name, instance))
        return True


def _remember(processes: dict[tuple[str, str], None], process: tuple[str, str]) -> None:
    """Add a process, and forget the earliest one if there are too many."""
    processes[process] = None
    if len(processes) > _MOST:
        del processes[next(iter(processes))]
