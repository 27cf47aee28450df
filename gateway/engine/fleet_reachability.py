"""Another member of the fleet, as this one sees it: why it is not asked for streams, if it is not.

A member that does not answer probes, or whose configuration differs, owns no streams in this member's view.  A request
that cannot reach a member has the same effect at once.

A member that often fails must not lose and get its streams twice a second: one that answers probes but not requests, or
one that is too busy for some seconds.  So after a failure it is asked again only after a while, which doubles with each
such loss (`Member.lose`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from multidict import CIMultiDict

from gateway.aio.clock import Clock, Timer
from gateway.engine.fleet_orders import FleetOrders
from gateway.engine.fleet_processes import MemberProcesses
from gateway.errors import GatewayError, UpstreamTimeout
from gateway.http.reply_parser import Interim
from gateway.protocol.fleet_headers import FLEET, NOT_LISTED, PROBE, MemberAnswer, MemberField, peer_name
from gateway.protocol.member_session import ANOTHER_SERVER
from gateway.upstream.client import MemberClient
from gateway.upstream.failures import NotAMember
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.reply import PendingRequest, Reply
from gateway.workers.member_owners import MemberOwners

RAMP_PROBES: Final = 10
"""A member that comes or returns is asked for a tenth of its streams after its first answer, for two tenths after the
second one, and so on."""
_LEAST_HOLD_S: Final = 0.5
_MOST_HOLD_S: Final = 30.0
"""The least and the most seconds for which a member is not asked after a failure, varied by a fifth."""
_STEADY_S: Final = 10.0
"""A member that was asked for this number of seconds without a failure is held off for `_LEAST_HOLD_S` again."""
CONNECT_S: Final = 1.0
"""The most seconds for a connection to a member."""
_MOST_FAILING_S: Final = 4 * CONNECT_S
"""The time that a request takes at most to fail: two attempts, each with a wait for its turn to connect."""
_PROBE_BOUNDS: Final = Bounds(CONNECT_S, 1.0, 1.0, 2.0)
NOT_ASKED: Final = "not asked yet"
_FAILED: Final = "a request has failed"
_GONE: Final = "it has left this member's list"
_NOT_IN_ITS_LIST: Final = "this member is not in its list"

_log = logging.getLogger("gateway.fleet")


class FleetOfMember(Protocol):
    """This member's view of its fleet: `gateway.engine.fleet.Fleet`."""

    clock: Clock
    field: MemberField
    node: str
    has_started: bool
    on_silent: Callable[[int], object]

    @property
    def owners(self) -> MemberOwners: ...

    @property
    def client(self) -> MemberClient: ...

    @property
    def orders(self) -> FleetOrders: ...

    @property
    def processes(self) -> MemberProcesses: ...

    def later(self, probe: Callable[[], object]) -> Timer: ...

    def varied(self, seconds: float) -> float: ...

    def member_answered(self) -> None: ...


