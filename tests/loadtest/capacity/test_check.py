from __future__ import annotations

import pytest

from loadtest.capacity.check import Figure, Point
from loadtest.capacity.model import Demand
from tests.loadtest.capacity.plain import COSTS, MIB


def test_a_point_is_predicted_for_one_process_without_a_budget_for_cached_bytes() -> None:
    point = Point(Demand(9_000, 1, 2.0, sse_lifetime_s=20.0), Figure(0.2, 90 * MIB, 40 * MIB))
    found = point.predicted(COSTS)
    assert found.memory_bytes == pytest.approx(60 * MIB + 9_000 * 2_500 + 10_000)
    assert found.kernel_bytes == pytest.approx(9_001 * 4_000)
    assert found.processor == pytest.approx(9_000 * 2 * 8e-6 + 500 * 100e-6 + 2 * 60e-6 + 400e-6 / 18 + 5e-3, rel=1e-6)
