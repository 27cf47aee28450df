"""What each client uses now: connections and live reads by net, and followed streams.

An entry exists only while something of it is counted, so the tables are no larger than what is open.  `Usage` knows the
largest number of connections of any net, without a search: when the gateway is full, fair shares need it at once.
"""

from __future__ import annotations


class NetUse:
    """What one net uses.  `Usage` alone changes it."""

    __slots__ = ("_usage", "connections", "live_reads", "net")

    def __init__(self, usage: Usage, net: str) -> None:
        self._usage = usage
        self.net = net
        self.connections = 0
        self.live_reads = 0

    def __repr__(self) -> str:
        return f"<NetUse {self.net}: {self.connections} connections, {self.live_reads} live reads>"

    def begin_live(self) -> None:
        """Count one more live read of a net that has a connection; `end_live` must follow."""
        self.live_reads += 1

    def end_live(self, sent_bytes: int) -> None:
        """One live read has ended, after `sent_bytes` body bytes, which this count does not depend on."""
        self.live_reads -= 1
        if not self.live_reads and not self.connections:
            self._usage.forget(self)


class Usage:
    """The nets that use anything.  Owner of the entries."""

    def __init__(self) -> None:
        self._uses: dict[str, NetUse] = {}
        self._sizes: dict[int, int] = {}
        """How many nets have this number of connections."""
        self.open_connections = 0
        """Open connections, those that belong to no net included."""
        self.most_connections = 0
        """The connections of the net that has the most."""

    def __repr__(self) -> str:
        return f"<Usage {len(self._uses)} nets, {self.most_connections} connections at most>"

    def __len__(self) -> int:
        return len(self._uses)

    def connections(self, net: str) -> int:
        """Open connections of the net."""
        use = self._uses.get(net)
        return use.connections if use is not None else 0

    def live_reads(self, net: str) -> int:
        """Live reads of the net."""
        use = self._uses.get(net)
        return use.live_reads if use is not None else 0

    def connect(self, net: str) -> NetUse:
        """Count one more connection; `disconnect` must follow."""
        use = self._entered(net)
        self._resize(use, 1)
        return use

    def disconnect(self, use: NetUse) -> None:
        """A connection that `connect` counted has ended."""
        self._resize(use, -1)
        if not use.connections and not use.live_reads:
            self.forget(use)

    def begin_live(self, net: str) -> NetUse:
        """Count one more live read; `NetUse.end_live` must follow."""
        use = self._entered(net)
        use.live_reads += 1
        return use

    def forget(self, use: NetUse) -> None:
        """Drop the entry of a net that uses nothing any more."""
        if self._uses.get(use.net) is use:
            del self._uses[use.net]

    def _entered(self, net: str) -> NetUse:
        use = self._uses.get(net)
        if use is None:
            use = self._uses[net] = NetUse(self, net)
        return use

    def _resize(self, use: NetUse, by: int) -> None:
        sizes, old = self._sizes, use.connections
        use.connections = new = old + by
        if new:
            sizes[new] = sizes.get(new, 0) + 1
            self.most_connections = max(self.most_connections, new)
        if old:
            sizes[old] -= 1
            if not sizes[old]:
                del sizes[old]
                if old == self.most_connections:
                    # Connections come and go one by one, so the next smaller number has a net, or there is none.
                    self.most_connections = new


class Tally:
    """A number per key; keys at zero are forgotten."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Tally {len(self._counts)} keys, {sum(self._counts.values())} in all>"

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, key: str) -> int:
        return self._counts.get(key, 0)

    def add(self, key: str) -> None:
        """Count one more; `remove` must follow."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: str) -> None:
        """Count one less."""
        left = self._counts[key] - 1
        if left:
            self._counts[key] = left
        else:
            del self._counts[key]
