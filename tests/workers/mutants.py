"""Gateways with workers that have one fault each, and the checks that have to find it (`tests.workers.checks`)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from gateway.engine.others_writes import OthersWrites
from gateway.engine.owner_upstream import HopUpstream
from gateway.ops.gathering.peers import PeerAnswer, Peers
from gateway.ops.gathering.private import PURGE
from gateway.protocol.sharing import Group
from gateway.protocol.worker_headers import HOP, HopAsk
from gateway.server.context import RequestContext
from gateway.server.hop import HopHandler
from gateway.upstream.origin_call import Handed, Shared
from gateway.workers.shared_origins import SharedOrigins
from gateway.workers.worker_owners import Owners
from gateway.workers.write_log import WriteLog
from tests.chaos.mutant import Mutant, Patches, nothing, registrar
from tests.workers import checks
from tests.workers.site import Site

MUTANTS: Final[list[Mutant]] = []
mutant = registrar(MUTANTS)


@mutant("a write is recorded for the other workers before a byte of its answer leaves")
def writes_are_not_recorded() -> Patches:
    def _record(self: WriteLog, place: int, index: int, *_: object) -> bytes:
        at = self.row(index).start + 8 * place
        return bytes(self.raw[at : at + 8])

    return [(WriteLog, "_record", _record)]


@mutant("a request that another worker has handed over goes to the origin")
def handed_requests_are_handed_on() -> Patches:
    whole = HopUpstream.owner_for

    def owner_for(self: HopUpstream, shared: Shared) -> int | None:
        owners = cast(Owners, self.owners)
        return (owners._slot + 1) % owners._shared.workers if shared.handed is not Handed.NO else whole(self, shared)

    return [(HopUpstream, "owner_for", owner_for)]


@mutant("a stream has one owner")
def every_worker_owns_every_stream() -> Patches:
    return [(Owners, "other_owner", nothing)]


@mutant("a purge is answered when all workers have done it")
def purges_stay_with_one_worker() -> Patches:
    whole = Peers.ask_all

    async def ask_all(self: Peers, method: str, target: str, *rest: Any, **more: Any) -> list[PeerAnswer]:
        answers = await whole(self, method, target, *rest, **more) if target != PURGE else []
        if target == PURGE:
            answers = [await self._ask(0, method, target, rest[0], rest[1])]
        return answers

    return [(Peers, "ask_all", ask_all)]


@mutant("a revocation is answered when it holds at all workers")
def revocations_stay_with_one_worker() -> Patches:
    whole = Peers.ask_all

    async def ask_all(self: Peers, method: str, target: str, *rest: Any, **more: Any) -> list[PeerAnswer]:
        if target == "/api/revoke":
            return [await self._ask(0, method, target, rest[0], rest[1])]
        return await whole(self, method, target, *rest, **more)

    return [(Peers, "ask_all", ask_all)]


@mutant("bytes that a worker holds are shown only after a look at what others have written")
def held_bytes_are_shown_without_a_look() -> Patches:
    whole = OthersWrites.look

    def look(self: OthersWrites, group: Group) -> None:
        # Only those who ask the owner or the origin look.
        if sys._getframe(1).f_code.co_filename.endswith("hop.py"):
            whole(self, group)

    return [(OthersWrites, "look", look)]


@mutant("an owner looks at what others have written before it answers a read that another worker passes on")
def passed_reads_are_answered_without_a_look() -> Patches:
    whole = HopHandler._begin

    def _begin(self: HopHandler, context: RequestContext, *rest: Any) -> Any:
        is_passed = HopAsk.parse(context.request.headers[HOP]).accepted is not None
        others, self._others = self._others, None if is_passed else self._others
        try:
            return whole(self, context, *rest)
        finally:
            self._others = others

    return [(HopHandler, "_begin", _begin)]


@mutant("the failures of all workers open one breaker")
def each_worker_has_its_own_breaker() -> Patches:
    return [(SharedOrigins, "join", nothing)]


class Finding(NamedTuple):
    """The check that finds a mutant, and what the check says of it."""

    check: Callable[[Site], Awaitable[None]]
    text: str
    has_rules: bool = False
    """Whether the check needs a gateway with rules of authorisation."""


FINDINGS: Final[Mapping[str, Finding]] = {
    "writes-are-not-recorded": Finding(checks.check_followed_appends, r"^/followed: \[\] in place of \[0\]"),
    "handed-requests-are-handed-on": Finding(checks.check_hops, "under way at 3 workers, and not at the origin"),
    "every-worker-owns-every-stream": Finding(checks.check_live_requests, r"^live requests at once: \d+ in place of 6"),
    "purges-stay-with-one-worker": Finding(checks.check_purges, r"^/purged: \[1\] in place of \[2\]"),
    "revocations-stay-with-one-worker": Finding(
        checks.check_revocations, r"^ended live reads: 1 in place of 3", has_rules=True
    ),
    "held-bytes-are-shown-without-a-look": Finding(
        checks.check_followed_appends, r"^/followed: \[\] in place of \[0\]"
    ),
    "passed-reads-are-answered-without-a-look": Finding(
        checks.check_passed_reads, r"^/passed/\d+: \[\] in place of \[0\]"
    ),
    "each-worker-has-its-own-breaker": Finding(
        checks.check_breaker, r"^reports of an unreachable origin: [23] in place of 1"
    ),
}
