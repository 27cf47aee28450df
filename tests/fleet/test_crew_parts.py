"""The parts by which the workers of a member act as one gateway for the other members."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.cli.supervisor.upgrade import Predecessor
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_orders import OrderSender
from gateway.engine.fleet_upstream import FleetHop
from gateway.engine.fleet_writes import CountedWrites, RecordedWrites, WritesOfWorker
from gateway.engine.owner_upstream import HopUpstream
from gateway.engine.relayed_request import SentRequest
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.fleet_headers import FLEET, MemberField
from gateway.protocol.member_session import MemberKey, wanted_worker
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.server.fleet import MemberHopHandler
from gateway.server.hop import HopHandler
from gateway.upstream.client import HopClient
from gateway.upstream.connection_pool import UNBOUNDED, ConnectionPool
from gateway.upstream.dialer import MemberDialer
from gateway.upstream.failures import NotConnected
from gateway.upstream.incoming import Intake
from gateway.upstream.origin_call import Bounds, Handed, OriginCall, Shared, endpoint_of
from gateway.upstream.reply import Reply, Requester, Upstream
from gateway.workers.member_owners import MemberOwners, cell_key
from gateway.workers.shared_memory import HASHES, SharedMemory, SlotState
from gateway.workers.worker_owners import Owners
from gateway.workers.write_counts import WriteCounts
from gateway.workers.write_log import WriteLog
from tests.fleet.test_sessions import A, B
from tests.workers.test_hop import SAME, Reader, Side
from tests.workers.test_hop import Reply as HopReply

SECRET = b"0" * 32
KEY = StreamKey(Group("http://origin", "/s"), "", Partition("default"))
FIELD = MemberField("a", "1" * 16, "2" * 16, "e" * 16, worker=1, process="3" * 16)


class FixedOwners:
    """Every stream has the same owner, which the test changes."""

    def __init__(self) -> None:
        self.epoch = 0
        self.owner: int | None = None

    def other_owner(self, cell: int) -> int | None:
        return self.owner

    def set(self, owner: int | None) -> None:
        self.owner = owner
        self.epoch += 1


class Looks:
    """The writes of other workers, of which there are none.  Counts how often they are looked for."""

    def __init__(self) -> None:
        self.count = 0

    def index_of(self, group: Group) -> int:
        return 0

    def look(self, group: Group) -> None:
        self.count += 1


class TwoHops:
    """A worker of a member: the way to the other workers, and behind it the way to the other members."""

    def __init__(self) -> None:
        self.clock, self.reader = ManualClock(), Reader()
        self.workers, self.members = FixedOwners(), FixedOwners()
        self.at_workers, self.at_members, self.at_origin = Side(), Side(), Side()
        self.looks = Looks()
        beyond = HopUpstream(
            cast(Upstream, self.at_origin), cast(HopClient, self.at_members), Looks(), self.members, self.clock
        )
        beyond.unsettled_s = 0.0
        fleet = cast(Fleet, SimpleNamespace(field=FIELD))
        self.hop = FleetHop(beyond, cast(HopClient, self.at_workers), self.looks, self.workers, self.clock, fleet)

    def ask(self, handed: Handed = Handed.NO) -> str:
        """Where a live request goes."""
        headers = RenderedHeaders.of(CIMultiDict({"Via": "1.1 edge"}))
        call = OriginCall("GET", "route://default/s", headers, Bounds(), shared=Shared(KEY, handed))
        sides = {"workers": self.at_workers, "members": self.at_members, "origin": self.at_origin}
        before = {name: len(side.asked) for name, side in sides.items()}
        self.hop.ask(cast(Requester, self.reader), call._replace(is_live=True))
        (found,) = [name for name, side in sides.items() if len(side.asked) > before[name]]
        return found


def test_a_request_goes_to_the_owner_among_the_workers_then_among_the_members() -> None:
    hops = TwoHops()
    hops.members.set(3)
    assert (hops.ask(), hops.hop.is_owner(KEY)) == ("members", False)
    hops.workers.set(1)
    assert (hops.ask(), hops.hop.is_owner(KEY)) == ("workers", False)
    hops.workers.set(None)
    hops.members.set(None)
    assert (hops.ask(), hops.hop.is_owner(KEY)) == ("origin", True)


def test_a_request_of_a_worker_goes_to_another_member_and_one_of_a_member_to_the_origin() -> None:
    hops = TwoHops()
    hops.members.set(3)
    hops.workers.set(1)
    # The other worker may have a view of before, and regards this one as the owner.
    assert [hops.ask(Handed.BY_WORKER), hops.ask(Handed.BY_MEMBER)] == ["members", "origin"]
    hops.clock.advance(5)
    assert [hops.ask(Handed.BY_WORKER), hops.ask(Handed.BY_MEMBER)] == ["workers", "origin"]


@pytest.mark.parametrize("changed", ["workers", "members"])
def test_a_live_request_is_misplaced_when_its_owner_on_either_way_has_changed(changed: str) -> None:
    hops = TwoHops()
    hops.members.set(3)
    hops.ask()
    assert (hops.hop.is_misplaced(KEY), hops.hop.follows_elsewhere(KEY)) == (False, True)
    getattr(hops, changed).set(2)
    assert hops.hop.is_misplaced(KEY)
    hops.ask()
    # The earlier live request to a member does not count once another worker is asked.
    hops.members.set(7 if changed == "workers" else 2)
    assert not hops.hop.is_misplaced(KEY)


def test_a_reader_hears_the_statement_of_another_member_after_the_writes_of_other_workers_are_applied() -> None:
    hops = TwoHops()
    hops.members.set(3)
    hops.ask()
    looks: list[int] = []
    hops.reader.told = lambda said: looks.append(hops.looks.count)  # type: ignore[method-assign]
    (asked,), before = hops.at_members.asked, hops.looks.count
    asked.requester.head_arrived(cast(Any, HopReply.of(SAME.rendered())))
    assert (looks, len(hops.reader.replies)) == ([before + 1], 1)


def test_each_request_to_another_worker_shows_the_orders_that_this_one_knows() -> None:
    hops = TwoHops()
    hops.workers.set(1)
    hops.ask()
    assert MemberField.parse(hops.at_workers.asked[0].call.headers[FLEET]) == FIELD


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_worker_carries_out_the_orders_of_the_asking_one_before_it_answers(
    is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    async def caught_up(sender: OrderSender) -> bool:
        steps.append(sender)
        return True

    orders = SimpleNamespace(is_behind=lambda peer, digest: is_behind, caught_up=caught_up)
    handler = MemberHopHandler.__new__(MemberHopHandler)
    handler._engine = cast(Any, SimpleNamespace(fleet=SimpleNamespace(orders=orders)))
    monkeypatch.setattr(HopHandler, "_begin", lambda *_: steps.append("answer"))
    request = SimpleNamespace(headers=CIMultiDict({FLEET: FIELD.rendered()}))
    found = handler._begin(cast(Any, SimpleNamespace(request=request)))
    if found is not None:
        await cast(Any, found)
    sender = OrderSender("a/1", "3" * 16, "e" * 16)
    assert steps == ([sender, "answer"] if is_behind else ["answer"])


@given(path=st.text(max_size=12), serving=st.sets(st.integers(0, 4), min_size=1), other=st.integers(1, 5))
def test_other_members_find_the_worker_that_owns_a_stream_in_its_member(
    path: str, serving: set[int], other: int
) -> None:
    shared = SharedMemory.create(5, cell_key(SECRET))
    for slot in range(5):
        shared.set_slot(slot, SlotState.SERVING if slot in serving else SlotState.DEAD, 1, 1)
    members = MemberOwners(["a", "b", "c"], 0, SECRET)
    members.set_workers(1, shared.owning())
    members.set_workers(2, tuple(range(other)))
    cell, found = members.cell_of("http://origin", path), 0
    for slot in serving:
        view = Owners(shared, slot)
        assert view.cell_of("http://origin", path) == cell
        if view.other_owner(cell) is None:
            found += 1
            assert members.owning_worker(1, cell) == slot
    assert found == 1
    assert members.owning_worker(2, cell) < other
    # A member that has named none is one process.
    members.remove(1)
    assert members.owning_worker(1, cell) == 0


def test_the_streams_of_a_worker_that_serves_no_more_go_to_the_others_of_its_member() -> None:
    members, epochs = MemberOwners(["a", "b"], 0, SECRET), []
    found: list[set[int]] = []
    for workers in ((0, 1), (0, 1), (1,), (0, 1)):
        members.set_workers(1, workers)
        epochs.append(members.epoch)
        found.append({members.owning_worker(1, cell) for cell in range(50)})
    assert found == [{0, 1}, {0, 1}, {1}, {0, 1}]
    assert [later - epoch for epoch, later in pairwise(epochs)] == [0, 1, 1]


def test_a_gateway_counts_the_writes_of_all_workers_of_both_versions() -> None:
    shared = SharedMemory.create(2)
    one, two = WriteCounts(shared, 0), WriteCounts(shared, 1)
    one.add(7, is_append=True)
    two.add(7, is_append=True)
    two.add(7, is_append=False)
    two.add(8, is_append=True)
    shared.set_slot(0, SlotState.SERVING, 1, 1)
    shared.set_slot(1, SlotState.SERVING, 1, 1)
    later = SharedMemory.attach(shared.descriptor, 2)
    assert later is not None
    assert later.name == shared.name
    WriteCounts(later, 0).add(7, is_append=True)
    assert [one.of(cell) for cell in (6, 7, 8)] == [(0, 0, 0), (3, 1, 0), (1, 0, 0)]
    assert SharedMemory.attach(shared.descriptor, 2, b"another key 1234") is None


def test_the_appends_of_all_workers_of_both_versions_are_numbered_together() -> None:
    shared = SharedMemory.create(2)
    shared.set_slot(0, SlotState.SERVING, 1, 1)
    shared.set_slot(1, SlotState.SERVING, 1, 1)
    later = SharedMemory.attach(shared.descriptor, 2)
    assert later is not None
    one, two, three = WriteCounts(shared, 0), WriteCounts(shared, 1), WriteCounts(later, 0)
    for counts, cell in ((one, 7), (two, 8), (three, HASHES - 1), (one, 8), (two, 7)):
        counts.number(cell)
    assert [two.of(cell)[2] for cell in (6, 7, 8, HASHES - 1)] == [0, 5, 4, 3]
    assert [counts.appended() for counts in (one, two, three)] == [5, 5, 5]
    assert not any(shared.words[shared.removals_at >> 3 :]), "the next table"


@pytest.mark.parametrize(("key", "is_same"), [(None, True), (b"the key of cells", True), (b"another key 1234", False)])
def test_the_next_version_has_the_memory_of_the_previous_one_unless_the_secret_has_changed(
    key: bytes | None, is_same: bool
) -> None:
    shared = SharedMemory.create(2, b"the key of cells")
    predecessor = Predecessor.__new__(Predecessor)
    predecessor._memory, predecessor._places = os.dup(shared.descriptor), [0, 2]
    found = predecessor.shared_memory(2, key)
    assert (found.name == shared.name, found.counts_writes) == (is_same, key is not None)


@pytest.mark.parametrize("is_member", [False, True])
def test_writes_under_way_at_a_dead_worker_count_in_a_fleet(is_member: bool) -> None:
    shared = SharedMemory.create(2)
    shared.counts_writes = is_member
    log = WriteLog(shared, 0, lambda: 1.0)
    log.begin(7, b"under way")
    log.begin(8, b"answered")
    log.end(8, b"answered")
    WriteLog(shared, 1, lambda: 2.0).settle(0)
    assert [WriteCounts(shared, 1).of(cell) for cell in (7, 8)] == [(0, int(is_member), 0), (0, 0, 0)]


@pytest.mark.parametrize("end", ["answered", "unanswered"])
def test_a_write_is_counted_for_other_members_before_other_workers_learn_of_it(end: str) -> None:
    steps: list[str] = []

    def recorder(name: str) -> Any:
        def note(*_: object, **__: object) -> None:
            steps.append(name)

        return SimpleNamespace(look=note, begun=note, answered=note, unanswered=note)

    both = WritesOfWorker(cast(CountedWrites, recorder("counts")), cast(RecordedWrites, recorder("others")))
    if end == "answered":
        both.answered(cast(SentRequest, None), cast(Reply, None))
    else:
        both.unanswered(cast(SentRequest, None), may_be_done=True)
    assert steps == ["counts", "others"]


def test_a_greeting_names_the_worker_that_is_to_answer() -> None:
    assert [wanted_worker(A.greeting(worker)) for worker in (None, 0, 12)] == [None, 0, 12]
    assert wanted_worker(b"GET / HTTP/1.1\r\n") is None
    greeting = A.greeting(3)
    answered = B.answered(greeting, 5)
    assert answered is not None
    assert A.session(greeting, answered[0], "b").worker == 5


async def _dial(answer: Callable[[bytes], bytes], worker: str) -> None:
    """Connect to a member that gives this answer to a greeting."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readline()))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        tasks, pool = Tasks(), ConnectionPool(UNBOUNDED, Intake())
        dialer = MemberDialer(tasks, A, {endpoint_of(f"http://127.0.0.1:{port}"): "b"}, 2)
        try:
            (await dialer.dial(endpoint_of(f"http://{worker}127.0.0.1:{port}"), pool, 20.0)).drop()
        finally:
            pool.close()
            await tasks.close()


def _answer_of(key: MemberKey, worker: int) -> Callable[[bytes], bytes]:
    def answer(greeting: bytes) -> bytes:
        answered = key.answered(greeting, worker)
        assert answered is not None
        return answered[0]

    return answer


async def test_an_answer_of_another_worker_than_the_named_one_is_no_answer() -> None:
    await _dial(_answer_of(B, 1), "1@")
    await _dial(_answer_of(B, 1), "")
    with pytest.raises(NotConnected, match="worker 0 does not serve"):
        await _dial(_answer_of(B, 1), "0@")
