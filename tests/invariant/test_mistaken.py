"""Replies that belong to another stream: their bytes are served for `trust_s` at most, in any order of events."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.engine.flight_bodies import Comparison
from gateway.tape.stream import Stream
from tests.chaos.mutant import never
from tests.effort import examples
from tests.invariant.world import World

TRUST_S = 2.0
STEPS = st.lists(st.sampled_from(["read", "read", "append", "append past it", "mistake", "rest"]), max_size=10)
TYPES = st.sampled_from(["application/json", "text/plain", "application/octet-stream"])


def run(content_type: str, steps: Sequence[str]) -> None:
    """Do the steps, and read until everything is right again; `World` judges every answer."""
    world = World(content_type, max_chunk_bytes=1 << 20, trust_s=TRUST_S, is_nameless=True)
    try:
        world.run(world.create(messages=2))
        for step in steps:
            match step:
                case "read":
                    world.run(world.catch_up("-1"))
                case "mistake":
                    world.mistake_a_reply()
                case "rest":
                    world.run(world.rest(TRUST_S))
                case _:
                    world.run(world.append(1, is_direct=step == "append past it"))
        world.run(world.catch_up("-1"))
        world.origin.faults.clear()
        world.run(world.rest(TRUST_S + 0.5))
        # On a slow machine the origin may be late, and the held bytes are then given without a word about the tail.
        answers = (world.run(world.catch_up("-1")) for _ in range(100))
        assert any(answer.is_up_to_date for answer in answers)
    finally:
        world.end()


@settings(max_examples=examples(5, 150), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(TYPES, STEPS)
def test_mistaken_bytes_last_no_longer_than_trust_s(content_type: str, steps: Sequence[str]) -> None:
    run(content_type, steps)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Stream, "is_confirmation_due", never), (Comparison, "agrees", True)],
    ids=["never", "blindly"],
)
def test_a_gateway_that_confirms_nothing_is_found_out(owner: object, name: str, fault: object) -> None:
    def mistaken() -> None:
        # On a slow machine the mistaken reply may come too late to be kept.
        for _ in range(5):
            run("application/json", ["mistake", "read", "append"])

    with patch.object(owner, name, fault), pytest.raises(AssertionError, match="no incarnation has"):
        mistaken()
