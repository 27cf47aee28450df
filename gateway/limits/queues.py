"""Queues that serve clients in turn, and the clients that share one request.

`FairQueue` serves clients round robin, and serves the items of one client in order.  A client with a thousand items
therefore delays the only item of another client by just one item.  A client can be held.  The items of a held client
wait until the client is released, while other clients are served.  One item may be queued for several clients.  When
`pop` has returned the item for one client, the caller must remove the item for the other clients.  All operations take
constant time, amortised.

`Flows` divides processor time fairly.  It is deficit round robin with a list of new flows (RFC 8290 section 4.1), in
seconds of processor time instead of bytes.  A client is new if it adds an item while none of its items waits.  New
clients are served first, so clients with few requests have little delay.  A client becomes old if it adds a second item
before its first item is served.  After every few new clients, one old client is served, because there may always be
new clients.  The cost of an item is known only after the item was served, so the client pays for it in later rounds
(`charge`).

`Askers` are the clients that share one request to an origin: the client that caused the request, and the clients that
have joined the request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)


class FairQueue(Generic[Client, Item]):
    """Waiting items by client.  Keeps no state for clients without items."""

    __slots__ = ("_held", "_ready")

    def __init__(self) -> None:
        self._ready: OrderedDict[Client, OrderedDict[Item, None]] = OrderedDict()
        """The items of clients that are not held, in the order of the clients' turns."""
        self._held: dict[Client, OrderedDict[Item, None]] = {}

    def __repr__(self) -> str:
        return f"<FairQueue of {len(self._ready)} clients, {len(self._held)} held>"

    def __bool__(self) -> bool:
        """Whether any item waits, including items of held clients."""
        return bool(self._ready or self._held)

    @property
    def has_next(self) -> bool:
        """Whether a client that is not held has a waiting item."""
        return bool(self._ready)

    def clients(self) -> list[Client]:
        """Return the clients with waiting items."""
        return [*self._ready, *self._held]

    def push(self, client: Client, item: Item, *, is_held: bool = False) -> None:
        """Add an item of the client.

        `is_held` must state whether the client is held, because the queue does not know this for a client without
        items.
        """
        clients = self._held if is_held else self._ready
        items = clients.get(client)
        if items is None:
            items = clients[client] = OrderedDict()
        items[item] = None

    def pop(self) -> tuple[Client, Item]:
        """Remove the next item; return its client and the item.  Raises KeyError if no item can be served."""
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
        """Remove an item of this client, if the item is in the queue."""
        for clients in (self._ready, self._held):
            items = clients.get(client)
            if items is not None and item in items:
                del items[item]
                if not items:
                    del clients[client]
                return

    def hold(self, client: Client) -> None:
        """Hold the client: skip its turns."""
        items = self._ready.pop(client, None)
        if items is not None:
            self._held[client] = items

    def let_go(self, client: Client) -> None:
        """Release a held client.  Its next turn comes after the turns of the other clients."""
        items = self._held.pop(client, None)
        if items is not None:
            self._ready[client] = items


Work = TypeVar("Work")

_MOST_DEBT: Final = 64
"""The maximum number of rounds that a client must wait because of its earlier costs."""
_MOST_NEW: Final = 16
"""The maximum number of new clients that are served in a row while old clients wait."""
_MOST_OLD: Final = 1 << 12
"""With this many old clients, a new client without further items is forgotten instead of becoming old."""


class _Flow(Generic[Work]):
    """The items of one client, and the seconds that the client may still use in this round."""

    __slots__ = ("items", "left_s")

    def __init__(self, left_s: float) -> None:
        self.items: deque[Work] = deque()
        self.left_s = left_s


