"""A queue in which clients take turns: round robin over the clients, first in, first out within each.

A client with a thousand waiting items delays another client's only item by one item, not by a thousand.  A client may
be held: its items keep their order and wait until it is let go, while the others take their turns.

An item may wait under several clients at once and leaves the queue when the caller removes it from all of them.  All
operations take constant time (amortised), whatever waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

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
