"""The state of another member of the fleet: whether it is asked for streams, and the reason if it is not.

A member that does not answer probes, or whose configuration differs, owns no streams in this member's view.  If a
request fails, a probe is sent at once, so that a dead member is noticed early.

A member may answer probes but no requests, or be too busy for some seconds.  Such a member must not lose its streams
and get them back twice a second.  After a failure the member gets no requests for a hold-off time.  This time doubles
with each further failure (`Member.lose`).
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
"""A new or returning member is asked for a tenth of its streams after its first answer to a probe, for two tenths after
the second answer, and so on."""
_LEAST_HOLD_S: Final = 0.5
_MOST_HOLD_S: Final = 30.0
"""The least and the most seconds of a hold-off, varied by a fifth."""
_STEADY_S: Final = 10.0
"""If a member has had no failure for this number of seconds, its next hold-off lasts `_LEAST_HOLD_S` again."""
CONNECT_S: Final = 1.0
"""The most seconds until a connection to a member is open."""
_MOST_FAILING_S: Final = 4 * CONNECT_S
"""The longest time until a request fails: two attempts, and each may first wait until it may connect."""
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

    def field_for(self) -> MemberField: ...

    def later(self, probe: Callable[[], object]) -> Timer: ...

    def varied(self, seconds: float) -> float: ...

    def member_answered(self) -> None: ...


class Member:
    """Another member of the fleet.  This object is the `Requester` of the probes to the member."""

    def __init__(self, fleet: FleetOfMember, index: int, name: str, url: str) -> None:
        self._fleet = fleet
        self._index = index
        self.name = name
        self.url = url
        self.why_not = NOT_ASKED
        """Why the member is not asked for streams; empty if it is asked."""
        self.has_differed = False
        """Whether the member is not asked for streams because the operator has to change a configuration."""
        self.losses = 0
        """The number of times that the member became unreachable."""
        self.asked = 0
        """The number of requests for streams that were sent to the member."""
        self._pending: PendingRequest | None = None
        self._timer: Timer | None = None
        self._is_namesake = False
        """Whether an answer of the member has shown the same `server.node_name` as this member's."""
        self._is_late = False
        """Whether the latest probe was not answered in time."""
        self._is_leaving = False
        """Whether the latest answer to a probe states that the member is leaving."""
        self.answers = False
        """Whether the member has answered the latest probe."""
        self._instance = ""
        """The process that has sent the latest answer."""
        self._is_doubted = False
        """Whether a request has failed since the latest answer to a probe."""
        self._vouched_at = -inf
        """The time of the probe answer that followed a failed request.  -inf once a request has been answered."""
        self._reached_at = self._held_until = -inf
        self._lost_by = ""
        """The reason for the latest hold-off."""
        self._hold_s = _LEAST_HOLD_S

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.why_not or 'reached'}>"

    @property
    def weight(self) -> float:
        """The fraction of its streams that the member gets while it is reachable."""
        return self._fleet.owners.weight(self._index)

    @property
    def share(self) -> float:
        """The fraction of its streams that the member gets now; 0 if the member is not asked for streams."""
        return 0.0 if self.why_not else self.weight

    @property
    def workers(self) -> int:
        """The number of serving workers that the member has stated in its latest answer; 0 without an answer."""
        return self._fleet.owners.workers_of(self._index)

    def url_of(self, worker: int) -> str:
        """Return the URL of one of the member's workers (`MemberDialer`)."""
        if self._fleet.owners.is_only_worker(self._index, worker):
            return self.url
        return f"http://{worker}@{self.url.removeprefix('http://')}"

    def probe(self) -> None:
        """Ask the member for its state.  Further probes follow until `stop`."""
        fleet = self._fleet
        self._timer = None
        headers = CIMultiDict({FLEET: fleet.field_for().rendered()})
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
        """End the probes for good, because the member has left the list.

        If its latest probe timed out, all responses in progress from the member are ended, because no later probe would
        show that it hangs.
        """
        self.stop()
        self.why_not = _GONE
        if self._is_late:
            self._fleet.on_silent(self._index)

    def judge(self, why_not: str, *, differs: bool = False) -> None:
        """Record why the member is not asked for streams; `why_not` is empty if the member is asked.  Log a change.

        `differs` states whether the operator has to change something.
        """
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
        """Give the member a greater fraction of its streams than before, unless its hold-off lasts."""
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
        """Record that the member has answered a request."""
        self._vouched_at = -inf

    def doubt(self) -> None:
        """Record that a request has failed.

        A probe is sent at once, and its result decides whether the member is lost.
        If a probe was answered after an earlier failure, less than `_STEADY_S` ago, the next failed request loses the
        member, unless this request may have been sent before that probe.
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
        """Record that requests or a probe have failed, and begin a hold-off."""
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
            # A leaving process may still answer after the next process has started.  Ignore its statements.
            self._fleet.processes.identify(self.name, answer.instance)
            self._fleet.owners.set_workers(self._index, answer.workers)
        if reply.status == NOT_LISTED:
            # Responses that the member has already begun continue.
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
            # The earlier process has ended.  If its machine has failed, the connections to it are still open here.
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
            # The member may only be busy.  Probe it once more before its streams get other owners and its responses in
            # progress are ended.
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
            # A leaving member finally refuses new connections, but completes its responses in progress.
            self._fleet.on_silent(self._index)
        self._go_on()

    def _go_on(self) -> None:
        self._pending = None
        self._fleet.member_answered()
        self._timer = self._fleet.later(self.probe)
