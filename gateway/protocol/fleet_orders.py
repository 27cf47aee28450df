"""The log of the operator's orders (purges and revocations), of which each member of a fleet has a copy.

The process to which the operator gives an order numbers the order: 1, 2, 3, and so on.  A member *knows* the orders of
each process up to a number.  These numbers are the member's *state*, and each request between members carries a digest
of the sender's state.  If this digest differs from the receiver's own digest, the receiver asks the sender for the
orders that it does not know (`OrderNews`).

A log keeps only the latest orders.  A member that needs an order which is no longer in the log has *missed* orders.  It
must then empty its memory, and put all revocations of the other member into effect.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from heapq import nlargest
from math import inf
from typing import Final, Literal, NamedTuple

FLEET_ORDERS: Final = "Gateway-Fleet-Orders"
"""The field of a request (`PROBE`) about orders: `Since` or `OutcomeAsk`."""
MOST_ORDERS: Final = 1_024
MOST_CHARS: Final = 1 << 20
"""The most orders in a log, and the most characters of their texts."""
MOST_PROCESSES: Final = 1_024
"""The most processes with orders that a member remembers."""
_MOST_NAMED: Final = 64
"""The most processes whose numbers are sent in a request."""
NO_ORDERS: Final = "0" * 16
"""The digest of the state of a member that knows no orders."""

Kind = Literal["purge", "revoke"]
PURGE_ALL: Final = '{"all":true,"soft":false}'
"""The text of a purge of all streams that a member gives because it may have missed orders.  An operator's order never
has this text, because its text has no `soft`, whatever the operator's client has sent."""


class Order(NamedTuple):
    """One purge or revocation."""

    process: str
    """The name of the process to which the operator gave the order."""
    number: int
    kind: Kind
    text: str
    """The body of the operator's request."""
    at: float
    """The time at which the order was given, in monotonic seconds of this process."""


class InEffect(NamedTuple):
    """A revocation that is in effect (`gateway.auth.remembered_verdicts.Revocation`)."""

    subject: str
    name: str
    issuer: str | None
    for_s: float
    """Seconds until it ends."""


class Since(NamedTuple):
    """A request for the orders that the sender does not know."""

    known: Mapping[str, int]
    """The numbers of the latest orders that the sender knows, by process.  Some processes may be omitted."""
    is_new: bool
    """Whether the sender has just started.  Such a sender needs all revocations."""

    def rendered(self) -> str:
        """Return the value of `FLEET_ORDERS`."""
        return " ".join(
            ["new" if self.is_new else "since", *(f"{name}:{number}" for name, number in self.known.items())]
        )

    @classmethod
    def parse(cls, text: str) -> Since:
        """Read the value of `FLEET_ORDERS`.  Raises ValueError."""
        how, *words = text.split(" ")
        if how not in ("new", "since"):
            raise ValueError("not a request for orders")
        known = {}
        for word in words:
            name, _, number = word.partition(":")
            known[name] = int(number)
        return cls(known, how == "new")


class OutcomeAsk(NamedTuple):
    """A request to carry out one order, and for the outcome of this order."""

    process: str
    number: int

    def rendered(self) -> str:
        """Return the value of `FLEET_ORDERS`."""
        return f"done {self.process}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> OutcomeAsk:
        """Read the value of `FLEET_ORDERS`.  Raises ValueError."""
        how, word = text.split(" ")
        name, _, number = word.partition(":")
        if how != "done":
            raise ValueError("not a question for an order's outcome")
        return cls(name, int(number))


