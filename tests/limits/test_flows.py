"""Who is served next: each client in proportion to what it costs, one that has just come before those that wait."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.queues import Flows

CLIENTS = st.integers(0, 5)
STEPS = st.lists(st.one_of(CLIENTS, st.none()), max_size=200)


@given(STEPS)
def test_each_item_comes_out_once_and_in_its_clients_order(steps: list[int | None]) -> None:
    flows: Flows[int, int] = Flows(1.0)
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)
    for item, client in enumerate([*steps, *[None] * len(steps)]):
        if client is not None:
            flows.push(client, item)
            waiting[client].append(item)
        elif any(waiting.values()):
            taken, found = flows.pop()
            assert found == waiting[taken].popleft()
            flows.charge(taken, 0.7)
        else:
            with pytest.raises(KeyError):
                flows.pop()
        assert len(flows) == sum(map(len, waiting.values()))
        assert [flows.has(one) for one in range(6)] == [bool(waiting[one]) for one in range(6)]
    assert not flows


@given(st.lists(st.floats(0.1, 20), min_size=2, max_size=6))
def test_clients_that_always_wait_get_the_same_time(costs: list[float]) -> None:
    flows: Flows[int, None] = Flows(1.0)
    spent: Counter[int] = Counter()
    for client in range(len(costs)):
        for _ in range(2):
            flows.push(client, None)
    for _ in range(2_000):
        client, _ = flows.pop()
        spent[client] += costs[client]  # type: ignore[assignment]
        flows.charge(client, costs[client])
        flows.push(client, None)
    least, most = min(spent[one] for one in range(len(costs))), max(spent.values())
    assert most - least <= 2 * max(costs) + 1.0


def test_rounds_in_which_no_client_may_be_served_pass_at_once() -> None:
    visits = 0

    class Noting(Flows[int, None]):
        def _retire(self, *flow: Any) -> None:
            nonlocal visits
            visits += 1
            super()._retire(*flow)

    flows = Noting(1.0)
    for client in range(4):
        for _ in range(30):
            flows.push(client, None)
    served = []
    for _ in range(100):
        client, _ = flows.pop()
        served.append(client)
        flows.charge(client, 60.0)
    assert served[20:] == served[16:96], "they are served in turn"
    assert visits < 3 * 100, "a client waits for 60 rounds, which are not counted one by one"


def test_one_that_has_just_come_is_served_before_all_that_wait() -> None:
    flows: Flows[str, int] = Flows(1.0)
    for n in range(100):
        flows.push("flood", n)
        flows.push("other flood", n)
    for _ in range(10):
        flows.charge(flows.pop()[0], 5.0)
    flows.push("reader", 0)
    assert flows.pop() == ("reader", 0)


def test_floods_that_have_just_come_do_not_stand_before_one_with_a_single_item() -> None:
    flows: Flows[str, int] = Flows(1.0)
    for n in range(3):
        for flood in range(40):
            flows.push(f"flood {flood}", n)
    flows.push("reader", 0)
    assert flows.pop() == ("reader", 0)
    # The others have lost no turn by that.
    assert [flows.pop() for _ in range(3)] == [("flood 0", n) for n in range(3)]


def test_new_clients_without_end_do_not_keep_one_waiting_that_has_two_items() -> None:
    flows: Flows[str, int] = Flows(1.0)
    flows.push("reader", 0)
    flows.push("reader", 1)
    order = []
    for n in range(40):
        flows.push(f"new {n}", n)
        client, _ = flows.pop()
        flows.charge(client, 1.5)
        order.append(client)
    assert order.count("reader") == 2


def test_one_that_comes_back_at_once_has_to_wait_like_the_others() -> None:
    flows: Flows[str, int] = Flows(1.0)
    for n in range(100):
        flows.push("flood", n)
    flows.charge(flows.pop()[0], 1.0)
    order = []
    for n in range(10):
        flows.push("eager", n)
        client, _ = flows.pop()
        flows.charge(client, 1.0)
        order.append(client)
    assert order.count("flood") >= 4


def test_a_debt_is_waited_for_but_not_for_ever() -> None:
    flows: Flows[str, int] = Flows(1.0)
    for n in range(200):
        flows.push("costly", n)
        flows.push("cheap", n)
    flows.charge("costly", 1e9)
    order = []
    for _ in range(200):
        client, _ = flows.pop()
        flows.charge(client, 1.0)
        order.append(client)
    assert 60 < order.index("costly") < 70
    assert "costly" in order[80:]


def test_few_clients_are_kept_that_have_nothing_waiting() -> None:
    flows: Flows[int, int] = Flows(1.0)
    flows.push(-1, 0)
    flows.push(-1, 0)
    for n in range(10_000):
        flows.push(n, n)
        client, _ = flows.pop()
        flows.charge(client, 0.1)
    assert len(flows) == 2
    kept = int(repr(flows).removesuffix(" old clients>").rpartition(" ")[2])
    assert kept <= 4_097
    while flows:
        flows.pop()
    flows.push(0, 0)
    assert repr(flows) == "<Flows 1 items of 1 new and 0 old clients>"


def test_a_client_alone_pays_for_all_its_rounds_at_once() -> None:
    flows: Flows[str, int] = Flows(1.0)
    for item in range(4):
        flows.push("alone", item)
    assert flows.pop() == ("alone", 0)
    flows.charge("alone", 40.5)
    assert flows.pop() == ("alone", 1)
    flows.charge("alone", 0.4)
    flows.push("new", 0)
    assert flows.pop() == ("new", 0), "one that has just come goes first"
    assert flows.pop() == ("alone", 2), "it has used no more than its round"
    flows.charge("alone", 0.4)
    flows.push("other", 0)
    flows.push("other", 1)
    assert [flows.pop() for _ in range(3)] == [("other", 0), ("other", 1), ("alone", 3)]
