"""The log of purges and revocations: what a member sends to another one, and when the other one has missed some."""

from __future__ import annotations

import pytest

from gateway.protocol.fleet_orders import NO_ORDERS, InEffect, OrderLog, OrderNews, OutcomeAsk, Since

IN_EFFECT = [InEffect("principal", "mallory", None, 60.0)]


def tell(receiver: OrderLog, sender: OrderLog, *, is_new: bool = False) -> tuple[list[str], bool, bool]:
    """Let a member ask another one.  Return the texts of the new orders, whether orders are missed, and whether all
    revocations were sent."""
    asked = Since.parse(receiver.asked(is_new=is_new).rendered())
    news = OrderNews.parse(sender.since(asked, IN_EFFECT).rendered(now=50.0), now=1_050.0)
    orders, has_missed = receiver.learn_news(news)
    return [order.text for order in orders], has_missed, news.in_effect == IN_EFFECT


def test_a_member_gets_each_order_once_whoever_tells_it() -> None:
    a, b, c = OrderLog(), OrderLog(), OrderLog()
    assert {a.digest, b.digest} == {NO_ORDERS}
    a.add("a1", "purge", "first", 1.0)
    assert tell(b, a) == (["first"], False, False)
    a.add("a1", "revoke", "second", 2.0)
    assert tell(c, b) == (["first"], False, False)
    assert a.digest != b.digest == c.digest
    b.add("b1", "purge", "third", 1_003.0)
    assert tell(c, a) == (["second"], False, False)
    assert tell(c, b) == (["third"], False, False)
    assert tell(a, c) == (["third"], False, False)
    assert tell(b, a) == (["second"], False, False)
    assert tell(b, a) == ([], False, False)
    assert a.digest == b.digest == c.digest != NO_ORDERS


def test_times_are_those_of_the_receiver() -> None:
    a, b = OrderLog(), OrderLog()
    a.add("a1", "purge", "text", 45.0)
    (order,), _ = b.learn_news(OrderNews.parse(a.since(Since({}, False), []).rendered(now=50.0), now=1_050.0))
    assert order.at == 1_045.0


def test_a_member_that_was_away_for_too_many_orders_has_missed_some_and_gets_all_revocations() -> None:
    a, b = OrderLog(most=3), OrderLog(most=3)
    a.add("a1", "purge", "0", 0.0)
    tell(b, a)
    for number in range(1, 4):
        a.add("a1", "purge", str(number), float(number))
    assert tell(b, a) == (["1", "2", "3"], False, False)
    for number in range(4, 8):
        a.add("a1", "purge", str(number), float(number))
    assert tell(b, a) == (["5", "6", "7"], True, True)
    assert a.digest == b.digest
    assert tell(b, a) == ([], False, False)


def test_a_log_is_bounded_in_bytes_too() -> None:
    a, b = OrderLog(), OrderLog()
    for number in range(20):
        a.add("a1", "purge", f"{number}" + "x" * 100_000, float(number))
    texts, has_missed, _ = tell(b, a)
    assert (len(texts), has_missed) == (10, True)


def test_a_new_member_gets_all_revocations_and_can_pass_the_orders_on() -> None:
    a, b, c = OrderLog(), OrderLog(), OrderLog()
    a.add("a1", "revoke", "text", 1.0)
    assert tell(b, a, is_new=True) == (["text"], False, True)
    assert tell(c, b) == (["text"], False, False)


def test_a_forgotten_process_is_not_taken_over_again() -> None:
    a, b = OrderLog(most_processes=2), OrderLog(most_processes=8)
    for number in range(4):
        a.add(f"p{number}", "purge", f"{number}", float(number))
    for number in range(3):
        b.add(f"p{number}", "purge", f"{number}", float(number))
    assert repr(a) == "<OrderLog 4 orders of 2 processes>"
    asked = b.asked(is_new=False)
    assert [order.text for order in a.since(asked, []).orders] == ["3"]
    orders, has_missed = a.learn_news(b.since(Since({}, False), []))
    assert (orders, has_missed) == ([], False)


def test_many_processes_are_named_only_in_part() -> None:
    log = OrderLog()
    for number in range(200):
        log.add(f"p{number}", "purge", "", float(number))
    known = log.asked(is_new=False).known
    assert (len(known), "p199" in known, "p0" in known) == (64, True, False)
    # The orders of the others are sent again, and are not taken again.
    other = OrderLog()
    tell(other, log)
    assert tell(log, other) == ([], False, False)


@pytest.mark.parametrize("text", ["", "x", "since a", "since a:x", "news"])
def test_a_malformed_question_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Since.parse(text)


@pytest.mark.parametrize("text", ["", "done", "done a", "done a:x", "undone a:1", "done a:1 b:2"])
def test_a_malformed_question_for_an_outcome_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        OutcomeAsk.parse(text)
    assert OutcomeAsk.parse(OutcomeAsk("a", 1).rendered()) == OutcomeAsk("a", 1)


@pytest.mark.parametrize("text", [b"", b"x", b"[]", b"{}", b'{"known":{"a":1},"orders":[],"in_effect":null}'])
def test_malformed_news_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        OrderNews.parse(text, 0.0)
