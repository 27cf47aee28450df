"""What clients use: the counts equal those of a model, and nothing is kept of a net that uses nothing."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.limits.usage import NetUse, Tally, Usage

NETS = st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::/64"])


class Counting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.usage = Usage()
        self.tally = Tally()
        self.connections: list[NetUse] = []
        self.reads: list[NetUse] = []
        self.tallied: list[str] = []

    @rule(net=NETS)
    def connects(self, net: str) -> None:
        self.connections.append(self.usage.connect(net))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def disconnects(self, data: st.DataObject) -> None:
        self.usage.disconnect(self.connections.pop(data.draw(st.integers(0, len(self.connections) - 1))))

    @rule(net=NETS)
    def begins_a_live_read(self, net: str) -> None:
        self.reads.append(self.usage.begin_live(net))

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def ends_a_live_read(self, data: st.DataObject) -> None:
        self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1))).end_live(100)

    @rule(net=NETS)
    def is_tallied(self, net: str) -> None:
        self.tally.add(net)
        self.tallied.append(net)

    @precondition(lambda self: self.tallied)
    @rule()
    def is_no_longer_tallied(self) -> None:
        self.tally.remove(self.tallied.pop())

    @invariant()
    def counts_equal_the_model(self) -> None:
        connections = Counter(use.net for use in self.connections)
        reads = Counter(use.net for use in self.reads)
        for net in ("192.0.2.1", "192.0.2.2", "2001:db8::/64"):
            assert self.usage.connections(net) == connections[net]
            assert self.usage.live_reads(net) == reads[net]
            assert self.tally[net] == self.tallied.count(net)
        assert self.usage.most_connections == max(connections.values(), default=0)
        assert len(self.usage) == len({*connections, *reads})
        assert len(self.tally) == len(set(self.tallied))


TestCounting = Counting.TestCase
