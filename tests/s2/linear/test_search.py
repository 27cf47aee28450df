"""The search, on histories whose verdict is known and on made ones beside trying every order."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.s2.linear.model import Acknowledged, Append, Fenced, StreamState, TailIs, TailIsBehind, Unmatched, chained
from tests.s2.linear.search import Operation, Undecided, linearize

A, B, C = (b"a",), (b"b",), (b"c",)


def op(called: int, returned: int | None, action: Append | TailIs | TailIsBehind) -> Operation[StreamState]:
    return Operation(called, returned, action)


def is_linearizable(*operations: Operation[StreamState]) -> bool:
    return linearize(operations, StreamState()).is_complete


def test_a_read_sees_an_append_that_was_acknowledged_before_it() -> None:
    append = op(1, 2, Append(A, outcome=Acknowledged(0, 1)))
    assert is_linearizable(append, op(3, 4, TailIs(1)))
    assert not is_linearizable(append, op(3, 4, TailIs(0)))


def test_a_read_during_an_append_may_see_it_or_not() -> None:
    append = op(1, 4, Append(A, outcome=Acknowledged(0, 1)))
    assert is_linearizable(append, op(2, 3, TailIs(0)))
    assert is_linearizable(append, op(2, 3, TailIs(1)))


def test_what_one_read_has_seen_no_later_one_misses() -> None:
    append = op(1, 8, Append(A, outcome=Acknowledged(0, 1)))
    assert is_linearizable(append, op(2, 3, TailIs(0)), op(4, 5, TailIs(1)))
    assert not is_linearizable(append, op(2, 3, TailIs(1)), op(4, 5, TailIs(0)))


def test_appends_take_effect_in_the_order_of_their_numbers() -> None:
    first, second = Append(A, outcome=Acknowledged(0, 1)), Append(B, outcome=Acknowledged(1, 2))
    assert is_linearizable(op(1, 3, second), op(2, 4, first))
    assert not is_linearizable(op(1, 2, second), op(3, 4, first))
    assert not is_linearizable(
        op(1, 3, Append(A, outcome=Acknowledged(0, 1))), op(2, 4, Append(B, outcome=Acknowledged(0, 1)))
    )


def test_a_read_of_other_records_is_wrong() -> None:
    append = op(1, 2, Append(A, outcome=Acknowledged(0, 1)))
    assert is_linearizable(append, op(3, 4, TailIs(1, chained(b"", A))))
    assert not is_linearizable(append, op(3, 4, TailIs(1, chained(b"", B))))


def test_an_append_without_an_answer_takes_effect_at_any_time_or_never() -> None:
    lost = op(1, None, Append(A))
    assert is_linearizable(lost, op(2, 3, TailIs(0)), op(4, 5, TailIs(0)))
    assert is_linearizable(lost, op(2, 3, TailIs(0)), op(4, 5, TailIs(1)))
    assert not is_linearizable(lost, op(2, 3, TailIs(1)), op(4, 5, TailIs(0)))
    assert not is_linearizable(lost, op(2, 3, TailIs(1)), op(4, 5, TailIs(2)))
    assert not is_linearizable(op(2, 3, TailIs(1)), op(4, None, Append(A)))


def test_a_number_to_match_holds_when_the_append_takes_effect() -> None:
    append = op(1, 2, Append(A, outcome=Acknowledged(0, 1)))
    assert is_linearizable(append, op(3, 4, Append(B, match_seq_num=1, outcome=Acknowledged(1, 2))))
    assert not is_linearizable(append, op(3, 4, Append(B, match_seq_num=0, outcome=Acknowledged(1, 2))))
    assert is_linearizable(append, op(3, 4, Append(B, match_seq_num=0, outcome=Unmatched(1))))
    assert not is_linearizable(append, op(3, 4, Append(B, match_seq_num=0, outcome=Unmatched(2))))
    assert not is_linearizable(append, op(3, 4, Append(B, match_seq_num=1, outcome=Unmatched(1))))
    # Without an answer, an append whose number does not match never takes effect.
    assert not is_linearizable(append, op(3, None, Append(B, match_seq_num=0)), op(4, 5, TailIs(2)))


def test_who_was_fenced_off_appends_no_more() -> None:
    fence = op(1, 2, Append(A, sets_token="x", outcome=Acknowledged(0, 1)))
    assert is_linearizable(fence, op(3, 4, Append(B, fencing_token="x", outcome=Acknowledged(1, 2))))
    assert is_linearizable(fence, op(3, 4, Append(B, outcome=Acknowledged(1, 2))))
    assert not is_linearizable(fence, op(3, 4, Append(B, fencing_token="", outcome=Acknowledged(1, 2))))
    assert is_linearizable(fence, op(3, 4, Append(B, fencing_token="", outcome=Fenced("x"))))
    assert not is_linearizable(fence, op(3, 4, Append(B, fencing_token="", outcome=Fenced(""))))
    # The token is looked at before the number.
    both = Append(B, fencing_token="", match_seq_num=0, outcome=Unmatched(1))
    assert not is_linearizable(fence, op(3, 4, both))
    # A lost fence explains both the refusal of others and that they are not refused yet.
    lost = op(1, None, Append(A, sets_token="x"))
    mine = op(2, 3, Append(B, fencing_token="", outcome=Acknowledged(0, 1)))
    assert is_linearizable(lost, mine, op(4, 5, Append(C, fencing_token="", outcome=Fenced("x"))))


def test_the_verdict_names_what_is_not_possible() -> None:
    found = linearize([op(1, 2, Append(A, outcome=Acknowledged(0, 1))), op(3, 4, TailIs(0))], StreamState())
    assert [str(one) for one in found.stuck] == ["3-4 : the tail is 0"]
    assert "tail 1" in str(found)


def test_a_search_is_bounded() -> None:
    lost = [op(1, None, Append((bytes([number]),))) for number in range(12)]
    with pytest.raises(Undecided):
        linearize([*lost, op(2, 3, TailIs(12, b"none such"))], StreamState(), most_steps=10_000)


def test_long_histories_take_about_a_step_for_each_operation() -> None:
    history = []
    for number in range(1_000):
        at = 10 * number
        history.append(op(at, at + 15, Append((b"%d" % number,), outcome=Acknowledged(number, number + 1))))
        history += [op(at + 1 + one, at + 16 + one, TailIs(number + one % 2)) for one in range(2)]
    linearize(history, StreamState(), most_steps=20_000)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation[StreamState]]:
    """A few operations of clients that call one thing after the other, with outcomes that may be true or not."""
    times = draw(st.permutations(range(10)))
    found = []
    for number in range(draw(st.integers(1, 5))):
        called, returned = sorted((times[2 * number], times[2 * number + 1]))
        start = draw(st.integers(0, 2))
        outcome = draw(st.sampled_from([None, Acknowledged(start, start + 1), Unmatched(start), Fenced("x")]))
        append = Append(
            (bytes([number]),),
            draw(st.sampled_from([None, 0, 1])),
            draw(st.sampled_from([None, "", "x"])),
            draw(st.sampled_from([None, "x"])),
            outcome,
        )
        actions: list[Append | TailIs | TailIsBehind] = [append, TailIs(start), TailIsBehind(start)]
        action = draw(st.sampled_from(actions))
        is_lost = isinstance(action, Append) and action.outcome is None
        found.append(op(called, None if is_lost else returned, action))
    return found


def by_trying_every_order(history: list[Operation[StreamState]]) -> bool:
    definite = [one for one in history if one.returned is not None]
    lost = [one for one in history if one.returned is None]
    return any(
        is_explained(list(order))
        for count in range(len(lost) + 1)
        for some in combinations(lost, count)
        for order in permutations([*definite, *some])
    )


def is_explained(order: list[Operation[StreamState]]) -> bool:
    state = StreamState()
    for index, one in enumerate(order):
        if any(later.returned is not None and later.returned < one.called for later in order[index:]):
            return False
        after = one.action.step(state)
        if after is None:
            return False
        state = after
    return True


@given(histories())
def test_the_search_finds_what_trying_every_order_finds(history: list[Operation[StreamState]]) -> None:
    assert linearize(history, StreamState()).is_complete == by_trying_every_order(history)
