"""Accounts of client networks.  An account records the resources in use, the rate-limit tokens taken, and the ban.

The network of a client is its address prefix (`client_nets`).  An IPv6 host has at least a /64 of addresses and may use
a new address for each request (RFC 8981), so a limit per address would have no effect.

All limits of a client use its account.  An account counts the client's connections, its live reads, and the live
requests to origins that the client causes.  The account also has the client's token buckets, the number of live reads
that each rate limit counts, and the ban.  The account exists while any of these data can still affect its client.
`gateway.live.followed_streams` decides whether one more live request may be sent for a client.

The number of accounts with resources in use is bounded by the number of connections.  About `MOST_UNUSED` other
accounts are kept.  If there are more, each new account replaces an old account.  Accounts whose buckets are all full
are removed first, because their removal changes nothing.  If there is no such account, the account whose buckets will
be full the soonest is removed.  Its client gains only a few tokens.  The clients that have taken the most tokens stay
limited.

`Accounts` keeps the largest number of connections that one network has.  When all connections are in use, this number
decides whether a new connection may displace another.  It is kept up to date, because a search would take too long.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

UNKNOWN: Final = ""
"""The network of clients without an address: clients on a Unix socket, and the gateway itself."""

ClientNet = Callable[[str | None], str]
"""Returns the network of an address."""


def client_nets(v4_bits: int, v6_bits: int) -> ClientNet:
    """Return a function that maps an address to its network, such as `192.0.2.7` or `2001:db8::/64`.

    `v4_bits` and `v6_bits` are the prefix lengths.  The function maps None, an unknown address, to `UNKNOWN`.
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
    """The names of two further accounts of an authorised request: the account of its principal (the authenticated user)
    and the account of its tenant.

    `Accounts` holds these accounts and the accounts of client networks in one table.  An empty name means that the
    request has no principal or no tenant; limits per principal or per tenant then do not apply.
    """

    principal: str
    tenant: str


NO_PARTIES: Final = Parties(UNKNOWN, UNKNOWN)

MOST_UNUSED: Final = 16_384
"""The most accounts without resources in use."""
NO_TIMES: Final[dict[Hashable, float]] = {}
NO_COUNTS: Final[dict[Hashable, int]] = {}
"""`NO_TIMES` and `NO_COUNTS` are the empty dictionaries that accounts share until they need their own.  Behind a proxy
an account may be created and removed for each live read, so an account must be cheap."""
_LOOKED_AT: Final = 8
"""The number of accounts that one call of `_make_room` examines."""


class Room(Enum):
    """Whether there is room for a new connection."""

    FREE = "free"
    NO_SHARE = "no_share"
    """The network already has as many connections as one network may have."""
    BY_DISPLACING = "by_displacing"
    """All connections are in use.  The new connection may displace an idle connection of the network with the most
    connections."""
    NONE = "none"
    """All connections are in use, and the new connection must be refused."""


class Account:
    """The account of a client network, a principal, a tenant, a route, or of all clients together.

    Only accounts of client networks have connections and bans.
    """

    __slots__ = ("_owner", "ban_s", "banned_until", "connections", "followed", "full_at", "live", "live_reads", "net")

    def __init__(self, net: str, owner: Accounts | None = None) -> None:
        self._owner = owner
        self.net = net
        self.connections = 0
        """The number of open connections.  Only `Accounts` changes it."""
        self.live_reads = 0
        self.followed = 0
        """The number of live requests at origins that are charged to the network."""
        self.full_at: MutableMapping[Hashable, float] = NO_TIMES
        """For each rate whose bucket is not full, the time at which the bucket will be full (monotonic seconds).  Only
        `Rate` changes this dictionary.  Before the first change, `Rate` replaces `NO_TIMES` by a new dictionary."""
        self.live: MutableMapping[Hashable, int] = NO_COUNTS
        """The number of live reads that each rate limit counts.  A limit that counts none has no entry.  Only
        `LimitedLive` changes this dictionary.  Before the first change, `LimitedLive` replaces `NO_COUNTS` by a new
        dictionary."""
        self.banned_until = 0.0
        """The time at which the latest ban ends (monotonic seconds); 0 if there was no ban.  Only `Bans` changes it."""
        self.ban_s = 0.0
        """The length of the latest ban in seconds."""

    def __repr__(self) -> str:
        return f"<Account {self.net}: {self.connections} connections, {self.live_reads} live reads>"

    @property
    def is_used(self) -> bool:
        """Whether any resource of the account is in use."""
        return bool(self.connections or self.live_reads or self.followed or self.live)

    @property
    def settled_at(self) -> float:
        """The time from which all buckets will be full and the ban will no longer matter (monotonic seconds)."""
        return max(self.banned_until + self.ban_s, *self.full_at.values(), 0.0)

    def is_banned(self, now: float) -> bool:
        """Return whether the network is banned at `now`."""
        return self.banned_until > now

    def begin_live(self) -> None:
        """Count a live read.  The caller must call `end_live` when the read ends."""
        self.live_reads += 1

    def end_live(self, sent_bytes: int) -> None:
        """Stop counting a live read.  `sent_bytes` is unused: the parameter exists because `LimitedLive` has the same
        method."""
        self.live_reads -= 1
        # This repeats the code of `forget_if_unused` without a call, because this path is hot.  A client behind a proxy
        # often has only one live read, so its account is removed here.
        if not (self.live_reads or self.connections or self.followed or self.live) and self._owner is not None:
            self._owner.forget_if_settled(self)

    def forget_if_unused(self) -> None:
        """Remove the account if nothing in it matters any more.  Called when a resource has been released."""
        if self._owner is not None and not self.is_used:
            self._owner.forget_if_settled(self)


