from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.capacity.model import (
    Demand,
    Fleet,
    Load,
    Machine,
    least_fleet,
    most_owned,
    spread,
    wire_bytes,
)
from tests.loadtest.capacity.plain import COSTS, MIB

ONE_CORE = Machine(cores=1, usable=1.0)


def load(demand: Demand, fleet: Fleet) -> Load:
    return Load(COSTS, demand, fleet)


# -- spreading ---------------------------------------------------------------------------------------------------------


def test_readers_at_random_places_leave_some_places_without_a_reader() -> None:
    assert spread(2, 2) == pytest.approx(1.5)
    assert spread(10, 16) == pytest.approx(16 * (1 - (15 / 16) ** 10))
    assert spread(1, 100) == pytest.approx(1)
    assert spread(1e6, 8) == pytest.approx(8)
    assert spread(5, 1) == 1


def test_the_fullest_place_owns_more_than_the_mean_and_never_more_than_all() -> None:
    assert most_owned(1, 100) == 1
    assert most_owned(7, 1) == 7
    assert most_owned(10_000, 100) == pytest.approx(100 + 2 * math.sqrt(99))
    assert most_owned(3, 2) == 3


def test_a_message_has_headers_for_each_of_its_packets() -> None:
    assert wire_bytes(1_448) == 1_538
    assert wire_bytes(1_449) == 1_629


# -- a demand ----------------------------------------------------------------------------------------------------------


def test_sse_readers_come_back_when_their_lifetime_is_over() -> None:
    assert Demand(5_400, 1, 1).joins_per_s == pytest.approx(100)


def test_long_polls_are_answered_at_each_event_but_at_least_at_each_time_out() -> None:
    often = Demand(100, 1, 1.0, long_poll_share=1, round_trip_s=0)
    assert often.polls_per_s == pytest.approx(100, rel=1e-6)
    assert replace(often, events_per_s=0).polls_per_s == pytest.approx(4)
    assert replace(often, events_per_s=1e6, round_trip_s=0.1).polls_per_s == pytest.approx(1_000, rel=0.01)


def test_heartbeats_are_sent_only_while_a_stream_is_idle() -> None:
    assert Demand(150, 1, 0).heartbeats_per_s == pytest.approx(10)
    assert Demand(150, 1, 1).heartbeats_per_s == pytest.approx(150 / (math.exp(15) - 1))


# -- resources ---------------------------------------------------------------------------------------------------------


def test_one_process_without_a_fleet_has_no_hops() -> None:
    alone = load(Demand(1_000, 10, 2), Fleet(1, ONE_CORE))
    assert alone.hops_of_process == alone.owner_hops == 0
    parts = alone.processor().parts
    assert parts["hops"] == 0
    assert parts["deliveries"] == pytest.approx(1_000 * 2 * 8e-6)
    assert parts["joins"] == pytest.approx(1_000 / 54 * 100e-6)
    assert parts["streams"] == pytest.approx(10 * (2 * 60e-6 + 400e-6 / 54))
    assert alone.sent().parts["members"] == alone.received().parts["members"] == 0


def test_the_owner_of_one_stream_hands_each_event_to_each_other_member() -> None:
    many = load(Demand(1_000_000, 1, 1), Fleet(4, ONE_CORE))
    assert many.hops_between == many.hops_over_network == pytest.approx(3)
    assert many.received().parts["origin"] == pytest.approx(8 * wire_bytes(200 + 130))
    assert many.sent().parts["members"] == pytest.approx(3 * 8 * wire_bytes(200 + 130))
    assert many.origin().used == 1


def test_with_workers_an_event_crosses_the_network_once_for_each_machine() -> None:
    demand, machine = Demand(1_000_000, 1, 1), Machine(cores=8)
    members, workers = (load(demand, Fleet(4, machine, has_workers=has)) for has in (False, True))
    assert members.hops_over_network == pytest.approx(24)
    assert workers.hops_over_network == pytest.approx(3)
    assert workers.hops_inside == pytest.approx(28)
    assert members.hops_of_process == pytest.approx(workers.hops_of_process)
    assert workers.owner_hops == pytest.approx(3 + 7)


def test_a_balancer_that_chooses_by_the_stream_saves_hops_and_loads_members_unevenly() -> None:
    demand, any_member = Demand(100_000, 10_000, 1), Fleet(10, Machine(cores=8), has_workers=True)
    at_random, by_stream = load(demand, any_member), load(demand, replace(any_member, is_by_stream=True))
    assert by_stream.hops_between == pytest.approx(0.9)
    assert at_random.hops_between == pytest.approx(0.9 * spread(10, 10))
    assert by_stream.processor().parts["hops"] < at_random.processor().parts["hops"]
    assert by_stream.connections().used == pytest.approx(10 * most_owned(10_000, 10))


