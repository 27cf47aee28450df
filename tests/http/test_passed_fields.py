"""Fields whose lines are known read as if they had been rendered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from multidict import CIMultiDict

from gateway.errors import UpstreamBroken
from gateway.http.outgoing import Fields, PassedFields, field_lines
from gateway.http.reply_lines import FieldLine

CHANGES: list[Callable[[Fields], object]] = [
    lambda fields: fields.add("C", "3"),
    lambda fields: fields.add("a", "2"),
    lambda fields: fields.__setitem__("A", "2"),
    lambda fields: fields.__setitem__("b", "2"),
    lambda fields: fields.__delitem__("A"),
    lambda fields: fields.__delitem__("b"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_fields_changes_their_lines(change: Callable[[Fields], object]) -> None:
    plain = CIMultiDict([("A", "1"), ("B", "x")])
    passed = PassedFields(CIMultiDict({"A": "1"}), b"A: 1\r\n", [FieldLine("B", "x", b"B: x\r\n")])
    change(plain)
    change(passed)
    assert field_lines(passed) == field_lines(plain)
    assert [passed.get(name) for name in "ABCabc"] == [plain.get(name) for name in "ABCabc"]


def test_fields_are_found_in_any_spelling() -> None:
    own = [FieldLine("Stream-Next-Offset", "1", b"Stream-Next-Offset: 1\r\n")]
    passed = PassedFields(CIMultiDict({"Vary": "Accept"}), b"Vary: Accept\r\n", own)
    assert [passed.get(name) for name in ("vary", "STREAM-NEXT-OFFSET", "Date")] == ["Accept", "1", None]
    assert "stream-next-offset" in passed
    assert "Content-Length" not in passed
    assert passed.table() == CIMultiDict([("Vary", "Accept"), ("Stream-Next-Offset", "1")])


def test_an_added_value_with_a_line_break_is_refused() -> None:
    passed = PassedFields(CIMultiDict(), b"", ())
    passed.add("A", "1\r\nB: 2")
    with pytest.raises(UpstreamBroken):
        field_lines(passed)
