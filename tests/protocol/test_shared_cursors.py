"""The cursors of one stream's live readers: those of waiting readers, and those of clients that are ahead."""

from __future__ import annotations

import random

from gateway.protocol.cursor import EPOCH_S, INTERVAL_S, Cursors

WALL_S = EPOCH_S + 100 * INTERVAL_S


def test_the_cursor_of_a_long_poll_is_above_its_clients() -> None:
    cursors, rng = Cursors(lambda: WALL_S), random.Random(1)
    for own in (0, 99, 100, 101, 500, 1_101, 1 << 41):
        cursors.note(str(own), WALL_S)
        assert int(cursors.next_for(str(own), WALL_S, rng)) > own
    assert int(cursors.next_for(None, WALL_S, rng)) > 500


def test_crowds_get_the_same_cursor_although_the_first_come_back_before_the_last_are_answered() -> None:
    cursors, rng = Cursors(lambda: WALL_S), random.Random(1)
    crowds = ["150", "151", "102", None]
    for own in crowds:
        cursors.note(own, WALL_S)
    cursors.rise()
    given = []
    for own in crowds:
        given.append(cursors.next_for(own, WALL_S, rng))
        # The crowd waits again.
        cursors.note(given[-1], WALL_S)
    assert given == ["152"] * 4
    # A wait that ends without news gives them a later one, and all the same.
    assert [cursors.next_for(own, WALL_S, rng) for own in given] == ["153"] * 4


def test_the_shared_cursor_never_goes_back() -> None:
    now = [float(WALL_S)]
    cursors = Cursors(lambda: now[0])
    seen = [cursors.shared()]
    for theirs, passed_s in (("120", 0.0), ("110", 0.0), (None, -40.0), ("not a cursor", 0.0), ("99999", 400.0)):
        now[0] += passed_s
        cursors.note(theirs, now[0])
        cursors.rise()
        seen.append(cursors.shared())
    assert seen == sorted(seen)
    # A cursor that is far ahead is left to those who are.
    assert seen[-1] < 99_999
