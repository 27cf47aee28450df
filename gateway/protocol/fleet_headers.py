"""The header field between the members of a fleet, in addition to the fields between workers.

A member that does not own a stream asks the owner as one worker asks another (`gateway.protocol.worker_headers`).  The
field `FLEET` of the request names the sender, its worker and its configuration.  The connection proves the sender's
name (`gateway.protocol.member_session`).  The field also has the count of the sender's writes to the paths that share a
cell with the stream's path.  From this count the owner sees which writes the sender has acknowledged, before it answers
the sender's read.

Members also ask each other for their state (`PROBE`).  The answer has the field `FLEET`, too.  With the field
`FLEET_ORDERS`, such a request concerns the operator's orders.

The members' clocks differ.  The times in an owner's statement (`HopSaid`) are therefore relative to the arrival of the
request at the owner.  The asking member adds the time at which it sent the request.  Some times are relative to the
time of the answer instead.  Such a statement then looks older than it is, which is safe.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.protocol.fleet_orders import NO_ORDERS
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.worker_headers import HopSaid

FLEET: Final = "Gateway-Fleet"
PROBE: Final = "OPTIONS"
"""The method of the requests by which members ask each other for their state."""
NOT_LISTED: Final = 410
"""The status of answers in two cases: the asking process has left the receiver's list of members, or it is not in the
list and knows orders that the receiver cannot fetch."""
_SENT: Final = re.compile(
    r"(\S{1,63}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) "
    r"(\d{1,20}) (\d{1,20}) (\d{1,20}) (\d{1,3}) ([0-9a-f]{16}) (\d{1,20})"
)
_ANSWERED: Final = re.compile(
    r"(\S{1,63}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) (serving|leaving) ([0-9a-f]{16}) "
    r"(\d{1,3}) (\d{1,3}(?:,\d{1,3})*) (all|own) ([0-9a-f]{16})"
)


def peer_name(member: str, worker: int) -> str:
    """Return the name of a member's worker among all workers of all members."""
    return f"{member}/{worker}"


ACKNOWLEDGED: Final = 1 << 20
"""The number that an acknowledged append adds to the count.  An append of unknown outcome adds 1.  One number therefore
shows whether there are more appends, and whether any of these was acknowledged."""


class WriteCount(NamedTuple):
    """The counts of the writes that the workers of one gateway have relayed, and that the origin has executed or may
    have executed."""

    appends: int = 0
    """The count of writes that have only added bytes to a stream, or may have done so.  Each acknowledged write adds
    `ACKNOWLEDGED` to it."""
    others: int = 0
    """The writes that may have ended or created a stream."""
    latest: int = 0
    """The number of the latest acknowledged append, among all appends that the gateway has seen acknowledged; 0 if
    there is none."""

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged appends, or a slightly greater one."""
        return self.appends // ACKNOWLEDGED


class MemberField(NamedTuple):
    """The sender of a request between members."""

    name: str
    instance: str
    """The name of the sender's gateway from its start to its end.  All workers of the gateway send the same name."""
    config: str
    """A digest of the parts of the configuration that must be the same at all members."""
    orders: str = NO_ORDERS
    """A digest of the orders that the sender knows (`gateway.protocol.fleet_orders`)."""
    writes: WriteCount = WriteCount()
    """The counts of writes of all of the sender's workers to the paths that share a cell with the requested path."""
    worker: int = 0
    """The number of the sender's worker."""
    process: str = "0" * 16
    """The name of the worker's process."""
    appended: int = 0
    """The number of all appends that the sender's workers have seen acknowledged, to any path."""

    @property
    def peer(self) -> str:
        """The name of the worker among all workers of all members."""
        return peer_name(self.name, self.worker)

    def rendered(self) -> str:
        """Return the value of `FLEET` in a request."""
        name, instance, config, orders, (appends, others, latest), worker, process, appended = self
        return f"{name} {instance} {config} {orders} {appends} {others} {latest} {worker} {process} {appended}"

    @classmethod
    def parse(cls, text: str) -> MemberField | None:
        """Read the value of `FLEET` in a request; return None if it is malformed."""
        found = _SENT.fullmatch(text)
        if found is None:
            return None
        writes = WriteCount(int(found[5]), int(found[6]), int(found[7]))
        return cls(found[1], found[2], found[3], found[4], writes, int(found[8]), found[9], int(found[10]))


class MemberAnswer(NamedTuple):
    """The state of the member that answers a probe."""

    name: str
    instance: str
    config: str
    is_leaving: bool
    node: str = "0" * 16
    """A digest of `server.node_name`, which should differ between members."""
    orders: str = NO_ORDERS
    worker: int = 0
    """The number of the worker that answers."""
    workers: tuple[int, ...] = (0,)
    """The numbers of the member's workers that serve, in their order."""
    knows_all_orders: bool = True
    """Whether the worker that answers knows all orders that the member's other workers know."""
    process: str = "0" * 16
    """The name of the worker's process."""

    def rendered(self) -> str:
        """Return the value of `FLEET` in an answer."""
        name, instance, config, is_leaving, node, orders, worker, workers, knows_all_orders, process = self
        state, known = "leaving" if is_leaving else "serving", "all" if knows_all_orders else "own"
        numbers = ",".join(map(str, workers))
        return f"{name} {instance} {config} {orders} {state} {node} {worker} {numbers} {known} {process}"

    @classmethod
    def parse(cls, text: str) -> MemberAnswer | None:
        """Read the value of `FLEET` in an answer; return None if it is malformed."""
        found = _ANSWERED.fullmatch(text)
        if found is None:
            return None
        workers = tuple(map(int, found[8].split(",")))
        is_leaving, knows_all_orders = found[5] == "leaving", found[9] == "all"
        return cls(
            found[1],
            found[2],
            found[3],
            is_leaving,
            found[6],
            found[4],
            int(found[7]),
            workers,
            knows_all_orders,
            found[10],
        )


def moved(said: HopSaid, now: float, wall: float) -> HopSaid:
    """Convert the relative times in an owner's statement to times of this process's clocks.  `now` (monotonic seconds)
    and `wall` (Unix seconds) are added to them."""
    remembered, lifetime = said.remembered, said.lifetime
    if lifetime is not None and lifetime.expires_at is not None:
        lifetime = Lifetime(lifetime.ttl_s, lifetime.expires_at + wall)
    if remembered is not None:
        remembered = remembered._replace(contacted_at=remembered.contacted_at + now)
    return said._replace(as_of=said.as_of + now, remembered=remembered, lifetime=lifetime)
