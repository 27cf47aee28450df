"""A queue for the processor's time: clients take turns by what they cost, and one that has just come goes first.

This is deficit round robin with a list of new flows (RFC 8290 section 4.1), in seconds of processor time instead of
bytes.  A client that asks for little finds its queue empty, so it is new each time and is served before all that have
more waiting, however many those are.  One that has a second item waiting before its first is served asks for more than
that, and is new no more: else a crowd that comes together would stand before all others.  Among the others one is
served after every few new ones, for there may always be another new client.  Costs are known only after an item has
been taken: `charge` makes its client wait for later rounds until the cost is paid.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)
Item = TypeVar("Item")

_MOST_DEBT: Final = 64
"""A client waits at most this many rounds for what it has cost."""
_MOST_NEW: Final = 16
"""New clients are served this often in a row while others wait."""
_MOST_OLD: Final = 1 << 12
"""Above this number of old clients, one that has no items is forgotten at once."""


class _Flow(Generic[Item]):
    """One client's items, and the seconds that it may use in this round."""

    __slots__ = ("items", "left_s")

    def __init__(self, left_s: float) -> None:
        self.items: deque[Item] = deque()
        self.left_s = left_s


class Flows(Generic[Client, Item]):
    """Items that wait, by client.  Each client has `quantum_s` seconds in a round."""

    __slots__ = ("_new", "_new_served", "_old", "_quantum_s", "waiting")

    def __init__(self, quantum_s: float) -> None:
        self._quantum_s = quantum_s
        self._new: OrderedDict[Client, _Flow[Item]] = OrderedDict()
        """The flows that have not been served to their end since they came, and have had one item at a time."""
        self._old: OrderedDict[Client, _Flow[Item]] = OrderedDict()
        """All other flows.  An empty one stays for a round, so a client that comes back within it is not new."""
        self._new_served = 0
        """How often new ones have been served since there are others, or since one of those was."""
        self.waiting = 0
        """The number of items."""

    def __repr__(self) -> str:
        return f"<Flows {self.waiting} items of {len(self._new)} new and {len(self._old)} old clients>"

    def __len__(self) -> int:
        """The number of items."""
        return self.waiting

    def has(self, client: Client) -> bool:
        """Whether an item of the client waits."""
        flow = self._new.get(client) or self._old.get(client)
        return flow is not None and bool(flow.items)

    def push(self, client: Client, item: Item) -> None:
        """Add an item behind the client's others."""
        if not self.waiting:
            self._new.clear()
            self._old.clear()
        flow = self._new.get(client) or self._old.get(client)
        if flow is None:
            flow = self._new[client] = _Flow(self._quantum_s)
        elif flow.items and client in self._new:
            # It asks for more than it is given, so it takes turns with all that do.
            self._retire(self._new, client, flow)
        flow.items.append(item)
        self.waiting += 1

    def pop(self) -> tuple[Client, Item]:
        """Remove and return the next item and its client.  KeyError if there is none."""
        while self.waiting:
            is_new = bool(self._new) and not (self._old and self._new_served >= _MOST_NEW)
            flows = self._new if is_new else self._old
            client, flow = next(iter(flows.items()))
            if flow.left_s <= 0:
                is_alone = len(self._new) + len(self._old) == 1
                # Alone, it is passed at once for as many rounds as it owes.
                rounds = 1 + int(-flow.left_s / self._quantum_s) if is_alone else 1
                flow.left_s += rounds * self._quantum_s
                self._retire(flows, client, flow)
            elif not flow.items:
                if is_new and len(self._old) < _MOST_OLD:
                    self._retire(flows, client, flow)
                else:
                    del flows[client]
            else:
                self.waiting -= 1
                self._new_served = self._new_served + 1 if is_new and self._old else 0
                return client, flow.items.popleft()
        raise KeyError

    def charge(self, client: Client, cost_s: float) -> None:
        """The client's item that was taken last has cost this much."""
        flow = self._new.get(client) or self._old.get(client)
        if flow is not None:
            flow.left_s = max(flow.left_s - cost_s, -_MOST_DEBT * self._quantum_s)

    def _retire(self, flows: OrderedDict[Client, _Flow[Item]], client: Client, flow: _Flow[Item]) -> None:
        """Put the flow behind all old ones."""
        del flows[client]
        self._old[client] = flow
