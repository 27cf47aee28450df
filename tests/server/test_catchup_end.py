"""A relayed replay ends where its reader has caught up, however its chunks are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.origin.sse import control_event, event
from gateway.server.relayed_messages import CatchUpEnd

DATA = event("data", "[" + "1," * 9_000 + "1]")
SHORT = control_event("0001", "7", up_to_date=False, is_closed=False)
THERE = control_event("0002", "7", up_to_date=True, is_closed=False)
CLOSED = control_event("0002", "7", up_to_date=True, is_closed=True)
BEAT = b": still here\n\n"


def taken(chunks: list[bytes]) -> bytes:
    end, found = CatchUpEnd(), b""
    for chunk in chunks:
        if end.is_reached:
            break
        found += chunk
        end.see(chunk)
    return found


def test_the_replay_ends_behind_the_event_that_says_up_to_date() -> None:
    assert taken([DATA, SHORT, BEAT, DATA, THERE, DATA, THERE]) == DATA + SHORT + BEAT + DATA + THERE
    assert taken([DATA, CLOSED, DATA]) == DATA + CLOSED


def test_the_replay_goes_on_without_such_an_event() -> None:
    chunks = [DATA, SHORT, BEAT, event("control", "no JSON"), event("data", '{"upToDate":true}')]
    assert taken(chunks) == b"".join(chunks)


def test_all_kinds_of_line_breaks_are_recognised() -> None:
    for line_end in (b"\r\n", b"\r"):
        there = THERE.replace(b"\n", line_end)
        assert taken([DATA, there, DATA]) == DATA + there


@given(st.lists(st.integers(0, len(DATA + THERE) - 1), max_size=6))
def test_the_replay_never_ends_within_an_event(cuts: list[int]) -> None:
    whole = DATA + THERE
    places = sorted({0, *cuts, len(whole)})
    pieces = [whole[start:end] for start, end in pairwise(places)]
    assert taken([*pieces, DATA]) == whole
