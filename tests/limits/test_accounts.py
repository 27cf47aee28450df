"""Accounts of client networks: the counts equal those of a model, and only accounts that matter are kept."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.limits.accounts import MOST_UNUSED, UNKNOWN, Account, Accounts, client_nets
from gateway.limits.rate_limits import Bans, Rate

NETS = st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::/64"])
RATE = Rate(1, 10)


class Counting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.accounts = Accounts(client_nets(32, 64), lambda: self.now)
        self.connections: list[Account] = []
        self.reads: list[Account] = []
        self.owing: dict[str, float] = {}

    def of(self, net: str) -> Account:
        account = self.accounts.open_account(net)
        assert account is not None
        return account

    @rule(net=NETS)
    def connects(self, net: str) -> None:
        self.connections.append(self.of(net))
        self.accounts.connect(self.connections[-1])

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def disconnects(self, data: st.DataObject) -> None:
        self.accounts.disconnect(self.connections.pop(data.draw(st.integers(0, len(self.connections) - 1))))

    @rule(net=NETS)
    def begins_a_live_read(self, net: str) -> None:
        self.reads.append(self.of(net))
        self.reads[-1].begin_live()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def ends_a_live_read(self, data: st.DataObject) -> None:
        self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1))).end_live(100)

    @rule(net=NETS, seconds=st.integers(1, 10))
    def takes(self, net: str, seconds: int) -> None:
        RATE.take(self.of(net), self.now, seconds)
        self.owing[net] = max(self.now, self.owing.get(net, 0.0)) + seconds

    @rule(seconds=st.integers(1, 10))
    def advance(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def counts_equal_the_model(self) -> None:
        connections = Counter(account.net for account in self.connections)
        reads = Counter(account.net for account in self.reads)
        for net in ("192.0.2.1", "192.0.2.2", "2001:db8::/64"):
            account = self.accounts.find(net) or Account(net)
            assert (account.connections, account.live_reads) == (connections[net], reads[net])
            assert RATE.tokens_left(account, self.now) == 10 - max(0.0, self.owing.get(net, 0.0) - self.now)
        assert self.accounts.most_connections == max(connections.values(), default=0)
        kept = {account.net for account in self.accounts}
        assert {*connections, *reads} <= kept <= {*connections, *reads, *self.owing}


TestCounting = Counting.TestCase


def filled(accounts: Accounts, seconds: float) -> list[Account]:
    """As many accounts as may be unused, which owe what comes in so many seconds."""
    found = [account for n in range(MOST_UNUSED) if (account := accounts.open_account(f"{n}")) is not None]
    for account in found:
        RATE.take(account, 0.0, seconds)
    return found


def test_beyond_the_bound_the_oldest_settled_accounts_are_forgotten() -> None:
    accounts = Accounts(client_nets(32, 64), lambda: 5.0)
    found = filled(accounts, 4)
    found[0].begin_live()
    Bans(0.1).refused(found[1], 5.0)
    accounts.open_account("new")
    assert accounts.find("0") is found[0]
    assert accounts.find("1") is found[1]
    assert accounts.find("2") is None
    assert len(accounts) < MOST_UNUSED


def test_beyond_the_bound_the_account_that_owes_least_of_the_oldest_is_forgotten() -> None:
    accounts = Accounts(client_nets(32, 64), lambda: 0.0)
    found = filled(accounts, 9)
    RATE.take(found[0], 0.0, 30)
    RATE.take(found[1], 0.0, 20)
    for n in range(MOST_UNUSED - 1):
        RATE.take(accounts.open_account(f"new {n}") or found[0], 0.0, 8)
    assert len(accounts) == MOST_UNUSED
    assert accounts.find("0") is found[0]
    assert accounts.find("1") is found[1]


def test_a_client_without_a_network_has_no_account() -> None:
    assert Accounts(client_nets(32, 64), lambda: 0.0).open_account(UNKNOWN) is None
