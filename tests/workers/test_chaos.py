"""The short form of chaos with workers that are killed: every answer is judged as with one process."""

from __future__ import annotations

from tests.chaos.chaos import Size, chaos


def test_every_answer_of_workers_that_are_killed_is_true() -> None:
    result = chaos(3, 4.0, size=Size(catch_up=8, poll=6, sse=6), workers=3)
    assert not result.violations, "\n\n".join(map(str, result.violations))
    assert result.answers
