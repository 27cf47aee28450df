"""The processes of the other members, as one member has met them: which of them get no new answers.

A process gets no new answers once its member has left the list, or once another process has answered at the member's
URL in the list.  Another process of that name is answered like a new member that is not in the list yet.

A process is named by its member and by the random name that it sends (`gateway.protocol.fleet_headers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_MOST: Final = 1_024
"""The most processes that are remembered because they get no new answers, and because they are not in the list."""


class Met(NamedTuple):
    """How this process has met a member's process."""

    at: float
    """When this process first heard of it (monotonic seconds)."""
    is_successor: bool = False
    """Whether this process has heard of another one of that member before."""


class MemberProcesses:
    """The processes that one member has heard of."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: dict[tuple[str, str], None] = {}
        """The processes that are answered no more, each with its member's name: those of members that have left the
        list, and those that were replaced."""
        self._unlisted: dict[tuple[str, str], None] = {}
        """The processes that have asked under a name that is not in the list."""
        self._met: dict[str, tuple[str, Met]] = {}
        """By the name of each member: its latest process, and how this one has met it."""
        self._identified: dict[str, str] = {}
        """By the name of each member: the latest process that has answered at the member's URL in the list."""

    def __repr__(self) -> str:
        return f"<MemberProcesses {len(self._met)} met, {len(self._left)} answered no more>"

    def met(self, name: str, instance: str) -> Met:
        """Return how this process has met a member's process, which may be now."""
        met = self._met.get(name)
        if met is None or met[0] != instance:
            met = self._met[name] = instance, Met(self._now(), met is not None)
        return met[1]

    def identify(self, name: str, instance: str) -> None:
        """Record which process answers at a member's URL in the list.  A process that has answered there before was
        replaced."""
        self._left.pop((name, instance), None)
        earlier = self._identified.get(name)
        if earlier is not None and earlier != instance:
            _remember(self._left, (name, earlier))
        self._identified[name] = instance
        self.met(name, instance)

    def remove(self, name: str) -> None:
        """Record that a member has left the list, with its latest processes."""
        met = self._met.pop(name, None)
        for process in {self._identified.pop(name, None), met[0] if met is not None else None} - {None}:
            _remember(self._left, (name, str(process)))

    def has_left(self, name: str, instance: str) -> bool:
        """Return whether a process has left the list, or was replaced."""
        return (name, instance) in self._left

    def is_new_unlisted(self, name: str, instance: str) -> bool:
        """Record that a process has asked whose member is not in the list.  Return whether this is the first time."""
        if (name, instance) in self._unlisted:
            return False
        _remember(self._unlisted, (name, instance))
        return True


def _remember(processes: dict[tuple[str, str], None], process: tuple[str, str]) -> None:
    """Add a process, and forget the earliest one if there are too many."""
    processes[process] = None
    if len(processes) > _MOST:
        del processes[next(iter(processes))]
