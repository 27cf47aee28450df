"""Members with one fault each, which the walk has to find."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any, Final

from gateway.engine import fleet_writes
from gateway.engine.fleet_processes import Met
from gateway.engine.fleet_reachability import Member
from gateway.engine.fleet_upstream import FleetUpstream
from gateway.engine.fleet_writes import CountedWrites, SeenWrites
from gateway.engine.live_start import LiveReads
from gateway.engine.owner_upstream import HopUpstream
from gateway.protocol.fleet_headers import MemberField
from gateway.protocol.sharing import Group
from gateway.upstream.origin_call import Handed, Shared
from gateway.upstream.reply import Reply
from gateway.workers.member_owners import MemberOwners
from tests.chaos.mutant import Mutant, Patches, nothing, registrar

MUTANTS: Final[list[Mutant]] = []
mutant = registrar(MUTANTS)


@mutant("a member counts the writes that it relays")
def writes_are_not_counted() -> Patches:
    return [(CountedWrites, "_add", nothing)]


@mutant("a write is counted before a byte of its answer leaves")
def writes_are_counted_late() -> Patches:
    answered = CountedWrites.answered

    def late(self: CountedWrites, write: Any, reply: Reply) -> None:
        asyncio.get_running_loop().call_later(0.5, answered, self, write, reply)

    return [(CountedWrites, "answered", late)]


@mutant("a DELETE may have ended a stream")
def every_write_is_an_append() -> Patches:
    add = CountedWrites._add
    return [(CountedWrites, "_add", lambda self, write, **_: add(self, write, is_append=True))]


@mutant("the owner asks the origin before it answers a member that has relayed a write")
def counts_have_no_effect() -> Patches:
    return [(SeenWrites, "look", nothing)]


@mutant("the counts of one path say nothing of another")
def counts_are_of_all_paths() -> Patches:
    def of_member(text: bytes, digest_size: int) -> Any:
        return blake2b(text.partition(b"\0")[0], digest_size=digest_size)

    return [(fleet_writes, "blake2b", of_member)]


@mutant("an earlier process of the member may have relayed writes")
def every_process_of_a_member_is_known() -> Patches:
    look = SeenWrites.look

    def as_one(self: SeenWrites, sender: MemberField, group: Group, met: Met) -> None:
        look(self, sender._replace(instance="0" * 16), group, met)

    return [(SeenWrites, "look", as_one)]


@mutant("a stream has one owner")
def every_member_owns_every_stream() -> Patches:
    return [(MemberOwners, "other_owner", nothing)]


@mutant("members that reach the same members name the same owner")
def members_rank_differently() -> Patches:
    mark = MemberOwners._mark
    return [(MemberOwners, "_mark", lambda self, name: mark(self, f"{self._own}{name}"))]


@mutant("a request from a member goes to the origin")
def requests_of_members_are_handed_on() -> Patches:
    owner_for = HopUpstream.owner_for

    def handed_on(self: HopUpstream, shared: Shared) -> int | None:
        if shared.handed is Handed.BY_MEMBER and isinstance(self, FleetUpstream):
            return next((index for index in self._fleet.members if self.owners.is_reached(index)), None)  # type: ignore[attr-defined]
        return owner_for(self, shared)

    return [(HopUpstream, "owner_for", handed_on)]


@mutant("a live request moves to the new owner")
def live_requests_stay_where_they_are() -> Patches:
    return [(HopUpstream, "_owners_changed", nothing)]


@mutant("a member that does not answer owns no streams")
def lost_members_keep_their_streams() -> Patches:
    return [(MemberOwners, "set_reached", _only_reached())]


def _only_reached() -> Any:
    set_reached = MemberOwners.set_reached

    def only(self: MemberOwners, member: int, *, is_reached: bool) -> None:
        if is_reached:
            set_reached(self, member, is_reached=True)

    return only


@mutant("a member that returns gets its streams back")
def lost_members_stay_lost() -> Patches:
    judge = Member.judge

    def judged(self: Member, why_not: str) -> None:
        if why_not or not self.losses:
            judge(self, why_not)

    return [(Member, "judge", judged)]


@mutant("a live request that was sent for another member moves to the owner for a client")
def live_requests_for_members_stay() -> Patches:
    return [(LiveReads, "_own", nothing)]