def test_one_stream_is_at_one_member_if_the_balancer_chooses_by_the_stream() -> None:
    demand = Demand(1_000_000, 1, 0.01)
    uses = [load(demand, Fleet(machines, is_by_stream=True)).connections().used for machines in (1, 9)]
    assert uses == [1_000_000, 1_000_000]


def test_memory_has_the_kernels_share_of_each_connection() -> None:
    parts = load(Demand(10_000, 1, 1, long_poll_share=0.5), Fleet(2, ONE_CORE)).memory().parts
    assert parts["readers"] == pytest.approx(2_500 * 2_500 + 2_500 * 1_700)
    assert parts["readers' sockets"] == pytest.approx(5_000 * 4_000)
    assert parts["processes"] == 60 * MIB
    assert parts["cached bytes"] == 256 * MIB


def test_a_default_that_is_too_low_is_named_and_does_not_break_the_fleet() -> None:
    full = load(Demand(100_000, 1, 0.01), Fleet(1, Machine(cores=2)))
    assert [use.resource for use in full.raised()] == ["max_connections"]
    assert full.suffices()


def test_many_streams_use_up_the_ports_to_an_origin_with_one_address() -> None:
    raised = [use.resource for use in load(Demand(100_000, 100_000, 0.01), Fleet(2)).raised()]
    assert {"ports to the origin", "followed_streams"} <= set(raised)


def test_an_origin_that_holds_too_few_live_requests_breaks_any_fleet() -> None:
    demand, fleet = Demand(10_000, 1_000, 0.1), Fleet(1, origin_live_requests=999)
    assert least_fleet(COSTS, demand, fleet) is None
    assert least_fleet(COSTS, demand, replace(fleet, origin_live_requests=1_000)) is not None


def test_a_fleet_of_one_process_a_member_ends_at_64_members() -> None:
    demand = Demand(10_000_000, 1, 1)
    assert least_fleet(COSTS, demand, Fleet(1, Machine(cores=8))) is None
    workers = least_fleet(COSTS, demand, Fleet(1, Machine(cores=8), has_workers=True))
    assert workers is not None
    assert workers.fleet.machines > 8


# -- properties --------------------------------------------------------------------------------------------------------

rates = st.floats(0, 100)
demands = st.builds(
    Demand,
    readers=st.integers(1, 3_000_000),
    streams=st.integers(1, 200_000),
    events_per_s=rates,
    event_bytes=st.integers(1, 20_000),
    long_poll_share=st.floats(0, 1),
    sse_lifetime_s=st.floats(1, 3_600),
)
fleets = st.builds(
    Fleet,
    machines=st.integers(1, 100),
    machine=st.builds(Machine, cores=st.integers(1, 64)),
    has_workers=st.booleans(),
    is_by_stream=st.booleans(),
)
few = settings(max_examples=30, deadline=None)


@few
@given(demands, fleets)
def test_every_use_is_the_sum_of_parts_that_are_not_negative(demand: Demand, fleet: Fleet) -> None:
    for use in load(demand, fleet).uses():
        assert all(part >= 0 for part in use.parts.values())
        assert use.share == pytest.approx(sum(part / use.capacity for part in use.parts.values()))


@few
@given(demands, fleets, st.integers(1, 1_000_000))
def test_more_readers_use_no_less_of_any_resource(demand: Demand, fleet: Fleet, more: int) -> None:
    fewer = {use.resource: use.used for use in load(demand, fleet).uses()}
    for use in load(replace(demand, readers=demand.readers + more), fleet).uses():
        assert use.used >= fewer[use.resource] * (1 - 1e-9)


@settings(max_examples=8, deadline=None)
@given(demands, st.integers(1, 1_000_000), fleets)
def test_more_readers_never_need_fewer_machines(demand: Demand, more: int, fleet: Fleet) -> None:
    fewer = least_fleet(COSTS, demand, fleet)
    larger = least_fleet(COSTS, replace(demand, readers=demand.readers + more), fleet)
    if larger is not None:
        assert fewer is not None
        assert fewer.fleet.machines <= larger.fleet.machines


@few
@given(demands, fleets)
def test_one_machine_more_suffices_too_unless_owners_hand_events_to_too_many(demand: Demand, fleet: Fleet) -> None:
    now = load(demand, fleet)
    then = load(demand, replace(fleet, machines=fleet.machines + 1))
    if now.suffices() and not then.suffices():
        broken = then.hard_uses()[0]
        before = {use.resource: use for use in now.uses()}[broken.resource]
        grown = {name for name, part in broken.parts.items() if part > before.parts[name]}
        assert grown <= {"hops", "members"}
        assert grown


@few
@given(st.floats(1, 1e7), st.integers(1, 1_000))
def test_places_with_readers_are_neither_more_than_the_places_nor_than_the_readers(readers: float, places: int) -> None:
    found = spread(readers, places)
    assert 1 - 1e-9 <= found <= min(readers, places) * (1 + 1e-9)
