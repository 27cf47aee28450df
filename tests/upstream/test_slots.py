"""Slots under any sequence of events: no share is exceeded, no slot is lost, and no request waits without a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.upstream.failures import NoSlot
from gateway.upstream.origin_call import Endpoint, endpoint_of
from gateway.upstream.slots import Lane, Purpose, SlotLimits, Slots, Waiting, three_quarters
from tests.effort import examples

SLOTS, CLIENT_REQUESTS, MOST_WAITING = 8, 3, 24
HOSTS = [endpoint_of(f"http://{name}.test") for name in "ab"]
CLIENTS = ["", "x", "y", "z"]
PICK = st.integers(0, 1_000)
COMING = st.tuples(PICK, PICK, PICK, PICK)


@dataclass(eq=False)
class Request:
    """One request: its origin, its client, and the slot it holds."""

    host: Endpoint
    route: str
    purpose: Purpose
    is_upload: bool
    lane: Lane
    paid_by: str | None = None
    waiting: Waiting | None = None
    clients: set[str] = field(default_factory=set)


class SlotsMachine(RuleBasedStateMachine):
    """Requests come, wait, get slots, and end."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(SlotLimits(SLOTS, CLIENT_REQUESTS, MOST_WAITING))
        self.hosts = self.routes = 1
        self.taking: list[Request] = []
        self.waiting: list[Request] = []

    @rule(
        picks=st.lists(st.tuples(PICK, PICK, PICK, PICK), min_size=1, max_size=9),
        second=st.none() | st.sampled_from(CLIENTS),
    )
    def come(self, picks: list[tuple[int, int, int, int]], second: str | None) -> None:
        for pick in picks:
            self.come_one(pick, second)

    def come_one(self, pick: tuple[int, int, int, int], second: str | None) -> None:
        host, route = HOSTS[pick[0] % self.hosts], f"route {pick[1] % self.routes}"
        purpose, is_upload = [(Purpose.READ, False), (Purpose.WRITE, False), (Purpose.WRITE, True)][pick[2] % 3]
        client = CLIENTS[pick[3] % len(CLIENTS)]
        lane = self.slots.lane(host, route, purpose, is_upload=is_upload)
        request = Request(host, route, purpose, is_upload, lane)
        if self.slots.take_slot(lane, client):
            request.paid_by = client
            self.taking.append(request)
            return
        request.clients = {client} if second is None else {client, second}
        try:
            request.waiting = self.slots.wait(lane, sorted(request.clients), lambda: self.granted(request))
        except NoSlot:
            return
        if request.paid_by is None and request.waiting.paid_by is None:
            self.waiting.append(request)
        else:
            self.granted(request)

    def granted(self, request: Request) -> None:
        if request.waiting is not None and request.waiting.paid_by is not None and request.paid_by is None:
            request.paid_by = request.waiting.paid_by
            assert request.paid_by in request.clients
            if request in self.waiting:
                self.waiting.remove(request)
            self.taking.append(request)

    @precondition(lambda self: self.taking)
    @rule(picks=st.lists(PICK, min_size=1, max_size=6))
    def end(self, picks: list[int]) -> None:
        for pick in picks:
            if self.taking:
                request = self.taking.pop(pick % len(self.taking))
                assert request.paid_by is not None
                self.slots.release_slot(request.lane, request.paid_by)
                self.no_request_waits_without_a_reason()

    @precondition(lambda self: any(request.is_upload for request in self.taking))
    @rule(pick=PICK)
    def send_the_body(self, pick: int) -> None:
        uploads = [request for request in self.taking if request.is_upload]
        request = uploads[pick % len(uploads)]
        request.is_upload = False
        request.lane = self.slots.upload_done(request.lane)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        request = self.waiting.pop(pick % len(self.waiting))
        assert request.waiting is not None
        self.slots.cancel_wait(request.waiting)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, client=st.sampled_from(CLIENTS))
    def join(self, pick: int, client: str) -> None:
        request = self.waiting[pick % len(self.waiting)]
        assert request.waiting is not None
        request.clients.add(client)
        self.slots.add_client(request.waiting, client)

    @rule(hosts=st.integers(1, 2), routes=st.integers(1, 2))
    def configure(self, hosts: int, routes: int) -> None:
        # Requests to hosts and routes that are gone end as they began.
        self.hosts, self.routes = hosts, routes
        self.slots.share_among(hosts, routes)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        assert self.slots.taken == len(self.taking) <= SLOTS
        assert self.slots.waiting == len(self.waiting) <= MOST_WAITING
        use = self.slots.snapshot()
        for purpose in (Purpose.READ, Purpose.WRITE):
            of_purpose = [request for request in self.taking if request.purpose is purpose]
            assert use.taken[purpose] == len(of_purpose) <= three_quarters(SLOTS)
            assert use.waiting[purpose] == sum(request.purpose is purpose for request in self.waiting)
        uploads = sum(request.is_upload for request in self.taking)
        assert uploads <= three_quarters(three_quarters(SLOTS))

    @invariant()
    def no_client_has_more_than_its_part(self) -> None:
        taken = Counter(request.paid_by for request in self.taking if request.paid_by)
        at_host = Counter((request.paid_by, request.host) for request in self.taking if request.paid_by)
        assert max(taken.values(), default=0) <= SLOTS // 2
        assert max(at_host.values(), default=0) <= CLIENT_REQUESTS

    @invariant()
    def no_request_waits_without_a_reason(self) -> None:
        """It would have got a slot if there had been one for any client that it waits under."""
        for request in self.waiting:
            assert request.waiting is not None
            assert not any(self.slots.take_slot(request.lane, client) for client in request.waiting.clients)

    def teardown(self) -> None:
        for request in self.waiting:
            assert request.waiting is not None
            self.slots.cancel_wait(request.waiting)
        for request in self.taking:
            assert request.paid_by is not None
            self.slots.release_slot(request.lane, request.paid_by)
        assert (self.slots.taken, self.slots.waiting) == (0, 0)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=examples(40, 300), stateful_step_count=40, deadline=None)