class OrderNews(NamedTuple):
    """A member's answer to `Since`: its state, and the orders that the asking member does not know."""

    known: dict[str, tuple[int, float]]
    """The number and the time of the latest order of each process."""
    orders: list[Order]
    in_effect: list[InEffect] | None
    """All revocations in effect if the asking member is new or has missed orders; otherwise None."""
    process: str = ""
    """The name of the process that answers."""

    def rendered(self, now: float) -> bytes:
        """Return the text of the answer.  It has ages instead of times, because the members' clocks differ."""
        return json.dumps(
            {
                "known": {process: (number, now - at) for process, (number, at) in self.known.items()},
                "orders": [order._replace(at=now - order.at) for order in self.orders],
                "in_effect": self.in_effect,
                "process": self.process,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def parse(cls, text: bytes, now: float) -> OrderNews:
        """Read the text of an answer.  Raises ValueError."""
        try:
            value = json.loads(text)
            known = {str(process): (int(number), now - float(age)) for process, (number, age) in value["known"].items()}
            orders = [Order(*words) for words in value["orders"]]
            in_effect = value["in_effect"]
            return cls(
                known,
                [order._replace(at=now - order.at) for order in orders],
                None if in_effect is None else [InEffect(*words) for words in in_effect],
                str(value["process"]),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from None


class OrderLog:
    """The orders that one member knows."""

    def __init__(self, most: int = MOST_ORDERS, most_processes: int = MOST_PROCESSES) -> None:
        self._most = most
        self._most_processes = most_processes
        self._known: dict[str, tuple[int, float]] = {}
        """The number and the time of the latest order of each process."""
        self._orders: deque[Order] = deque()
        self._chars = 0
        self.digest = NO_ORDERS
        """A digest of the state."""

    def __repr__(self) -> str:
        return f"<OrderLog {len(self._orders)} orders of {len(self._known)} processes>"

    def add(self, process: str, kind: Kind, text: str, now: float) -> Order:
        """Add an order that the operator has given to this process."""
        order = Order(process, self._number(process) + 1, kind, text, now)
        self._know(process, order.number, now)
        self._keep(order)
        self._changed()
        return order

    def orders(self) -> Iterator[Order]:
        """Return the latest orders, in the sequence in which this member has learnt them."""
        return iter(self._orders)

    def numbers(self) -> dict[str, int]:
        """Return the number of the latest order of each process."""
        return {process: number for process, (number, _) in self._known.items()}

    def has_forgotten(self, known: Mapping[str, int]) -> bool:
        """Return whether the log no longer has an order that is later than the latest order of the same process in
        `known`."""
        return self.since(Since(known, is_new=False), []).in_effect is not None

    def since(self, asked: Since, in_effect: list[InEffect]) -> OrderNews:
        """Return the orders that another member does not know.  `in_effect` are the revocations in effect."""
        orders = [order for order in self._orders if order.number > asked.known.get(order.process, 0)]
        counts: dict[str, int] = {}
        for order in orders:
            counts[order.process] = counts.get(order.process, 0) + 1
        needs_all = asked.is_new or any(
            number - asked.known.get(process, 0) > counts.get(process, 0)
            for process, (number, _) in self._known.items()
        )
        return OrderNews(dict(self._known), orders, in_effect if needs_all else None)

    def asked(self, *, is_new: bool) -> Since:
        """Return the request for the orders that this member does not know."""
        latest = nlargest(_MOST_NAMED, self._known.items(), key=lambda item: item[1][1])
        return Since({process: number for process, (number, _) in latest}, is_new)

    def learn_news(self, news: OrderNews) -> tuple[list[Order], bool]:
        """Add the orders of another member that this member does not know.  Return these orders, and whether this
        member has missed orders."""
        found: dict[tuple[str, int], Order] = {(order.process, order.number): order for order in news.orders}
        new: list[Order] = []
        has_missed = False
        for process, (number, at) in news.known.items():
            before = self._number(process)
            if number <= before or (not before and self._is_forgotten(at)):
                continue
            numbers = range(max(before, number - self._most) + 1, number + 1)
            orders = [order for one in numbers if (order := found.get((process, one))) is not None]
            has_missed |= len(orders) < number - before
            new += orders
            self._know(process, number, at)
        new.sort(key=lambda order: (order.at, order.number))
        for order in new:
            self._keep(order)
        if news.known:
            self._changed()
        return new, has_missed

    def _number(self, process: str) -> int:
        return self._known.get(process, (0, -inf))[0]

    def _is_forgotten(self, at: float) -> bool:
        """Return whether this log has forgotten, or may have forgotten, a process whose latest order was given at the
        time `at`."""
        return len(self._known) >= self._most_processes and at <= min(latest for _, latest in self._known.values())

    def _know(self, process: str, number: int, at: float) -> None:
        self._known[process] = number, at
        if len(self._known) > self._most_processes:
            del self._known[min(self._known, key=lambda process: self._known[process][1])]

    def _keep(self, order: Order) -> None:
        self._orders.append(order)
        self._chars += len(order.text)
        while len(self._orders) > self._most or self._chars > MOST_CHARS:
            self._chars -= len(self._orders.popleft().text)

    def _changed(self) -> None:
        self.digest = self.digest_of(self._known)

    @staticmethod
    def digest_of(known: Mapping[str, tuple[int, float]]) -> str:
        """Return the digest of a state."""
        state = "\n".join(f"{process}:{number}" for process, (number, _) in sorted(known.items()))
        return blake2b(state.encode(), digest_size=8).hexdigest() if state else NO_ORDERS
