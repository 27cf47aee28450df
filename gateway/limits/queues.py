"""Queues in which clients take turns, and the clients that share one request.

`FairQueue` goes round robin over the clients, first in, first out within each.  A client with a thousand waiting items
delays another client's only item by one item, not by a thousand.  A client may be held: its items keep their order and
wait until it is let go, while the others take their turns.

An item may wait under several clients at once and leaves the queue when the caller removes it from all of them.  All
operations take constant time (amortised), whatever waits.

`Flows` shares the processor's time: clients take turns by their costs, and a new client goes first.  It is deficit
round robin with a list of new flows (RFC 8290 section 4.1), in seconds of processor time instead of bytes.  A client
with few requests finds its queue empty, so it is new each time, and is served before all clients that have more
waiting.  If a client adds a second item before its first is served, it is no longer new: otherwise a crowd that arrives
together would precede all others.  After every few new clients an old one is served, because new clients may keep
coming.  The cost of an item is known only after it has been taken: `charge` makes its client wait for later rounds
until the cost is paid.

`Askers` are the clients for which one request to an origin is made: the client that caused it, and all that have joined
it since.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)


class FairQueue(Generic[Client, Item]):
    """Items that wait, by client.  A client that has no items is not known to the queue."""

    __slots__ = ("_held", "_ready")

    def __init__(self) -> None:
        self._ready: OrderedDict[Client, OrderedDict[Item, None]] = OrderedDict()
        """The items of the clients that are not held, in the order of the clients' turns."""
        self._held: dict[Client, OrderedDict[Item, None]] = {}

    def __repr__(self) -> str:
        return f"<FairQueue of {len(self._ready)} clients, {len(self._held)} held>"

    def __bool__(self) -> bool:
        """Whether any item waits, those of held clients included."""
        return bool(self._ready or self._held)

    @property
    def has_next(self) -> bool:
        """Whether an item waits whose client is not held."""
        return bool(self._ready)

    def clients(self) -> list[Client]:
        """The clients that have items."""
        return [*self._ready, *self._held]

    def push(self, client: Client, item: Item, *, is_held: bool = False) -> None:
        """Add an item behind the client's others; a client's first item gets the last turn.  `is_held` says whether the
        client is held, and is the same for all its items."""
        clients = self._held if is_held else self._ready
        items = clients.get(client)
        if items is None:
            items = clients[client] = OrderedDict()
        items[item] = None

    def pop(self) -> tuple[Client, Item]:
        """Remove and return the next item and its client, whose next turn comes after the others'.  KeyError if there
        is none."""
        client = next(iter(self._ready), None)
        if client is None:
            raise KeyError
        items = self._ready[client]
        item, _ = items.popitem(last=False)
        if items:
            self._ready.move_to_end(client)
        else:
            del self._ready[client]
        return client, item

    def remove(self, client: Client, item: Item) -> None:
        """Remove an item that waits under this client, if it does."""
        for clients in (self._ready, self._held):
            items = clients.get(client)
            if items is not None and item in items:
                del items[item]
                if not items:
                    del clients[client]
                return

    def hold(self, client: Client) -> None:
        """Hold a client's items back."""
        items = self._ready.pop(client, None)
        if items is not None:
            self._held[client] = items

    def let_go(self, client: Client) -> None:
        """Let a held client take its turns again, the first after the others'."""
        items = self._held.pop(client, None)
        if items is not None:
            self._ready[client] = items


Work = TypeVar("Work")

_MOST_DEBT: Final = 64
"""A client waits at most this many rounds until its costs are paid."""
_MOST_NEW: Final = 16
"""At most this many new clients are served in a row while old ones wait."""
_MOST_OLD: Final = 1 << 12
"""If there are more old clients than this, an old client without items is forgotten at once."""


class _Flow(Generic[Work]):
    """One client's items, and the seconds that it may use in this round."""

    __slots__ = ("items", "left_s")

    def __init__(self, left_s: float) -> None:
        self.items: deque[Work] = deque()
        self.left_s = left_s


class Flows(Generic[Client, Work]):
    """Items that wait, by client.  Each client has `quantum_s` seconds in a round."""

    __slots__ = ("_new", "_new_served", "_old", "_quantum_s", "waiting")

    def __init__(self, quantum_s: float) -> None:
        self._quantum_s = quantum_s
        self._new: OrderedDict[Client, _Flow[Work]] = OrderedDict()
        """The flows that have not been served to their end since they came, and have had one item at a time."""
        self._old: OrderedDict[Client, _Flow[Work]] = OrderedDict()
        """All other flows.  An empty one stays for a round, so a client that comes back within it is not new."""
        self._new_served = 0
        """The number of new flows served since an old one was served, or since there are old ones."""
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

    def push(self, client: Client, item: Work) -> None:
        """Add an item behind the client's others."""
        if not self.waiting:
            self._new.clear()
            self._old.clear()
        flow = self._new.get(client) or self._old.get(client)
        if flow is None:
            flow = self._new[client] = _Flow(self._quantum_s)
        elif flow.items and client in self._new:
            # The client has a second item waiting, so it takes turns with the old ones.
            self._retire(self._new, client, flow)
        flow.items.append(item)
        self.waiting += 1

    def pop(self) -> tuple[Client, Work]:
        """Remove and return the next item and its client.  KeyError if there is none."""
        while self.waiting:
            is_new = bool(self._new) and not (self._old and self._new_served >= _MOST_NEW)
            flows = self._new if is_new else self._old
            client, flow = next(iter(flows.items()))
            if flow.left_s <= 0:
                is_alone = len(self._new) + len(self._old) == 1
                # A flow that is alone skips all the rounds that it owes at once.
                rounds = 1 + int(-flow.left_s / self._quantum_s) if is_alone else 1
                flow.left_s += rounds * self._quantum_s
                if not is_alone or is_new:
                    self._retire(flows, client, flow)
                    continue
            if not flow.items:
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

    def _retire(self, flows: OrderedDict[Client, _Flow[Work]], client: Client, flow: _Flow[Work]) -> None:
        """Put the flow behind all old ones."""
        del flows[client]
        self._old[client] = flow


_MOST_ASKERS: Final = 256
"""The most clients that are recorded for one request; further ones wait without being recorded."""


class Askers:
    """The nets of clients that share a request, in the order in which they joined.

    Whichever of them first has a turn pays for the request, so that no client has to wait behind another's limit.
    """

    __slots__ = ("nets", "on_join")

    def __init__(self, net: str) -> None:
        self.nets: dict[str, None] = {net: None}
        self.on_join: Callable[[str], object] = ignore
        """Called with the net of each further client."""

    def __repr__(self) -> str:
        return f"<Askers {', '.join(map(repr, self.nets))}>"

    @property
    def first(self) -> str:
        """The net of the client that the request was made for at first."""
        return next(iter(self.nets))

    def add_client(self, net: str) -> None:
        """Add a client whose request waits for the shared one."""
        if net not in self.nets and len(self.nets) < _MOST_ASKERS:
            self.nets[net] = None
            self.on_join(net)


def ignore(net: str) -> None:
    """The callback if a further client makes no difference."""
