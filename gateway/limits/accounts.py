"""Accounts of client networks: the resources that each uses now, the allowances that it has spent, and its ban.

The network of a client is its address, with the host part of an IPv6 address cut off (`client_nets`).  An IPv6 host has
at least a /64 of addresses and may use a new one for every request (RFC 8981), so a limit per address would be none.

Every limit of a client reads and changes this one record: connections, live reads, followed streams, the token buckets
of rates, the live reads that each rate limit counts, and the ban.  `Accounts` owns the records.  An account exists
while something of it is in use, taken or banned.

The number of accounts in use is bounded by the number of connections.  About `MOST_UNUSED` other accounts are kept:
beyond that, each new account takes the place of one of the oldest.  Accounts whose buckets are full are forgotten
first, which loses nothing.  Otherwise the account that would be full again first is forgotten.  Its client gains the
few tokens that it had taken, and the clients that have taken the most stay bounded.

`Accounts` knows the largest number of connections of any network, without a search: when the gateway is full, fair
shares need it at once.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

UNKNOWN: Final = ""
"""The net of clients without an address: those on a Unix socket, and the gateway itself."""

ClientNet = Callable[[str | None], str]
"""Gives the net of an address."""


def client_nets(v4_bits: int, v6_bits: int) -> ClientNet:
    """A function that gives the net of an address (None: unknown) as text, such as `192.0.2.7` or `2001:db8::/64`.

    `v4_bits` and `v6_bits` are the lengths of the prefixes that are kept.
    """

    @lru_cache(16_384)
    def client_net(address: str | None) -> str:
        if address is None:
            return UNKNOWN
        try:
            plain = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return UNKNOWN
        if isinstance(plain, ipaddress.IPv6Address) and plain.ipv4_mapped is not None:
            plain = plain.ipv4_mapped
        bits = v4_bits if plain.version == 4 else v6_bits
        if bits == plain.max_prefixlen:
            return str(plain)
        return str(ipaddress.ip_network((plain, bits), strict=False))

    return client_net


class Parties(NamedTuple):
    """The names of an authorised request's principal and tenant.  Their accounts are kept under these names, together
    with those of client networks.  An empty name means that the request has none, and no such limit bounds it."""

    principal: str
    tenant: str


NO_PARTIES: Final = Parties(UNKNOWN, UNKNOWN)

MOST_UNUSED: Final = 16_384
"""The most accounts that are kept although nothing of them is in use."""
NO_TIMES: Final[dict[Hashable, float]] = {}
NO_COUNTS: Final[dict[Hashable, int]] = {}
"""Takes the place of the dictionaries of an account that no rate limit has counted.  Behind a proxy an account may be
created and forgotten for each live read, so it must be cheap."""
_LOOKED_AT: Final = 8
"""The number of accounts that one search for an account to forget looks at."""


class Account:
    """The account of one client network: its resources in use, its spent allowances, and its ban.  Or the spent
    allowances of a principal, a tenant, a route, or all clients together."""

    __slots__ = (
        "_owner",
        "ban_s",
        "banned_until",
        "connections",
        "followed",
        "full_at",
        "live",
        "live_reads",
        "net",
    )

    def __init__(self, net: str, owner: Accounts | None = None) -> None:
        self._owner = owner
        self.net = net
        self.connections = 0
        """Open connections; `Accounts` alone changes them."""
        self.live_reads = 0
        self.followed = 0
        """Live requests at origins that the network has caused."""
        self.full_at: dict[Hashable, float] = NO_TIMES
        """The time at which the bucket of each rate is full again, if tokens were taken from it.  `Rate` alone changes
        this dictionary, and replaces `NO_TIMES` by a new one first."""
        self.live: dict[Hashable, int] = NO_COUNTS
        """The number of live reads that each rate limit counts; only numbers above 0.  `RateLimits` alone changes this
        dictionary, and replaces `NO_COUNTS` by a new one first."""
        self.banned_until = 0.0
        """When the latest ban ends, in monotonic seconds; 0 if there was none.  `Bans` alone changes it."""
        self.ban_s = 0.0
        """The length of the latest ban, in seconds."""

    def __repr__(self) -> str:
        return f"<Account {self.net}: {self.connections} connections, {self.live_reads} live reads>"

    @property
    def is_used(self) -> bool:
        """Whether any resource of the account is in use."""
        return bool(self.connections or self.live_reads or self.followed or self.live)

    @property
    def settled_at(self) -> float:
        """When all buckets are full again and no ban matters any more, in monotonic seconds."""
        return max(self.banned_until + self.ban_s, *self.full_at.values(), 0.0)

    def is_banned(self, now: float) -> bool:
        """Whether the network is banned."""
        return self.banned_until > now

    def begin_live(self) -> None:
        """Count one more live read; `end_live` must follow."""
        self.live_reads += 1

    def end_live(self, sent_bytes: int) -> None:
        """Stop counting a live read that has ended.  `sent_bytes` is its number of body bytes, which is not used
        here."""
        self.live_reads -= 1
        # The same as `forget_if_unused`, without two calls: a client behind a proxy often has only one live read.
        if not (self.live_reads or self.connections or self.followed or self.live) and self._owner is not None:
            self._owner.forget_if_settled(self)

    def forget_if_unused(self) -> None:
        """Forget the account if nothing of it matters any more; called when a resource is no longer in use."""
        if self._owner is not None and not self.is_used:
            self._owner.forget_if_settled(self)


class Accounts:
    """Owner of the accounts of client networks."""

    def __init__(self, net_of: ClientNet, now: Callable[[], float]) -> None:
        """`net_of` gives the network of an address; `now` gives monotonic seconds."""
        self.net_of = net_of
        self._now = now
        self._all: OrderedDict[str, Account] = OrderedDict()
        self._sizes: dict[int, int] = {}
        """How many networks have this number of connections."""
        self.open_connections = 0
        """Open connections, including those that belong to no network."""
        self.most_connections = 0
        """The connections of the network that has the most."""

    def __repr__(self) -> str:
        return f"<Accounts {len(self._all)} networks, {self.most_connections} connections at most>"

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._all.values())

    def open_account(self, net: str) -> Account | None:
        """The account of a network; None for `UNKNOWN`, which no limit per client bounds."""
        account = self._all.get(net)
        if account is None and net != UNKNOWN:
            if len(self._all) >= MOST_UNUSED + self.open_connections:
                self._make_room()
            account = self._all[net] = Account(net, self)
        return account

    def find(self, net: str) -> Account | None:
        """The account of a network; None if nothing of it is in use, taken or banned."""
        return self._all.get(net)

    def live_reads(self, net: str) -> int:
        """Live reads of a network."""
        account = self._all.get(net)
        return account.live_reads if account is not None else 0

    def connect(self, account: Account) -> None:
        """Count one more connection; `disconnect` must follow."""
        self._resize(account, 1)

    def disconnect(self, account: Account) -> None:
        """A connection that `connect` counted has ended."""
        self._resize(account, -1)
        account.forget_if_unused()

    def forget_if_settled(self, account: Account) -> None:
        """Drop an unused account if it has taken nothing that matters and is not banned."""
        if not (account.full_at or account.banned_until) or account.settled_at <= self._now():
            self._all.pop(account.net, None)

    def forget_full(self) -> None:
        """Forget the full buckets of all accounts.  Otherwise the buckets of rates that are no longer in effect would
        stay for as long as their clients."""
        now = self._now()
        for account in self._all.values():
            owed = {rate: full_at for rate, full_at in account.full_at.items() if full_at > now}
            account.full_at = owed or NO_TIMES

    def _resize(self, account: Account, by: int) -> None:
        sizes, old = self._sizes, account.connections
        account.connections = new = old + by
        if new:
            sizes[new] = sizes.get(new, 0) + 1
            self.most_connections = max(self.most_connections, new)
        if old:
            sizes[old] -= 1
            if not sizes[old]:
                del sizes[old]
                if old == self.most_connections:
                    # Connections end one by one, so the next smaller number has a network, or no connection is left.
                    self.most_connections = new

    def _make_room(self) -> None:
        """Look at the oldest accounts for some to forget."""
        now = self._now()
        owing: list[tuple[float, str]] = []
        for account in list(islice(self._all.values(), _LOOKED_AT)):
            # Begin with other accounts next time.
            self._all.move_to_end(account.net)
            if account.is_used:
                continue
            if (settled_at := account.settled_at) <= now:
                del self._all[account.net]
            else:
                owing.append((settled_at, account.net))
        if owing and len(self._all) >= MOST_UNUSED + self.open_connections:
            del self._all[min(owing)[1]]
