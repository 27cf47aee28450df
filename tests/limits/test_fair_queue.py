"""The fair queue against a plain model: lists of items, and a list of the clients in the order of their turns."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.limits.queues import FairQueue
from tests.effort import examples

CLIENTS = st.integers(0, 4)


class FairQueueMachine(RuleBasedStateMachine):
    """Does the same to a queue and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int, str] = FairQueue()
        self.items: dict[int, list[str]] = {client: [] for client in range(5)}
        self.turns: list[int] = []
        self.held: set[int] = set()
        self.count = 0

    @rule(client=CLIENTS)
    def push(self, client: int) -> None:
        self.count += 1
        item = f"item {self.count}"
        self.queue.push(client, item, is_held=client in self.held)
        self.items[client].append(item)
        if client not in self.turns and client not in self.held:
            self.turns.append(client)

    @precondition(lambda self: self.turns)
    @rule()
    def pop(self) -> None:
        client = self.turns.pop(0)
        assert self.queue.pop() == (client, self.items[client].pop(0))
        if self.items[client]:
            self.turns.append(client)

    @precondition(lambda self: not self.turns)
    @rule()
    def pop_nothing(self) -> None:
        with pytest.raises(KeyError):
            self.queue.pop()

    @rule(client=CLIENTS, at=st.integers(0, 20))
    def remove(self, client: int, at: int) -> None:
        items = self.items[client]
        item = items.pop(at) if at < len(items) else "unknown"
        self.queue.remove(client, item)
        if not items and client in self.turns:
            self.turns.remove(client)

    @rule(client=CLIENTS)
    def hold(self, client: int) -> None:
        self.queue.hold(client)
        self.held.add(client)
        if client in self.turns:
            self.turns.remove(client)

    @rule(client=CLIENTS)
    def let_go(self, client: int) -> None:
        self.queue.let_go(client)
        if client in self.held and self.items[client]:
            self.turns.append(client)
        self.held.discard(client)

    @invariant()
    def agrees(self) -> None:
        assert self.queue.has_next == bool(self.turns)
        assert bool(self.queue) == any(self.items.values())


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(max_examples=examples(30, 120), stateful_step_count=60, deadline=None)


def test_a_client_with_many_items_delays_another_by_one() -> None:
    queue: FairQueue[str, int] = FairQueue()
    for number in range(1_000):
        queue.push("many", number)
    queue.push("one", -1)
    assert [queue.pop() for _ in range(3)] == [("many", 0), ("one", -1), ("many", 1)]


def test_an_item_may_wait_under_several_clients() -> None:
    queue: FairQueue[str, str] = FairQueue()
    queue.push("a", "own")
    queue.push("a", "common")
    queue.push("b", "common")
    queue.hold("a")
    assert queue.pop() == ("b", "common")
    queue.remove("a", "common")
    queue.let_go("a")
    assert queue.pop() == ("a", "own")
    assert not queue
