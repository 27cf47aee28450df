"""The validity of remembered verdicts: their expiry, revocations, and changes of rules and keys.

A verdict is the decision to allow a request.  It is valid until its expiry, and only during the edition in which it was
made.  The edition is a number that grows with each revocation and with each change of rules.  After such a change, all
requests are authorised again, but remembered tokens need not be verified again.  A revocation or a change of rules also
ends the live reads that it concerns.  `gateway.auth.forward_auth` decides how long the verdict of a service is kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from gateway.auth.forward_auth import ForwardVerdicts, Inquiry
from gateway.auth.grounds import Grounds
from gateway.auth.key_sets import KeySets
from gateway.auth.questions import KeySource
from gateway.auth.rules import Rules
from gateway.auth.usage import Tenants, Usage
from gateway.auth.verdict import PUBLIC, Caller, Principal
from gateway.limits.accounts import NO_PARTIES, Parties

MOST_REVOCATIONS: Final = 1 << 16
"""The most revocations in effect.  None of them is dropped for a further one, which is refused."""
_SAME_S: Final = 1.0
"""Two stated ends of a revocation that differ by fewer seconds are the same end, because answers take some time."""

_log = logging.getLogger("gateway.auth")

Subject = Literal["principal", "token", "key"]
"""The kinds of revocations: of a principal (an authenticated party), of a token by its id, or of all credentials signed
with a key."""


class Renewal(NamedTuple):
    """The data for asking a service again about a live read."""

    inquiry: Inquiry
    path: str
    """The canonical path of the stream."""


class LiveRenewal(Protocol):
    """Renews a service's verdict for all live reads that use it."""

    @property
    def verdict(self) -> Allowed | None:
        """The present verdict; None while no verdict is being renewed."""

    def begin_read(self, channel: RenewedChannel, allowed: Allowed, net: str) -> None:
        """Give a channel's read the present verdict, which may be newer than `allowed`.  Renew this verdict from now
        on.  `net` is the read's client network.
        """

    def stay(self, channel: RenewedChannel, allowed: Allowed, net: str) -> None:
        """Begin a read like `begin_read`, but make the verdict available to later requests.  The channel may keep this
        renewal between its reads."""

    def end_read(self, channel: RenewedChannel) -> None:
        """End a channel's use of the verdict.  Called at the end of the channel's read.  For a channel that keeps the
        renewal, called when the channel closes."""

    def clock_stepped(self) -> None:
        """Called after a step of the wall clock."""


class RenewedChannel(Protocol):
    """The channel of a live read whose verdict is renewed."""

    verdict: Allowed | None
    """The verdict of the live read in progress."""
    renewing: LiveRenewal | None
    """The verdict renewal that the channel keeps between its reads; None if it keeps no renewal."""

    @property
    def outlasts_reads(self) -> bool:
        """Whether further reads may follow on the channel."""


class Allowed:
    """A verdict that allows a principal's request."""

    __slots__ = (
        "_caller",
        "edition",
        "grounds",
        "parties",
        "principal",
        "renewal",
        "renewing",
        "scheme",
        "until",
        "usage",
    )

    def __init__(
        self,
        principal: Principal,
        edition: int,
        usage: Usage | None = None,
        renewal: Renewal | None = None,
        grounds: Grounds | None = None,
    ) -> None:
        # Drop the permissions to save memory: many verdicts are kept, and each is for one request.
        self.principal = (
            principal._replace(permissions=(), claims=PUBLIC.claims) if principal.permissions else principal
        )
        self.until = principal.expires_at
        """The time at which the verdict expires (Unix seconds)."""
        self.edition = edition
        self.renewal = renewal
        """The data for the renewal of a service's verdict; None for any other verdict."""
        self.renewing: LiveRenewal | None = None
        """Renews the verdict while live reads use it; None before the first live read."""
        self.grounds = grounds
        """The rules that have led to the verdict; None if there are no rules."""
        self.scheme: str | None = None
        """The URL scheme for which the verdict is valid; None for any."""
        self.parties = parties_of(principal)
        self.usage = usage
        """The usage of the principal's tenant; None without a tenant."""
        self._caller: Caller | None = None

    def caller(self, address: str | None) -> Caller:
        """Return the principal together with the client's address, for logs."""
        caller = self._caller
        if caller is None or caller.address != address:
            name, tenant, issuer = self.principal.name, self.principal.tenant, self.principal.issuer
            caller = self._caller = Caller(address, name, tenant, issuer)
        return caller


def parties_of(principal: Principal) -> Parties:
    """Return the names under which rate limits count a principal and its tenant."""
    if not principal.name and not principal.tenant:
        return NO_PARTIES
    # These names are unambiguous: names have no line breaks, and client networks have no spaces.
    name = f"principal of {principal.issuer}\n{principal.name}" if principal.name else ""
    tenant = f"tenant of {principal.issuer}\n{principal.tenant}" if principal.tenant else ""
    return Parties(name, tenant)


class GuardedRead(Protocol):
    """A live read in progress, and its verdict."""

    @property
    def allowed(self) -> Allowed: ...

    def revoke(self) -> None:
        """End the read."""

    def end_soon(self) -> None:
        """End the read at a random time within a few seconds, because many reads may have to end at the same time."""