class Accounts:
    """Owner of the accounts of client networks, principals and tenants."""

    def __init__(self, net_of: ClientNet, now: Callable[[], float]) -> None:
        """`net_of` returns the network of an address, and `now` returns monotonic seconds."""
        self.net_of = net_of
        self._now = now
        self._all: OrderedDict[str, Account] = OrderedDict()
        self._sizes: dict[int, int] = {}
        """For each number of connections, the number of networks with this number of connections."""
        self.open_connections = 0
        """The number of open connections, including connections without a network."""
        self.most_connections = 0
        """The largest number of connections of any network."""
        self.may_ban = False
        """Whether networks can be banned."""

    def __repr__(self) -> str:
        return f"<Accounts {len(self._all)} networks, {self.most_connections} connections at most>"

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._all.values())

    def open_account(self, net: str) -> Account | None:
        """Return the account of a network, and create the account if necessary.

        Returns None for `UNKNOWN`, because no limit per client applies to clients without a network.
        """
        account = self._all.get(net)
        if account is None and net != UNKNOWN:
            if len(self._all) >= MOST_UNUSED + self.open_connections:
                self._make_room()
            account = self._all[net] = self._make(net)
        return account

    def _make(self, net: str) -> Account:
        return Account(net, self)

    def separate(self, name: str) -> Account:
        """Return a new account that is not in the table.  It is for a route, or for all clients together."""
        return Account(name)

    def find(self, net: str) -> Account | None:
        """Return the account of a network; None if it has none."""
        return self._all.get(net)

    def live_reads(self, net: str) -> int:
        """Return the number of live reads of a network."""
        account = self._all.get(net)
        return account.live_reads if account is not None else 0

    def room_for(self, account: Account | None, most: int, most_of_one: int) -> Room:
        """Return whether there is room for a new connection.  If the caller accepts the connection, it must call
        `connect` at once.

        `account` is the account of the connection's network, or None without a network.  `most` limits the connections
        of all networks together, and `most_of_one` limits the connections of one network.
        """
        connections = account.connections if account is not None else 0
        has_share = connections < most_of_one
        if self.open_connections < most:
            return Room.FREE if has_share else Room.NO_SHARE
        # The network with the most connections must have at least two more than this network.  Otherwise the two
        # networks would displace each other's connections for ever.
        may_displace = has_share and connections + 1 < self.most_connections
        return Room.BY_DISPLACING if may_displace else Room.NONE

    def connect(self, account: Account | None) -> None:
        """Count a connection.  When the connection ends, the caller must call `end_connection`, and `disconnect` if the
        connection has an account."""
        self.open_connections += 1
        if account is not None:
            self._resize(account, 1)

    def end_connection(self) -> None:
        """Stop counting a connection among all connections."""
        self.open_connections -= 1

    def disconnect(self, account: Account) -> None:
        """Stop counting a connection of this network."""
        self._resize(account, -1)
        account.forget_if_unused()

    def forget_if_settled(self, account: Account) -> None:
        """Remove an account without resources in use, if its buckets are full and its latest ban no longer matters."""
        if not (account.full_at or account.banned_until) or account.settled_at <= self._now():
            self._all.pop(account.net, None)

    def forget_full(self) -> None:
        """Remove full buckets from all accounts.  Otherwise, the buckets of rates that are no longer configured would
        stay forever."""
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
                    # No other network had as many connections, and this network has one connection less now.
                    self.most_connections = new

    def _make_room(self) -> None:
        """Examine some of the oldest accounts, and remove at least one of them, unless all of them are in use."""
        now = self._now()
        owing: list[tuple[float, str]] = []
        for account in list(islice(self._all.values(), _LOOKED_AT)):
            # The next call will begin with other accounts.
            self._all.move_to_end(account.net)
            if account.is_used:
                continue
            if (settled_at := account.settled_at) <= now:
                del self._all[account.net]
            else:
                owing.append((settled_at, account.net))
        if owing and len(self._all) >= MOST_UNUSED + self.open_connections:
            del self._all[min(owing)[1]]
