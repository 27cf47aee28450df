"""A stream's version: which change each question notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.protocol.stream_version import Edition, Version

SEEN = Version(Edition("i", 3), 5, 7, doubts=4, end_doubts=2, settled=4)
CHANGES: dict[str, Callable[[Version], Version]] = {
    "bytes dropped": lambda seen: seen.withdrawn(),
    "bytes forgotten": lambda seen: seen.incarnated("j"),
    "tail": lambda seen: seen.tail_changed(),
    "acknowledged": lambda seen: seen.acknowledged(),
    "may have moved": lambda seen: seen.doubted(may_have_ended=False, may_be_another=False),
    "may have ended": lambda seen: seen.doubted(may_have_ended=True, may_be_another=False),
    "may be another": lambda seen: seen.doubted(may_have_ended=True, may_be_another=True),
    "found": lambda seen: seen.settled_by(seen.doubted(may_have_ended=True, may_be_another=False)),
}
DOUBTS = {"may have moved", "may have ended", "may be another"}
NOTICED: dict[Callable[[Version, Version], bool], set[str]] = {
    Version.same_incarnation_as: {"bytes forgotten"},
    Version.same_bytes_as: {"bytes dropped", "bytes forgotten"},
    Version.same_tail_as: {"tail", "acknowledged"},
    Version.same_doubts_as: DOUBTS,
    Version.same_waiting_as: {"tail", "acknowledged", *DOUBTS},
    Version.same_answers_as: CHANGES.keys() - {"found"},
    Version.same_acks_as: {"acknowledged"},
    Version.same_writes_as: {"acknowledged", *DOUBTS},
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_question_notices_its_own_changes(change: str) -> None:
    now = CHANGES[change](SEEN)
    assert now != SEEN
    assert {question for question in NOTICED if not question(SEEN, now)} == {
        question for question, changes in NOTICED.items() if change in changes
    }
    assert SEEN.may_have_ended_by(now) is (change in ("may have ended", "may be another"))
    assert now.may_be_another is (change == "may be another")


def test_nothing_has_changed_in_the_same_version() -> None:
    assert all(question(SEEN, SEEN) for question in NOTICED)
    assert not SEEN.may_have_ended_by(SEEN)


def test_a_doubt_lasts_until_a_request_sent_after_it_has_found_the_stream() -> None:
    moved = SEEN.doubted(may_have_ended=False, may_be_another=False)
    assert (moved.needs_revalidation, moved.may_have_ended, moved.may_be_another) == (True, False, False)
    ended = moved.doubted(may_have_ended=True, may_be_another=False)
    assert (ended.needs_revalidation, ended.may_have_ended, ended.may_be_another) == (True, True, False)
    replaced = ended.doubted(may_have_ended=True, may_be_another=True)
    assert (replaced.needs_revalidation, replaced.may_have_ended, replaced.may_be_another) == (True, True, True)
    assert replaced.settled_by(ended).may_be_another
    assert not replaced.settled_by(replaced).may_be_another
    # A request that was sent between the two knows of the first alone.
    assert ended.settled_by(moved).may_have_ended
    settled = ended.settled_by(ended)
    assert (settled.needs_revalidation, settled.may_have_ended) == (False, False)
    assert settled.settled_by(moved) is settled
