"""Bans: a client refused within the rate is not banned; one that exceeds it is banned for a while."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.accounts import Account
from gateway.limits.rate_limits import BAN_S, Bans

RATES = st.floats(0.1, 100)
PAUSES = st.lists(st.one_of(st.just(0.0), st.floats(0, 3)), max_size=200)


@given(RATES, PAUSES)
def test_a_net_is_banned_only_after_more_than_the_rate(per_s: float, pauses: list[float]) -> None:
    bans, now = Bans(per_s), 100.0
    net = Account("net")
    refused: list[float] = []
    for pause in pauses:
        now += pause
        refused.append(now)
        if bans.refused(net, now):
            # In some window, more were refused than ten seconds' worth and what the rate allows in it.
            windows = ((first, len(refused) - at) for at, first in enumerate(refused))
            assert any(n > 10 * per_s + (now - first) * per_s - 1e-6 for first, n in windows)
            break
        assert not net.is_banned(now)


@given(st.integers(1, 200).map(lambda halves: halves / 2))
def test_a_ban_ends_and_the_next_comes_sooner(per_s: float) -> None:
    bans, now, burst = Bans(per_s), 100.0, int(10 * per_s)
    net = Account("net")
    assert not any(bans.refused(net, now) for _ in range(burst))
    other = Account("other")
    assert bans.refused(net, now)
    assert not bans.refused(net, now), "a ban is begun once"
    assert net.is_banned(now)
    assert not other.is_banned(now)
    assert not bans.refused(other, now)
    now += BAN_S - 0.001
    assert net.is_banned(now)
    now += 0.002
    assert not net.is_banned(now)
    again = next(n for n in range(burst + 1) if bans.refused(net, now))
    assert again <= 10 * per_s / 4 + 2
    # After a long time without a refusal, all is as it was.
    now += BAN_S + 20.0
    assert not any(bans.refused(net, now) for _ in range(burst))


def test_no_rate_bans_no_net() -> None:
    bans = Bans(1)
    net = Account("net")
    assert any(bans.refused(net, 0.0) for _ in range(11))
    bans.set_rate(0, [net])
    assert not net.is_banned(0.0)
    assert not any(bans.refused(net, 0.0) for _ in range(1_000))


def test_each_ban_that_follows_soon_is_twice_as_long_up_to_a_bound() -> None:
    bans, now, lengths = Bans(1), 0.0, []
    net = Account("net")
    for _ in range(8):
        ban_s = next(filter(None, (bans.refused(net, now) for _ in range(12))))
        assert net.is_banned(now + ban_s - 0.001)
        lengths.append(ban_s)
        now += 2 * ban_s - 0.001
        assert not net.is_banned(now)
    assert lengths == [10, 20, 40, 80, 160, 320, 320, 320]
    # It has been good for as long as its last ban was.
    now += 0.002 + 20
    assert next(filter(None, (bans.refused(net, now) for _ in range(12)))) == 10


def test_another_rate_ends_no_ban() -> None:
    bans = Bans(1)
    net = Account("net")
    assert any(bans.refused(net, 0.0) for _ in range(11))
    bans.set_rate(2)
    assert net.is_banned(9.0)
