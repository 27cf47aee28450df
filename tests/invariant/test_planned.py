"""The invariant under changing cache plans: a plan changes what is stored, never what is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from gateway.config.cache import CachePlanConfig
from gateway.config.cache_plan import CachePlan, parse_plan
from tests.effort import examples
from tests.invariant.machine import HUNT, Binary, Json, SystemAgainstLog, Text
from tests.invariant.world import PATH, going_on

SAMPLE: Final = json.loads((Path(__file__).parents[2] / "config" / "cache-plan.json").read_bytes())
GRANTS: Final = CachePlanConfig(warm_s=30.0, pin_share=0.9)


def plan_of(kinds: frozenset[str]) -> CachePlan:
    """A plan with these kinds of entries for the one stream."""
    entry: dict[str, Any] = {"route": "default", "stream": PATH, "bytes": 1, "reason": "so"}
    lists = {
        name: [entry | ({"idle_s": 1.0} if name == "lifetimes" else {})] if name in kinds else []
        for name in ("pin", "warm", "do_not_store", "lifetimes")
    }
    return parse_plan(json.dumps(SAMPLE | lists).encode())


PLANS: Final = [
    None,
    *map(
        plan_of,
        (
            frozenset(),
            frozenset({"pin"}),
            frozenset({"pin", "warm"}),
            frozenset({"warm", "lifetimes"}),
            frozenset({"do_not_store"}),
            frozenset({"do_not_store"}),
        ),
    ),
]


class _Planned:
    """Rules added to those of a system."""

    @rule(plan=st.sampled_from(PLANS))
    def take_a_plan(self: Any, plan: CachePlan | None) -> None:
        async def take() -> None:
            gateway = self.world.gateway
            gateway.planned.apply(plan, GRANTS, gateway.routes.routes)
            await going_on()

        self.world.run(take())


class PlannedJson(_Planned, Json):
    pass


class PlannedText(_Planned, Text):
    pass


class PlannedBinary(_Planned, Binary):
    pass


@pytest.mark.parametrize("machine", [PlannedJson, PlannedText, PlannedBinary])
def test_every_client_has_exactly_the_streams_bytes_under_any_plan(machine: type[SystemAgainstLog]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HUNT or examples(8, 120),
            derandomize=not HUNT,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            deadline=None,
        ),
    )
