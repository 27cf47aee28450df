"""Orders, revocations and announcements in the form in which the members of a fleet store them in Redis.  Each is
authenticated.

An entry is a code (HMAC-SHA256) and a JSON text.  The key of the code is derived from the fleet's secret.  Consider an
attacker who can write to Redis, but does not know the secret.  The attacker can neither make nor change a purge, a
revocation or an announcement of a member.  The attacker can do the following:

- Write an order again.  This has no effect, because a member executes each order once
  (`gateway.protocol.fleet_orders`), and the text contains the time of the order.
- Replace the entry of a revocation by an earlier entry of the same name.  If all members restart together, they then
  use the end in the earlier entry.  Running members do not use it.
- Write an announcement again for some seconds.  After this time, the time in the announcement shows that it is old.
- Delete entries.  A member notices the loss of an order only if the last entry that it has read is deleted, too.

Times are in Unix seconds, because entries may be read after the processes that wrote them have ended.  The members'
wall clocks must agree within some seconds.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, cast, get_args

from gateway.protocol.fleet_orders import InEffect, Kind, Order, OrderNews

_CODE_BYTES: Final = 32
_FIELD_BYTES: Final = 16
_ORDER: Final = b"order 1\n"
_REVOCATION: Final = b"revocation 1\n"
_ANNOUNCEMENT: Final = b"announcement 1\n"
"""The kinds of entries, with the version of their form.  The code covers the kind, so that an entry of one kind is not
accepted as an entry of another kind."""


class StoredEntry(NamedTuple):
    """One entry of the stream of orders in Redis."""

    id: str
    data: bytes
    """The sealed order or mark; empty if the entry has no such field."""


class Announcement(NamedTuple):
    """A member's statement that it is in the fleet."""

    name: str
    url: str
    """The URL of the member's listener for other members."""
    instance: str
    """The identifier of one run of the member's gateway (`gateway.protocol.fleet_headers.MemberField`)."""
    at: float
    """The time of the statement (Unix seconds)."""


class Moment(NamedTuple):
    """One moment, by both clocks of this process."""

    now: float
    """Monotonic seconds."""
    wall: float
    """Unix seconds."""


class Seal:
    """Makes and reads the entries of one fleet."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"durable-gateway redis code", "sha256")
        self.fleet: Final = hmac.digest(secret, b"durable-gateway redis name", "sha256")[:8].hex()
        """A name for the fleet, which reveals nothing about the secret.  Fleets with different secrets have different
        names."""

    def _sealed(self, kind: bytes, value: object) -> bytes:
        return self._code(kind, value) + _text(value)

    def _code(self, kind: bytes, value: object) -> bytes:
        return hmac.digest(self._key, kind + _text(value), "sha256")

    def _opened(self, kind: bytes, entry: bytes) -> list[Any]:
        code, text = entry[:_CODE_BYTES], entry[_CODE_BYTES:]
        if not hmac.compare_digest(code, hmac.digest(self._key, kind + text, "sha256")):
            raise ValueError("the code is wrong")
        value = json.loads(text)
        if not isinstance(value, list):
            raise ValueError("not a list")
        return value

    def order(self, order: Order, moment: Moment) -> bytes:
        """Return the entry of an order."""
        process, number, kind, text, at = order
        return self._sealed(_ORDER, [process, number, kind, text, moment.wall - (moment.now - at)])

    def mark(self, process: str, moment: Moment) -> bytes:
        """Return an entry that is no order.  A process writes it to mark its place in a stream without entries."""
        return self._sealed(_ORDER, [process, moment.wall])

    def read_order(self, entry: bytes, moment: Moment) -> Order | None:
        """Read the entry of an order.  Return None for a mark.  Raises ValueError if the entry was not made by a member
        of this fleet."""
        value = self._opened(_ORDER, entry)
        if len(value) == 2:
            return None
        process, number, kind, text, wall = value
        is_right = isinstance(process, str) and isinstance(text, str) and kind in get_args(Kind)
        if not is_right or not isinstance(number, int) or number < 1:
            raise ValueError("not an order")
        # The clock of the member that gave the order may be ahead of this member's clock.
        return Order(process, number, cast("Kind", kind), text, moment.now - max(0.0, moment.wall - _time(wall)))

    def revocation(self, revocation: InEffect, moment: Moment) -> tuple[bytes, bytes]:
        """Return the field and the entry of a revocation.  A later revocation of the same name has the same field."""
        subject, name, issuer, for_s = revocation
        field = self._code(b"field\n", [subject, name, issuer])[:_FIELD_BYTES].hex().encode()
        return field, self._sealed(_REVOCATION, [subject, name, issuer, moment.wall + for_s])

    def read_revocation(self, entry: bytes, moment: Moment) -> InEffect:
        """Read the entry of a revocation, which may have ended.  Raises ValueError if the entry was not made by a
        member of this fleet."""
        subject, name, issuer, until = self._opened(_REVOCATION, entry)
        is_right = isinstance(subject, str) and isinstance(name, str)
        if not is_right or not (issuer is None or isinstance(issuer, str)):
            raise ValueError("not a revocation")
        return InEffect(subject, name, issuer, _time(until) - moment.wall)

    def announcement(self, announcement: Announcement) -> bytes:
        """Return the entry of an announcement."""
        return self._sealed(_ANNOUNCEMENT, list(announcement))

    def read_announcement(self, entry: bytes) -> Announcement:
        """Read the entry of an announcement.  Raises ValueError if the entry was not made by a member of this fleet."""
        name, url, instance, at = self._opened(_ANNOUNCEMENT, entry)
        if not (isinstance(name, str) and isinstance(url, str) and isinstance(instance, str)):
            raise ValueError("not an announcement")
        return Announcement(name, url, instance, _time(at))


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _time(value: object) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise ValueError("not a time")
    return float(value)


def news_of(orders: Sequence[Order], in_effect: list[InEffect] | None = None) -> OrderNews:
    """Return these orders in the form of news.  The number of orders that a process has given is the number of its
    latest order."""
    known: dict[str, tuple[int, float]] = {}
    for order in orders:
        if order.number > known.get(order.process, (0, 0.0))[0]:
            known[order.process] = order.number, order.at
    return OrderNews(known, list(orders), in_effect)
