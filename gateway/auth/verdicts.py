"""Remembered verdicts of a process.  Their expiry, a revocation or a change of keys ends them.

A verdict is valid until its `until`, and only in the edition in which it was given.  A revocation or a change of rules
begins another edition, so that all requests are judged again.  Verified tokens stay known.  Live reads are registered
with their verdicts, so that a revocation reaches them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, NamedTuple, Protocol

from gateway.auth.forward import ForwardVerdicts, Inquiry
from gateway.auth.grounds import Grounds
from gateway.auth.key_sets import KeySets
from gateway.auth.questions import KeySource
from gateway.auth.rules import Rules
from gateway.auth.usage import Tenants, Usage
from gateway.auth.verdict import PUBLIC, Caller, Principal
from gateway.limits.accounts import NO_PARTIES, Parties
from gateway.limits.memory import evict_oldest

MOST_REVOCATIONS: Final = 1 << 16

Subject = Literal["principal", "token", "key"]
"""The kinds of revocations: of a principal, of one token by its id, or of everything that one key has signed."""


class Renewal(NamedTuple):
    """How a service's verdict is renewed for a live read."""

    inquiry: Inquiry
    path: str
    """The canonical path of the stream that is read."""


class Allowed:
    """A verdict that allows a principal the requested actions."""

    __slots__ = ("_caller", "edition", "grounds", "parties", "principal", "renewal", "scheme", "until", "usage")

    def __init__(
        self,
        principal: Principal,
        edition: int,
        usage: Usage | None = None,
        renewal: Renewal | None = None,
        grounds: Grounds | None = None,
    ) -> None:
        # Many verdicts are kept, so drop the permissions, which a verdict on one request does not need.
        self.principal = (
            principal._replace(permissions=(), claims=PUBLIC.claims) if principal.permissions else principal
        )
        self.until = principal.expires_at
        """The end of the verdict, in Unix seconds."""
        self.edition = edition
        self.renewal = renewal
        """How the verdict is renewed; None if no service has decided."""
        self.grounds = grounds
        """The rules that it rests on; None if no rule was asked."""
        self.scheme: str | None = None
        """The scheme of the connections for which it is valid; None for any."""
        self.parties = parties_of(principal)
        self.usage = usage
        """The usage of the principal's tenant; None without a tenant."""
        self._caller: Caller | None = None

    def caller(self, address: str | None) -> Caller:
        """The principal at this address."""
        caller = self._caller
        if caller is None or caller.address != address:
            name, tenant, issuer = self.principal.name, self.principal.tenant, self.principal.issuer
            caller = self._caller = Caller(address, name, tenant, issuer)
        return caller


def parties_of(principal: Principal) -> Parties:
    """The names under which limits count a principal and its tenant."""
    if not principal.name and not principal.tenant:
        return NO_PARTIES
    # No name has a line break, and no client network has a space.
    name = f"principal of {principal.issuer}\n{principal.name}" if principal.name else ""
    tenant = f"tenant of {principal.issuer}\n{principal.tenant}" if principal.tenant else ""
    return Parties(name, tenant)


class GuardedRead(Protocol):
    """A live read in progress that a verdict allowed."""

    @property
    def allowed(self) -> Allowed: ...

    def revoke(self) -> None:
        """End the read."""

    def end_soon(self) -> None:
        """End the read within a few seconds: others end as well."""


class Revocation(NamedTuple):
    """A principal, a token or a key that is refused."""

    subject: Subject
    name: str
    issuer: str | None = None
    """The issuer of the name, empty for keys of signed URLs; None means every issuer."""


class Verdicts:
    """Owner of the edition, the revocations, the key sets, the verdicts of services and the register of guarded live
    reads.  `wall` is the time in Unix seconds, and `now` in monotonic ones."""

    def __init__(self, wall: Callable[[], float], now: Callable[[], float]) -> None:
        self.wall = wall
        self.key_sets = KeySets(now)
        self.forwarded = ForwardVerdicts()
        self.edition = 0
        self._revoked: OrderedDict[Revocation, float] = OrderedDict()
        """The end of each revocation, in Unix seconds."""
        self.live: dict[GuardedRead, None] = {}
        self.tenants = Tenants()

    def __repr__(self) -> str:
        return f"<Verdicts {len(self._revoked)} revocations, {len(self.live)} live reads>"

    def holds(self, allowed: Allowed | None) -> bool:
        """Whether a remembered verdict is still valid."""
        return allowed is not None and allowed.edition == self.edition and self.wall() < allowed.until

    def allow(self, principal: Principal, renewal: Renewal | None = None, grounds: Grounds | None = None) -> Allowed:
        """A verdict that allows this principal from now on."""
        usage = self.tenants.usage(principal.issuer, principal.tenant) if principal.tenant else None
        return Allowed(principal, self.edition, usage, renewal, grounds)

    def begin_edition(self) -> None:
        """Have every request judged again."""
        self.edition += 1

    def revoke(self, revocation: Revocation, for_s: float) -> int:
        """Refuse the revoked principal, token or key for `for_s` seconds, and end its live reads; returns their
        number."""
        self._revoked.pop(revocation, None)
        self._revoked[revocation] = self.wall() + for_s
        evict_oldest(self._revoked, MOST_REVOCATIONS)
        self.begin_edition()
        ended = [one for one in self.live if _names(revocation, one.allowed.principal)]
        for one in ended:
            one.revoke()
        return len(ended)

    def end_reads_without_grounds(self, rules: Mapping[str, Rules]) -> None:
        """End the live reads that these rules, by the names of their routes, would not allow."""
        for one in tuple(self.live):
            grounds, key_id = one.allowed.grounds, one.allowed.principal.key_id
            if grounds is not None and not grounds.stand_in(rules.get(grounds.route, ()), key_id):
                one.end_soon()

    def end_reads_of_keys(self, source: KeySource, ids: Collection[str | None]) -> None:
        """End the live reads whose tokens were verified with keys of this source that had these ids."""
        for one in tuple(self.live):
            grounds, key_id = one.allowed.grounds, one.allowed.principal.key_id
            if grounds is not None and grounds.key_source == source and (None in ids or key_id in ids):
                one.end_soon()

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the credential, its key or its principal is revoked now."""
        revoked = self._revoked
        if not revoked:
            return False
        wall = self.wall()
        named: tuple[tuple[Subject, str], ...] = (
            ("principal", principal.name),
            ("token", principal.token_id),
            ("key", principal.key_id),
        )
        return any(
            wall < revoked.get(Revocation(subject, name, issuer), wall)
            for subject, name in named
            if name
            for issuer in (None, principal.issuer)
        )


def _names(revocation: Revocation, principal: Principal) -> bool:
    if revocation.issuer not in (None, principal.issuer):
        return False
    match revocation.subject:
        case "principal":
            return principal.name == revocation.name
        case "token":
            return principal.token_id == revocation.name
        case "key":
            return principal.key_id == revocation.name
