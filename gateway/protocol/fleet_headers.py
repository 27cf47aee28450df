"""The header field between the members of a fleet, in addition to the fields between workers.

A member that does not own a stream asks the owner as one worker asks another (`gateway.protocol.worker_headers`).  The
field `FLEET` of the request names the sender, its process and its configuration.  The connection proves the sender's
name (`gateway.protocol.member_session`).  The field also counts the sender's writes to the paths that share a cell with
the stream's path.  Thus the owner learns of the writes that the sender has acknowledged, before it answers the sender's
read.

Members also ask each other for their state (`PROBE`).  The answer has the field `FLEET`, too.  With the field
`FLEET_ORDERS`, such a request is about the operator's orders.

The members' clocks differ.  So the times in an owner's statement (`HopSaid`) are relative to the time of the answer,
and the asking member adds the time of its request.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.protocol.fleet_orders import NO_ORDERS
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.worker_headers import HopSaid

FLEET: Final = "Gateway-Fleet"
PROBE: Final = "OPTIONS"
"""The method of the requests by which members learn of each other's state."""
NOT_LISTED: Final = 410
"""The status of all answers to a process that has left the receiver's list of members, and of answers to one that is
not in the list and knows orders that the receiver cannot fetch."""
_SENT: Final = re.compile(r"(\S{1,63}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) (\d{1,20}) (\d{1,20})")
_ANSWERED: Final = re.compile(
    r"(\S{1,63}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) (serving|leaving) ([0-9a-f]{16})"
)


class WriteCount(NamedTuple):
    """How many writes one process has seen acknowledged, or has lost sight of."""

    appends: int = 0
    """The writes that have added something to a stream, or may have."""
    others: int = 0
    """The writes that may have ended or created a stream."""


class MemberField(NamedTuple):
    """The sender of a request between members."""

    name: str
    instance: str
    """The name of the sender's process."""
    config: str
    """A digest of the parts of the configuration that all members must have in common."""
    orders: str = NO_ORDERS
    """A digest of the orders that the sender knows (`gateway.protocol.fleet_orders`)."""
    writes: WriteCount = WriteCount()
    """The sender's writes to paths in the cell of the requested path."""

    def rendered(self) -> str:
        """Return the value of `FLEET` in a request."""
        return f"{self.name} {self.instance} {self.config} {self.orders} {self.writes.appends} {self.writes.others}"

    @classmethod
    def parse(cls, text: str) -> MemberField | None:
        """Read the value of `FLEET` in a request; return None if it is malformed."""
        found = _SENT.fullmatch(text)
        if found is None:
            return None
        return cls(found[1], found[2], found[3], found[4], WriteCount(int(found[5]), int(found[6])))


class MemberAnswer(NamedTuple):
    """The state of the member that answers a probe."""

    name: str
    instance: str
    config: str
    is_leaving: bool
    node: str = "0" * 16
    """A digest of `server.node_name`, which should differ between members."""
    orders: str = NO_ORDERS

    def rendered(self) -> str:
        """Return the value of `FLEET` in an answer."""
        state = "leaving" if self.is_leaving else "serving"
        return f"{self.name} {self.instance} {self.config} {self.orders} {state} {self.node}"

    @classmethod
    def parse(cls, text: str) -> MemberAnswer | None:
        """Read the value of `FLEET` in an answer; return None if it is malformed."""
        found = _ANSWERED.fullmatch(text)
        if found is None:
            return None
        return cls(found[1], found[2], found[3], found[5] == "leaving", found[6], found[4])


def moved(said: HopSaid, now: float, wall: float) -> HopSaid:
    """Return an owner's statement, whose times are relative, with the times of this process's clocks: `now` (monotonic
    seconds) and `wall` (Unix seconds)."""
    remembered, lifetime = said.remembered, said.lifetime
    if lifetime is not None and lifetime.expires_at is not None:
        lifetime = Lifetime(lifetime.ttl_s, lifetime.expires_at + wall)
    if remembered is not None:
        remembered = remembered._replace(contacted_at=remembered.contacted_at + now)
    return said._replace(as_of=said.as_of + now, remembered=remembered, lifetime=lifetime)
