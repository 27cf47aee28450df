"""The body of an answer: the tape's bytes when the answer began, in order."""

from __future__ import annotations

import pytest

from gateway.engine.answer import Parts
from gateway.limits.memory import SharedBytes


@pytest.mark.parametrize(("is_json", "body"), [(True, b"[1,2,3,4,5]"), (False, b"1,2,345")])
def test_a_body_has_every_piece_and_arrays_are_joined_as_arrays(is_json: bool, body: bytes) -> None:
    parts = Parts()
    for pieces in ((b"1,", b"2,", b"3"), (b"4",), (b"5",)):
        parts.add_pieces(pieces, 0, SharedBytes(0))
    held = parts.held(is_json)
    assert held is not None
    assert b"".join(held) == body
