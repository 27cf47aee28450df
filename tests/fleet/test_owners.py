"""The owner of each stream among the members that can be reached."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.members import MemberOwners

SECRET = b"0" * 32
NAMES = st.lists(st.text("abcdefgh0123-", min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


def _owner(names: list[str], reached: set[str], own: str, path: str) -> str:
    """The owner in the view of one member."""
    owners = MemberOwners(names, names.index(own), SECRET)
    for number, name in enumerate(names):
        owners.set_reached(number, is_reached=name in reached)
    index = owners.other_owner(owners.cell_of("http://origin", path))
    return own if index is None else names[index]


@given(names=NAMES, path=st.text(max_size=12), data=st.data())
def test_members_that_reach_the_same_members_agree(names: list[str], path: str, data: st.DataObject) -> None:
    reached = set(data.draw(st.lists(st.sampled_from(names), min_size=1)))
    listed = [data.draw(st.permutations(names)) for _ in reached]
    found = {_owner(order, reached, own, path) for order, own in zip(listed, reached, strict=True)}
    assert len(found) == 1
    assert found <= reached


@given(names=NAMES, path=st.text(max_size=12), data=st.data())
def test_a_lost_member_moves_only_its_own_streams(names: list[str], path: str, data: st.DataObject) -> None:
    lost, own = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    before = _owner(names, set(names), own, path)
    after = _owner(names, set(names) - {lost}, own, path)
    assert before in (after, lost)
    assert lost in (before, own) or before == after


@given(names=NAMES, path=st.text(max_size=12), data=st.data())
def test_members_that_disagree_ask_each_other_in_no_circle(names: list[str], path: str, data: st.DataObject) -> None:
    views = {name: set(data.draw(st.lists(st.sampled_from(names)))) | {name} for name in names}
    at, asked = data.draw(st.sampled_from(names)), []
    while at not in asked:
        asked.append(at)
        at = _owner(names, views[at], at, path)
    assert at == asked[-1], "the last member asks the origin itself"


def test_streams_are_spread_evenly() -> None:
    names = [f"gateway-{number}" for number in range(4)]
    owners = MemberOwners(names, 0, SECRET)
    for index in range(4):
        owners.set_reached(index, is_reached=True)
    cells = (owners.cell_of("http://origin", f"/s/{number}") for number in range(8_000))
    spread = Counter(map(owners.other_owner, cells))
    assert all(1_700 < count < 2_300 for count in spread.values()), spread
