"""The cache plan document: the sample, its schema, and the error line of each mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.cache_plan import MOST_ENTRIES, MOST_PLAN_BYTES, parse_plan, plan_schema
from gateway.config.errors import PlanError

CONFIG = Path(__file__).parents[2] / "config"
SAMPLE = CONFIG / "cache-plan.json"


def sample(**changes: Any) -> dict[str, Any]:
    """The sample document with other values for these keys."""
    plan: dict[str, Any] = json.loads(SAMPLE.read_bytes())
    return plan | changes


def entry(stream: str = "/a", **changes: Any) -> dict[str, Any]:
    return {"route": "default", "stream": stream, "bytes": 1, "reason": "so"} | changes


def error_line(plan: object) -> str:
    """The error line for an invalid document."""
    with pytest.raises(PlanError) as caught:
        parse_plan(plan if isinstance(plan, bytes) else json.dumps(plan).encode())
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_sample_plan_survives_a_round_trip() -> None:
    plan = parse_plan(SAMPLE)
    assert [one.stream for one in plan.pin] == ["/v1/stream/announcements"]
    assert plan.lifetimes[0].idle_s == 600
    assert json.loads(plan.text) == sample(
        lifetimes=[json.loads(SAMPLE.read_bytes())["lifetimes"][0] | {"idle_s": 600.0}]
    )
    assert parse_plan(plan.text.encode()) == plan


def test_the_committed_schema_is_current() -> None:
    assert json.loads((CONFIG / "cache-plan.schema.json").read_bytes()) == plan_schema()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"version": 2}, "version: should be 1, got 2"),
        ({"pins": []}, "pins: unknown key"),
        ({"target_hit_ratio": "0.9"}, 'target_hit_ratio: should be a valid number, got "0.9"'),
        ({"target_hit_ratio": 1.5}, "target_hit_ratio: should be less than or equal to 1, got 1.5"),
        ({"memory": {}}, "memory.cache_bytes: is required (and 4 more)"),
        ({"pin": [entry(), entry("/b", bytes=-1)]}, "pin[1].bytes: should be greater than or equal to 0, got -1"),
        (
            {"pin": [entry(route="No Route")]},
            "pin[0].route: a route's name is lower-case letters, digits, single - or _",
        ),
        ({"pin": [entry("relative")]}, "pin[0].stream: expected a path, and query where there is one"),
        ({"pin": [entry(idle_s=3)]}, "pin[0].idle_s: unknown key"),
        ({"lifetimes": [entry()]}, "lifetimes[0].idle_s: is required"),
        ({"warm": [entry(), entry()]}, "warm: names /a of route default twice"),
        ({"pin": [entry()], "do_not_store": [entry()]}, "pin: /a of route default is in do_not_store too"),
        ({"made_at": "2026-11-21T06:00:00"}, "made_at: should have timezone info"),
        (
            {"pin": [entry(f"/{n}") for n in range(MOST_ENTRIES + 1)]},
            f"pin: Tuple should have at most {MOST_ENTRIES} items",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(changes: dict[str, Any], line: str) -> None:
    assert error_line(sample(**changes)).startswith(line)


@pytest.mark.parametrize(
    ("hours", "mark", "is_short"),
    [(0.03, None, True), (23, None, True), (23.99, None, False), (0.03, False, False), (48, True, True)],
)
def test_a_plan_of_less_than_a_day_is_short_unless_it_says_otherwise(
    hours: float, mark: bool | None, is_short: bool
) -> None:
    first = datetime(2026, 11, 20, tzinfo=UTC)
    made_from = {
        "first": first.isoformat(),
        "last": (first + timedelta(hours=hours)).isoformat(),
        "lines": 1,
        "nodes": [],
        "is_short": mark,
    }
    assert parse_plan(json.dumps(sample(made_from=made_from)).encode()).is_short == is_short


def test_the_last_event_may_not_precede_the_first() -> None:
    made_from = sample()["made_from"] | {"last": "2026-11-19T00:00:00Z"}
    assert error_line(sample(made_from=made_from)) == "made_from: last is before first"


def test_an_error_names_the_plan_file(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(PlanError, match=r"none\.json: No such file"):
        parse_plan(missing)
    missing.write_bytes(b"{")
    with pytest.raises(PlanError, match=r"none\.json: not JSON: "):
        parse_plan(missing)
    with pytest.raises(PlanError, match=r"^'no\\x00ne': embedded null byte$"):
        parse_plan(Path("no\0ne"))


def test_a_document_too_large_for_a_plan_is_not_parsed() -> None:
    assert error_line(b" " * (MOST_PLAN_BYTES + 1)) == "larger than 16 MiB: not a cache plan"


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda key: json.dumps(sample(**{key: key})).encode()))
def test_any_other_document_fails_with_one_printable_line(data: bytes) -> None:
    try:
        parse_plan(data)
    except PlanError as error:
        assert str(error).isprintable()
