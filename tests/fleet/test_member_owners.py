"""The owner of each stream among the members that can be reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.member_owners import MemberOwners

SECRET = b"0" * 32
NAMES = st.lists(st.text("abcdefgh0123-", min_size=1, max_size=8), min_size=1, max_size=6, unique=True)
WEIGHTS = st.sampled_from([0.1, 0.3, 0.7, 0.9, 1.0])


def _owner(names: list[str], reached: set[str], own: str, path: str, weights: Sequence[float] = ()) -> str:
    """The owner in the view of one member."""
    owners = MemberOwners(names, names.index(own), SECRET)
    for number, weight in enumerate(weights):
        owners.set_weight(number, weight)
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
def test_a_changed_list_gives_the_owners_of_a_list_that_was_always_so(
    names: list[str], path: str, data: st.DataObject
) -> None:
    own = data.draw(st.sampled_from(names))
    first = data.draw(st.lists(st.sampled_from(names), unique=True).filter(lambda some: own in some))
    owners = MemberOwners(first, first.index(own), SECRET)
    cell, indexes = owners.cell_of("http://origin", path), {name: index for index, name in enumerate(first)}
    for index in indexes.values():
        owners.set_reached(index, is_reached=True)
    used = set(indexes.values())
    for name in data.draw(st.lists(st.sampled_from(names).filter(lambda one: one != own))) if len(names) > 1 else []:
        before, owner = owners.epoch, owners.other_owner(cell)
        if name in indexes:
            index = indexes.pop(name)
            owners.remove(index)
            assert owners.epoch > before
            assert owner == index or owners.other_owner(cell) == owner
        else:
            indexes[name] = index = owners.add(name)
            assert index not in used
            used.add(index)
            assert (owners.epoch, owners.weight(index), owners.is_reached(index)) == (before, 1.0, False)
            owners.set_reached(index, is_reached=True)
            assert owners.other_owner(cell) in (index, owner)
    last = owners.other_owner(cell)
    found = own if last is None else next(name for name, one in indexes.items() if one == last)
    assert found == _owner(list(indexes), set(indexes), own, path)


@given(names=NAMES, path=st.text(max_size=12), data=st.data())
def test_members_that_disagree_ask_each_other_in_no_circle(names: list[str], path: str, data: st.DataObject) -> None:
    views = {name: set(data.draw(st.lists(st.sampled_from(names)))) | {name} for name in names}
    weights = {name: data.draw(st.lists(WEIGHTS, min_size=len(names), max_size=len(names))) for name in names}
    at, asked = data.draw(st.sampled_from(names)), []
    while at not in asked:
        asked.append(at)
        at = _owner(names, views[at], at, path, weights[at])
    assert at == asked[-1], "the last member asks the origin itself"


@given(names=NAMES, path=st.text(max_size=12), data=st.data())
def test_a_member_whose_weight_grows_only_gains_streams(names: list[str], path: str, data: st.DataObject) -> None:
    own, growing = data.draw(st.sampled_from(names)), data.draw(st.integers(0, len(names) - 1))
    weights = data.draw(st.lists(WEIGHTS, min_size=len(names), max_size=len(names)))
    before = _owner(names, set(names), own, path, weights)
    weights[growing] = data.draw(st.floats(weights[growing], 1.0))
    assert _owner(names, set(names), own, path, weights) in (before, names[growing])


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_a_weight_is_a_part_of_a_members_streams(weight: float) -> None:
    owners = MemberOwners([f"gateway-{number}" for number in range(4)], 0, SECRET)
    for index in range(4):
        owners.set_reached(index, is_reached=True)
    cells = [owners.cell_of("http://origin", f"/s/{number}") for number in range(4_000)]
    full = {cell for cell in cells if owners.other_owner(cell) == 1}
    before = owners.epoch
    owners.set_weight(1, weight)
    part = {cell for cell in cells if owners.other_owner(cell) == 1}
    assert owners.epoch > before
    assert part < full
    assert abs(len(part) / len(full) - weight) < 0.15
    owners.set_weight(1, 1.0)
    assert {cell for cell in cells if owners.other_owner(cell) == 1} == full


def test_a_members_weight_in_its_own_view_is_1() -> None:
    names = ["a", "b"]
    for number in range(20):
        path, reached = f"/s/{number}", set(names)
        views = [_owner(names, reached, "a", path, [0.1, 1.0]), _owner(names, reached, "b", path, [1.0, 0.1])]
        assert views != ["b", "a"], "each asks the other one"


def test_streams_are_spread_evenly() -> None:
    names = [f"gateway-{number}" for number in range(4)]
    owners = MemberOwners(names, 0, SECRET)
    for index in range(4):
        owners.set_reached(index, is_reached=True)
    cells = (owners.cell_of("http://origin", f"/s/{number}") for number in range(8_000))
    spread = Counter(map(owners.other_owner, cells))
    assert all(1_700 < count < 2_300 for count in spread.values()), spread
