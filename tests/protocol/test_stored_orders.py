"""The entries of orders and revocations in Redis: what comes back, and what is refused."""

from __future__ import annotations

import json
from math import inf
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.fleet_orders import InEffect, Order, OrderLog
from gateway.protocol.stored_orders import Announcement, Moment, Seal, news_of

SEAL: Final = Seal(b"a secret")
GIVEN: Final = Moment(50.0, 1_000_050.0)
LATER: Final = Moment(2_010.0, 1_000_060.0)
"""The clocks of another process, ten seconds later."""

ORDERS: Final = st.builds(
    Order,
    st.text(min_size=1, max_size=8),
    st.integers(1, 1 << 40),
    st.sampled_from(["purge", "revoke"]),
    st.text(),
    st.floats(0, 50),
)
REVOCATIONS: Final = st.builds(InEffect, st.text(), st.text(), st.none() | st.text(), st.floats(0, 1e9))


@given(ORDERS)
def test_an_order_is_read_as_it_was_written_with_its_age(order: Order) -> None:
    read = SEAL.read_order(SEAL.order(order, GIVEN), LATER)
    assert read is not None
    assert read == order._replace(at=read.at)
    assert LATER.now - read.at == pytest.approx(GIVEN.now - order.at + 10, abs=1e-3)


@given(REVOCATIONS)
def test_a_revocation_is_read_as_it_was_written_and_ends_at_the_same_time(revocation: InEffect) -> None:
    field, entry = SEAL.revocation(revocation, GIVEN)
    read = SEAL.read_revocation(entry, LATER)
    assert read == revocation._replace(for_s=read.for_s)
    assert read.for_s == pytest.approx(revocation.for_s - 10, abs=1e-3)
    # A later revocation of the same name replaces it, and no other one does.
    subject, name, issuer, _ = revocation
    assert SEAL.revocation(read, LATER)[0] == field
    others = [
        InEffect(f"{subject}x", name, issuer, 1.0),
        InEffect(subject, f"{name}x", issuer, 1.0),
        InEffect(subject, name, f"{issuer}x", 1.0),
        InEffect(subject, name, None if issuer is not None else "", 1.0),
    ]
    assert field not in {SEAL.revocation(one, GIVEN)[0] for one in others}


def test_an_order_of_a_clock_that_is_ahead_is_given_now() -> None:
    order = Order("p", 1, "purge", "{}", 50.0)
    read = SEAL.read_order(SEAL.order(order, GIVEN), LATER._replace(wall=GIVEN.wall - 60))
    assert read == order._replace(at=LATER.now)


def test_a_mark_is_no_order() -> None:
    assert SEAL.read_order(SEAL.mark("p", GIVEN), LATER) is None


@given(ORDERS, st.data())
def test_an_entry_that_was_changed_in_one_byte_is_refused(order: Order, data: st.DataObject) -> None:
    entry = bytearray(SEAL.order(order, GIVEN))
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="the code is wrong"):
        SEAL.read_order(bytes(entry), LATER)


@given(st.binary())
def test_foreign_bytes_are_refused(entry: bytes) -> None:
    for read in (SEAL.read_order, SEAL.read_revocation):
        with pytest.raises(ValueError, match="the code is wrong"):
            read(entry, LATER)


def test_an_entry_passes_for_none_of_another_kind_or_fleet() -> None:
    order = SEAL.order(Order("p", 1, "purge", "{}", 50.0), GIVEN)
    _, revocation = SEAL.revocation(InEffect("principal", "mallory", None, 60.0), GIVEN)
    other = Seal(b"another secret")
    assert other.fleet != SEAL.fleet
    with pytest.raises(ValueError, match="the code is wrong"):
        SEAL.read_revocation(order, LATER)
    with pytest.raises(ValueError, match="the code is wrong"):
        SEAL.read_order(revocation, LATER)
    with pytest.raises(ValueError, match="the code is wrong"):
        other.read_order(order, LATER)


@pytest.mark.parametrize(
    "value",
    [
        {}, 1, [], ["p", 1, "purge", "{}"], ["p", 0, "purge", "{}", 1.0], ["p", "1", "purge", "{}", 1.0],
        ["p", 1, "prune", "{}", 1.0], [None, 1, "purge", "{}", 1.0], ["p", 1, "purge", {}, 1.0],
        ["p", 1, "purge", "{}", None], ["p", 1, "purge", "{}", inf],
    ],
)  # fmt: skip
def test_an_order_of_another_form_is_refused(value: object) -> None:
    """A later version of a member may write other forms."""
    with pytest.raises(ValueError, match=r"\w"):
        SEAL.read_order(SEAL._sealed(b"order 1\n", value), LATER)


@pytest.mark.parametrize("value", [{}, [], ["principal", "x", None, "1"], [1, "x", None, 1], ["principal", "x", 1, 1]])
def test_a_revocation_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        SEAL.read_revocation(SEAL._sealed(b"revocation 1\n", value), LATER)


def test_the_entries_have_no_secret() -> None:
    entry = SEAL.order(Order("p", 1, "purge", "{}", 50.0), GIVEN)
    assert json.loads(entry[32:]) == ["p", 1, "purge", "{}", 1_000_050.0]
    assert b"secret" not in entry + SEAL.fleet.encode()


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 2)), max_size=30), st.data())
def test_a_member_learns_each_order_once_and_notices_each_gap(gaps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Each process gives orders, some of which are lost on the way."""
    log, number, lost = OrderLog(), dict.fromkeys("pqr", 0), 0
    arriving: list[Order] = []
    for process, gap in gaps:
        number[process] += gap + 1
        lost += gap
        arriving.append(Order(process, number[process], "purge", "", float(len(arriving))))
    learnt: list[Order] = []
    has_missed = False
    while arriving:
        count = data.draw(st.integers(1, len(arriving)))
        page, arriving = arriving[:count], arriving[count:]
        again = data.draw(st.sampled_from([[], page, learnt]))
        new, missed = log.learn_news(news_of([*again, *page]))
        learnt += new
        has_missed |= missed
    assert [(one.process, one.number) for one in learnt] == list(dict.fromkeys((o.process, o.number) for o in learnt))
    assert len(learnt) == len(gaps)
    assert has_missed == (lost > 0)


@given(st.builds(Announcement, st.text(), st.text(), st.text(), st.floats(0, 1e10)))
def test_an_announcement_is_read_as_it_was_written(announcement: Announcement) -> None:
    assert SEAL.read_announcement(SEAL.announcement(announcement)) == announcement


def test_an_announcement_that_no_member_has_made_is_refused() -> None:
    announcement = Announcement("a", "http://10.0.0.1:4439", "0" * 16, 1_000_050.0)
    entry = SEAL.announcement(announcement)
    order = SEAL.order(Order("p", 1, "purge", "{}", 50.0), GIVEN)
    changed = [entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :] for at in range(len(entry))]
    for other in (b"", entry[:-1], order, Seal(b"another secret").announcement(announcement), *changed):
        with pytest.raises(ValueError, match=r"."):
            SEAL.read_announcement(other)
    for values in ([], ["a", "u", "i"], ["a", "u", 1, 2.0], ["a", "u", "i", inf]):
        with pytest.raises(ValueError, match=r"."):
            SEAL.read_announcement(SEAL._sealed(b"announcement 1\n", values))
