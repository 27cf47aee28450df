"""The cursors of one stream's live readers, whatever cursors clients send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.cursor import EPOCH_S, INTERVAL_S, Cursors

WALL_S = EPOCH_S + 100 * INTERVAL_S
GREAT = (
    0,
    99,
    100,
    1_100,
    1_101,
    1 << 40,
    (1 << 40) + 100,
    (1 << 52) - 1,
    1 << 52,
    (1 << 52) + 1,
    (1 << 53) - 1,
    1 << 53,
)
SENT = st.none() | st.one_of(st.integers(90, 1_300), st.sampled_from(GREAT)).map(str)


class Crowd:
    """Readers that get an answer at each event.  Half of them wait again before the other half are answered."""

    def __init__(self, cursors: Cursors, own: list[str | None]) -> None:
        self.cursors, self.own = cursors, own
        self.wait(*own)

    def wait(self, *own: str | None) -> None:
        for one in own:
            self.cursors.note(one)

    def get_event(self, has_come: bool = True) -> None:
        """Answer each reader, with or without news for it."""
        if has_come:
            self.cursors.rise()
        half = len(self.own) // 2
        for part in (self.own[:half], self.own[half:]):
            for number, one in enumerate(part):
                part[number] = self.cursors.next_for(one)
                assert int(part[number] or "") > int(one or "-1")
            self.wait(*part)
            self.own = [*self.own[half:], *part]


@pytest.mark.parametrize("own", [["150", "151", "102", None], ["9000", "70000", "9001", "1"], [str(1 << 45), "100"]])
def test_crowds_get_the_same_cursor_although_the_first_come_back_before_the_last_are_answered(
    own: list[str | None],
) -> None:
    crowd = Crowd(Cursors(lambda: WALL_S), own)
    for _ in range(5):
        crowd.get_event()
        assert len(set(crowd.own)) == 1
    # A wait that ends without news gives them a later one, and all the same.
    crowd.get_event(has_come=False)
    assert len(set(crowd.own)) == 1


def test_a_crowd_stays_together_however_far_it_runs_ahead_of_the_time() -> None:
    crowd = Crowd(Cursors(lambda: WALL_S), ["101"] * 10)
    for _ in range(3_000):
        crowd.get_event()
        assert len(set(crowd.own)) == 1
    # Another gateway, or this one after a restart, does not part it.
    crowd = Crowd(Cursors(lambda: WALL_S), crowd.own)
    crowd.get_event()
    assert len(set(crowd.own)) == 1


@given(st.lists(SENT, max_size=6), st.lists(SENT, min_size=1, max_size=6))
def test_no_cursors_that_others_send_part_a_crowd(theirs: list[str | None], later: list[str | None]) -> None:
    cursors = Cursors(lambda: WALL_S)
    crowd = Crowd(cursors, ["101", "101", None, "99"])
    for sent in (theirs, later, later):
        for one in sent:
            cursors.note(one)
        crowd.get_event()
        assert len(set(crowd.own)) == 1
        for one in sent:
            assert int(cursors.next_for(one)) > int(one or "-1")


@given(st.lists(st.tuples(SENT, st.sampled_from([0.0, -40.0, 400.0, -1e6])), max_size=10))
def test_the_shared_cursor_never_goes_back(steps: list[tuple[str | None, float]]) -> None:
    now = [float(WALL_S)]
    cursors = Cursors(lambda: now[0])
    seen = [cursors.shared()]
    for theirs, passed_s in steps:
        now[0] += passed_s
        cursors.note(theirs)
        cursors.rise()
        seen.append(cursors.shared())
    assert seen == sorted(seen)


@pytest.mark.parametrize("sent", [(1 << 52) + 1, (1 << 52) + 5, (1 << 53) - (1 << 30)])
def test_a_crowd_that_another_gateway_has_led_to_the_end_of_the_valid_cursors_stays_together(sent: int) -> None:
    first, second = Cursors(lambda: WALL_S), Cursors(lambda: WALL_S)
    crowd = Crowd(first, [str(sent), str(sent + 7), str(sent + 7), str(sent + 99)])
    for cursors in (second, second, first, second, first):
        crowd.get_event()
        crowd.cursors = cursors
        crowd.wait(*crowd.own)
    assert len(set(crowd.own)) == 1


def test_the_end_of_the_valid_cursors_is_out_of_reach() -> None:
    cursors = Cursors(lambda: WALL_S)
    for _ in range(1_000):
        cursors.note(str(1 << 53))
        cursors.note(str(1 << 52))
        cursors.note(str(cursors.shared()))
        cursors.rise()
    assert cursors.shared() < (1 << 52) + 1_100