class Flows(Generic[Client, Work]):
    """Waiting items by client.  Each client may use `quantum_s` seconds of processor time in a round."""

    __slots__ = ("_new", "_new_served", "_old", "_quantum_s", "waiting")

    def __init__(self, quantum_s: float) -> None:
        self._quantum_s = quantum_s
        self._new: OrderedDict[Client, _Flow[Work]] = OrderedDict()
        """The flows of new clients."""
        self._old: OrderedDict[Client, _Flow[Work]] = OrderedDict()
        """All other flows.  An empty flow stays for one round.  A client that adds an item in this time is not new."""
        self._new_served = 0
        """The number of new flows served in a row while old flows waited."""
        self.waiting = 0
        """The number of items."""

    def __repr__(self) -> str:
        return f"<Flows {self.waiting} items of {len(self._new)} new and {len(self._old)} old clients>"

    def __len__(self) -> int:
        """The number of items."""
        return self.waiting

    def has(self, client: Client) -> bool:
        """Return whether the client has a waiting item."""
        flow = self._new.get(client) or self._old.get(client)
        return flow is not None and bool(flow.items)

    def push(self, client: Client, item: Work) -> None:
        """Add an item of the client."""
        if not self.waiting:
            self._new.clear()
            self._old.clear()
        flow = self._new.get(client) or self._old.get(client)
        if flow is None:
            flow = self._new[client] = _Flow(self._quantum_s)
        elif flow.items and client in self._new:
            # A client with a second waiting item becomes old.
            self._retire(self._new, client, flow)
        flow.items.append(item)
        self.waiting += 1

    def pop(self) -> tuple[Client, Work]:
        """Remove the next item; return its client and the item.  Raises KeyError if there is no item."""
        # New flows are served first, except after `_MOST_NEW` new flows in a row.
        passed = 0
        while self.waiting:
            is_new = bool(self._new) and not (self._old and self._new_served >= _MOST_NEW)
            flows = self._new if is_new else self._old
            client, flow = next(iter(flows.items()))
            if flow.left_s <= 0:
                is_alone = len(self._new) + len(self._old) == 1
                # If there is no other flow, a delay of this flow would help no client.  In this case, skip all the
                # rounds that this flow must wait.
                rounds = 1 + int(-flow.left_s / self._quantum_s) if is_alone else 1
                flow.left_s += rounds * self._quantum_s
                if not is_alone or is_new:
                    self._retire(flows, client, flow)
                    passed += 1
                    if passed == len(self._old):
                        self._pass_rounds()
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

    def _pass_rounds(self) -> None:
        """Skip the rounds in which no old flow could be served.  After costly items, each client may have to wait for
        dozens of rounds.  Without this step, `pop` could then take as long as a request."""
        rounds = min(int(-flow.left_s / self._quantum_s) for flow in self._old.values())
        if rounds > 0:
            for flow in self._old.values():
                flow.left_s += rounds * self._quantum_s

    def charge(self, client: Client, cost_s: float) -> None:
        """Charge the client for its latest item, which has cost `cost_s` seconds."""
        flow = self._new.get(client) or self._old.get(client)
        if flow is not None:
            flow.left_s = max(flow.left_s - cost_s, -_MOST_DEBT * self._quantum_s)

    def _retire(self, flows: OrderedDict[Client, _Flow[Work]], client: Client, flow: _Flow[Work]) -> None:
        """Move the flow to the end of the old flows."""
        del flows[client]
        self._old[client] = flow


_MOST_ASKERS: Final = 256
"""The maximum number of networks that are recorded for one request.  Clients of further networks share the request
too."""


class Askers:
    """The networks of the clients that share a request, in the order in which the clients joined.

    The request is charged to the client whose turn comes first, so that one client's limit does not delay the other
    clients.
    """

    __slots__ = ("nets", "on_join")

    def __init__(self, net: str) -> None:
        self.nets: dict[str, None] = {net: None}
        self.on_join: Callable[[str], object] = ignore
        """Called with each network that is added."""

    def __repr__(self) -> str:
        return f"<Askers {', '.join(map(repr, self.nets))}>"

    @property
    def first(self) -> str:
        """The network of the client that caused the request."""
        return next(iter(self.nets))

    def add_client(self, net: str) -> None:
        """Add a client that shares the request."""
        if net not in self.nets and len(self.nets) < _MOST_ASKERS:
            self.nets[net] = None
            self.on_join(net)


def ignore(net: str) -> None:
    """Do nothing when a client joins."""
