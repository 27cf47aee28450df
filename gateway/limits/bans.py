"""Bans of client nets that go on sending what is refused.

A refusal costs the gateway almost as much as an answer, so a client that does not heed it can still take the processor
from others.  A net that is refused more than `per_s` times a second for long is banned: its connections close, and new
ones close at once, which costs a tenth.  It may be refused ten seconds' worth at once, and a quarter of that again
after a ban.

The first ban lasts for `BAN_S`.  One that begins before the net has been good for as long as its previous ban lasted is
twice as long as that, up to `LONGEST_S`, so repeat offenders are admitted less and less often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.limits.accounts import Account
from gateway.limits.rates import Rate

BAN_S: Final = 10.0
"""The length of a first ban in seconds."""
LONGEST_S: Final = 320.0
"""The length of the longest ban in seconds."""
_BURST_S: Final = 10.0
"""Refusals of this many seconds may come at once."""
_LEFT: Final = 0.25
"""The share of the burst that a net has after a ban."""


class Bans:
    """The rule by which nets are banned; their accounts have the bans.  `now` is monotonic seconds in all methods."""

    def __init__(self, per_s: float) -> None:
        self._refusals: Rate | None = None
        self.configure(per_s)

    def __repr__(self) -> str:
        return f"<Bans {self._refusals}>"

    def configure(self, per_s: float, accounts: Iterable[Account] = ()) -> None:
        """Ban nets that are refused more than `per_s` times a second from now on; 0 bans none and ends all bans."""
        if not per_s:
            self._refusals = None
            for account in accounts:
                account.banned_until = account.ban_s = 0.0
        elif self._refusals is None or self._refusals.per_s != per_s:
            self._refusals = Rate(per_s, max(1.0, per_s * _BURST_S))

    def refused(self, account: Account, now: float) -> float:
        """A request of the net was refused.  The length of the ban that this begins; 0 if it begins none."""
        refusals = self._refusals
        if refusals is None or account.is_banned(now):
            return 0.0
        if not refusals.wait_s(account, now):
            refusals.take(account, now)
            return 0.0
        length_s = account.ban_s
        is_again = length_s and now < account.banned_until + length_s
        length_s = min(2 * length_s, LONGEST_S) if is_again else BAN_S
        account.banned_until, account.ban_s = now + length_s, length_s
        # The tokens that come during the ban are taken, but for a rest.
        refusals.take(account, now, length_s * refusals.per_s - _LEFT * refusals.burst)
        return length_s