class Member:
    """Another member of the fleet.  It is the requester of its probes."""

    def __init__(self, fleet: FleetOfMember, index: int, name: str, url: str) -> None:
        self._fleet = fleet
        self._index = index
        self.name = name
        self.url = url
        self.why_not = NOT_ASKED
        """Why the member is not asked for streams; empty if it is."""
        self.has_differed = False
        """Whether the member's configuration has differed at its latest answer."""
        self.losses = 0
        """How often the member could be reached no more."""
        self.asked = 0
        """How many requests for streams were sent to the member."""
        self._pending: PendingRequest | None = None
        self._timer: Timer | None = None
        self._is_namesake = False
        """Whether the member has been found to have this one's `server.node_name`."""
        self._is_late = False
        """Whether the latest probe was not answered in time."""
        self._is_leaving = False
        """Whether the member was leaving at its latest answer."""
        self.answers = False
        """Whether the member has answered the latest probe."""
        self._instance = ""
        """The process that has given the latest answer."""
        self._is_doubted = False
        """Whether a request has failed since the latest answer to a probe."""
        self._vouched_at = -inf
        """When a probe after a failed request was answered, if no request was answered since."""
        self._reached_at = self._held_until = -inf
        self._lost_by = ""
        """Why the member could be reached no more when it was last held off."""
        self._hold_s = _LEAST_HOLD_S

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.why_not or 'reached'}>"

    @property
    def weight(self) -> float:
        """The part of its streams for which the member is asked, if it is asked."""
        return self._fleet.owners.weight(self._index)

    @property
    def share(self) -> float:
        """The part of its streams for which the member is asked; 0 if it is not asked."""
        return 0.0 if self.why_not else self.weight

    @property
    def workers(self) -> int:
        """How many workers of the member serve, by its latest answer; 0 if it has not answered."""
        return self._fleet.owners.workers_of(self._index)

    def url_of(self, worker: int) -> str:
        """Return the URL of one of the member's workers (`MemberDialer`)."""
        if self._fleet.owners.is_only_worker(self._index, worker):
            return self.url
        return f"http://{worker}@{self.url.removeprefix('http://')}"

    def probe(self) -> None:
        """Ask the member for its state, and go on to do so until `stop`."""
        fleet = self._fleet
        self._timer = None
        headers = CIMultiDict({FLEET: fleet.field.rendered()})
        pending = fleet.client.ask(self, OriginCall(PROBE, f"{self.url}/", headers, _PROBE_BOUNDS))
        if self._timer is None:
            self._pending = pending

    def stop(self) -> None:
        """End the probes."""
        if self._timer is not None:
            self._timer.cancel()
        if (pending := self._pending) is not None:
            self._pending = None
            pending.give_up()

    def leave(self) -> None:
        """End the probes for good, because the member has left the list.  If it has not answered in time, its answers
        are cut, because no further probe would show that it hangs."""
        self.stop()
        self.why_not = _GONE
        if self._is_late:
            self._fleet.on_silent(self._index)

    def judge(self, why_not: str, *, differs: bool = False) -> None:
        """Record why the member is not asked for streams; empty if it is.  A change is logged.  `differs`: the operator
        has to change something."""
        if why_not == self.why_not:
            return
        self.losses += self.why_not == ""
        self._reached_at = self._fleet.clock.now()
        self.why_not = why_not
        self.has_differed = differs
        if why_not:
            level = logging.ERROR if self.has_differed else logging.WARNING
            _log.log(level, "member %s at %s owns no streams: %s", self.name, self.url, why_not)
        else:
            _log.warning("member %s at %s can be reached", self.name, self.url)
        self._fleet.owners.set_reached(self._index, is_reached=not why_not)

    def _reach(self) -> None:
        """Ask the member for a greater part of its streams than before, unless it is held off."""
        fleet, index = self._fleet, self._index
        if self.why_not and fleet.clock.now() < self._held_until:
            self.judge(self._lost_by)
            return
        weight = 1.0
        if fleet.has_started:
            tenths = 0 if self.why_not else round(fleet.owners.weight(index) * RAMP_PROBES)
            weight = min(1.0, (tenths + 1) / RAMP_PROBES)
        fleet.owners.set_weight(index, weight)
        self.judge("")

    def answered(self) -> None:
        """Record that a request was answered."""
        self._vouched_at = -inf

    def doubt(self) -> None:
        """Record that a request has failed.  A probe at once decides whether the member is lost.

        A member that answers only probes is lost at the next failure, unless the request may be older than the probe.
        """
        if self.why_not:
            return
        if _MOST_FAILING_S <= self._fleet.clock.now() - self._vouched_at < _STEADY_S:
            self.lose()
            return
        self._is_doubted = True
        if self._timer is not None:
            self._timer.cancel()
            self.probe()

    def lose(self, why_not: str = _FAILED) -> None:
        """Record that requests or a probe have failed.  The member is held off for a while."""
        fleet = self._fleet
        if self.why_not:
            return
        now = fleet.clock.now()
        is_steady = now >= self._reached_at + _STEADY_S
        self._hold_s = _LEAST_HOLD_S if is_steady else min(_MOST_HOLD_S, 2 * self._hold_s)
        self._held_until = now + fleet.varied(self._hold_s)
        self._lost_by = why_not
        self.judge(why_not)

    # -- called by the client of other members

    @property
    def sent(self) -> Callable[[], object]:
        """Do nothing: only requests to origins count as sent."""
        return no_op

    def informed(self, interim: Interim) -> None:
        """Ignore an interim reply."""

    def head_arrived(self, reply: Reply) -> None:
        text = reply.headers.get(FLEET)
        answer = MemberAnswer.parse(text) if text is not None else None
        reply.close()
        if answer is not None and not answer.is_leaving:
            # A process that leaves may answer for a while after the next one has started.
            self._fleet.processes.identify(self.name, answer.instance)
            self._fleet.owners.set_workers(self._index, answer.workers)
        if reply.status == NOT_LISTED:
            # The answers that the member has begun before go on.
            self._is_late = self._is_doubted = False
            self.answers = True
            self.judge(_NOT_IN_ITS_LIST)
            self._notice_orders(answer)
            self._go_on()
            return
        if answer is None:
            self.judge(ANOTHER_SERVER)
        elif answer.config != self._fleet.field.config:
            self.judge("its configuration of routes or origins differs", differs=True)
        elif answer.is_leaving:
            self.judge("it is leaving")
        else:
            self._reach()
        self._notice_orders(answer)
        if answer is not None and answer.node == self._fleet.node and not self._is_namesake:
            self._is_namesake = True
            _log.warning("member %s has the same server.node_name as this one", self.name)
        instance = answer.instance if answer is not None else ""
        if instance != self._instance and not self._is_leaving:
            # The earlier process has ended, perhaps with its machine, so that nothing has closed its connections.
            self._fleet.on_silent(self._index)
        self._instance = instance
        self._is_late, self._is_leaving = False, answer is not None and answer.is_leaving
        self.answers = answer is not None
        if self._is_doubted:
            self._is_doubted, now = False, self._fleet.clock.now()
            if now >= self._vouched_at + _STEADY_S:
                self._vouched_at = now
        self._go_on()

    def _notice_orders(self, answer: MemberAnswer | None) -> None:
        if answer is not None:
            peer = peer_name(self.name, answer.worker)
            self._fleet.orders.notice(peer, answer.process, answer.orders, is_for_member=answer.knows_all_orders)

    def failed(self, error: GatewayError) -> None:
        was_late, self._is_late = self._is_late, isinstance(error, UpstreamTimeout)
        if self._is_late and not was_late and (self._is_leaving or not self.why_not):
            # The member may only be busy.  Ask once more before its streams get other owners and its answers are cut.
            self._pending = None
            self.probe()
            return
        self.answers = False
        cause = error.__cause__
        if isinstance(cause, NotAMember):
            self.judge(str(cause), differs=cause.differs)
        else:
            why_not = "it does not answer in time" if isinstance(error, UpstreamTimeout) else "it cannot be reached"
            self.lose(why_not)
            self.judge(why_not)
        self._is_doubted = False
        if self._is_late or not self._is_leaving:
            # A member that leaves accepts no connections at last, but ends its answers.
            self._fleet.on_silent(self._index)
        self._go_on()

    def _go_on(self) -> None:
        self._pending = None
        self._fleet.member_answered()
        self._timer = self._fleet.later(self.probe)