class Revocation(NamedTuple):
    """A revoked principal, token or key."""

    subject: Subject
    name: str
    issuer: str | None = None
    """The issuer of the name; empty for keys of signed URLs, None for any issuer."""


class RevocationsFull(Exception):
    """There is no room for a further revocation.  The message is one line for the operator."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_REVOCATIONS} revocations are in effect: this one is refused until one of them ends")


class Verdicts:
    """Owner of the edition, the revocations, the key sets, and the kept verdicts of services.

    `wall` returns Unix seconds, and `now` monotonic seconds.
    """

    def __init__(self, wall: Callable[[], float], now: Callable[[], float]) -> None:
        self.wall = wall
        self.key_sets = KeySets(now)
        self.forwarded = ForwardVerdicts()
        self.edition = 0
        self._revoked: dict[Revocation, float] = {}
        """When each revocation ends (Unix seconds)."""
        self._first_end = math.inf
        """No revocation ends before this time (Unix seconds)."""
        self._is_full = False
        """Whether the latest further revocation was refused."""
        self.live_reads: Callable[[], Sequence[GuardedRead]] = tuple
        """Returns the live reads in progress that have a verdict."""
        self.tenants = Tenants()

    def __repr__(self) -> str:
        return f"<Verdicts {len(self._revoked)} revocations, edition {self.edition}>"

    def holds(self, allowed: Allowed | None) -> bool:
        """Return whether a remembered verdict is still valid."""
        return allowed is not None and allowed.edition == self.edition and self.wall() < allowed.until

    def allow(self, principal: Principal, renewal: Renewal | None = None, grounds: Grounds | None = None) -> Allowed:
        """Make a verdict of the current edition that allows a request of this principal."""
        usage = self.tenants.usage(principal.issuer, principal.tenant) if principal.tenant else None
        return Allowed(principal, self.edition, usage, renewal, grounds)

    def begin_edition(self) -> None:
        """Invalidate all verdicts."""
        self.edition += 1

    def revoke(self, revocation: Revocation, for_s: float) -> int:
        """Revoke a principal, token or key for `for_s` seconds, and end its live reads.  Return the number of these
        reads.

        Raises RevocationsFull if too many other revocations are in effect.
        """
        if revocation not in self._revoked:
            self._make_room()
        until = self._revoked[revocation] = self.wall() + for_s
        self._first_end = min(self._first_end, until)
        self.begin_edition()
        ended = [one for one in self.live_reads() if _names(revocation, one.allowed.principal)]
        for one in ended:
            one.revoke()
        return len(ended)

    def _make_room(self) -> None:
        """Make room for a further revocation: remove those that have ended, if necessary."""
        if len(self._revoked) >= MOST_REVOCATIONS and (now := self.wall()) >= self._first_end:
            self._revoked = {one: until for one, until in self._revoked.items() if until > now}
            self._first_end = min(self._revoked.values(), default=math.inf)
        was_full, self._is_full = self._is_full, len(self._revoked) >= MOST_REVOCATIONS
        if self._is_full:
            error = RevocationsFull()
            if not was_full:
                _log.warning("%s", error)
            raise error

    def take_over(self, revocation: Revocation, for_s: float) -> bool:
        """Put a revocation of another worker or member into effect, for the `for_s` seconds that it still holds there.
        Return False if it holds here as long, or if there is no room.
        """
        if for_s <= self.remaining_s(revocation) + _SAME_S:
            # Another revocation would drop kept verdicts.
            return False
        try:
            self.revoke(revocation, for_s)
        except RevocationsFull:
            return False
        return True

    def remaining_s(self, revocation: Revocation) -> float:
        """Return the remaining seconds of a revocation; 0 if it has ended or was never made."""
        return max(0.0, self._revoked.get(revocation, 0.0) - self.wall())

    def revocations(self) -> list[tuple[Revocation, float]]:
        """Return the revocations in effect, each with its remaining seconds."""
        now = self.wall()
        return [(revocation, until - now) for revocation, until in self._revoked.items() if until > now]

    def end_reads_without_grounds(self, rules: Mapping[str, Rules]) -> None:
        """End the live reads that the new rules would not allow.  `rules` maps the name of each route to its rules."""
        self._end_reads(lambda grounds, key_id: not grounds.stand_in(rules.get(grounds.route, ()), key_id))

    def end_reads_of_keys(self, source: KeySource, ids: Collection[str | None]) -> None:
        """End the live reads whose tokens were verified with a key of this source, if `ids` contains the key's id."""
        self._end_reads(lambda grounds, key_id: grounds.key_source == source and (None in ids or key_id in ids))

    def _end_reads(self, has_lapsed: Callable[[Grounds, str], bool]) -> None:
        """End the live reads for which `has_lapsed` returns true.  Its arguments are the grounds of the verdict (the
        rules that have led to the verdict) and the id of the key."""
        for one in self.live_reads():
            grounds = one.allowed.grounds
            if grounds is not None and has_lapsed(grounds, one.allowed.principal.key_id):
                one.end_soon()

    def is_revoked(self, principal: Principal) -> bool:
        """Return whether the principal, its token or the token's key is revoked now."""
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
