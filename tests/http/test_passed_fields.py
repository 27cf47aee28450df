"""Fields whose lines are known read as if they had been rendered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from multidict import CIMultiDict

from gateway.errors import UpstreamBroken
from gateway.http.outgoing import PassedFields, field_lines
from gateway.http.reply_lines import FieldLine

CHANGES: list[Callable[[CIMultiDict[str]], object]] = [
    lambda fields: fields.add("C", "3"),
    lambda fields: fields.add("a", "2"),
    lambda fields: fields.extend({"C": "3"}),
    lambda fields: fields.update({"a": "2"}),
    lambda fields: fields.__setitem__("A", "2"),
    lambda fields: fields.__delitem__("A"),
    lambda fields: fields.setdefault("C", "3"),
    lambda fields: fields.pop("A"),
    lambda fields: fields.popone("A"),
    lambda fields: fields.popall("A"),
    lambda fields: fields.popitem(),
    lambda fields: fields.clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_fields_changes_their_lines(change: Callable[[CIMultiDict[str]], object]) -> None:
    plain = CIMultiDict([("A", "1"), ("B", "x")])
    passed = PassedFields.of(CIMultiDict({"A": "1"}), b"A: 1\r\n", [FieldLine("B", "x", b"B: x\r\n")])
    change(plain)
    change(passed)
    assert field_lines(passed) == field_lines(plain)


def test_an_added_value_with_a_line_break_is_refused() -> None:
    passed = PassedFields.of(CIMultiDict(), b"", ())
    passed.add("A", "1\r\nB: 2")
    with pytest.raises(UpstreamBroken):
        field_lines(passed)
