"""The cache plan's document: the sample and the schema beside it, and the line of every error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.cache_plan import MOST_ENTRIES, MOST_PLAN_BYTES, PlanError, parse_plan, plan_schema

CONFIG = Path(__file__).parents[2] / "config"
SAMPLE = CONFIG / "cache-plan.json"


def sample(**changes: Any) -> dict[str, Any]:
    """The sample's document with other values under these keys."""
    plan: dict[str, Any] = json.loads(SAMPLE.read_bytes())
    return plan | changes


def entry(stream: str = "/a", **changes: Any) -> dict[str, Any]:
    return {"route": "default", "stream": stream, "bytes": 1, "reason": "so"} | changes


def refusal(plan: object) -> str:
    """The one line with which a document is refused."""
    with pytest.raises(PlanError) as caught:
        parse_plan(plan if isinstance(plan, bytes) else json.dumps(plan).encode())
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_sample_is_a_plan_that_is_written_as_it_was_read() -> None:
    plan = parse_plan(SAMPLE)
    assert [one.stream for one in plan.pin] == ["/v1/stream/announcements"]
    assert plan.lifetimes[0].idle_s == 600
    assert json.loads(plan.text) == sample(
        lifetimes=[json.loads(SAMPLE.read_bytes())["lifetimes"][0] | {"idle_s": 600.0}]
    )
    assert parse_plan(plan.text.encode()) == plan


def test_the_schema_beside_the_sample_is_the_one_in_effect() -> None:
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
def test_what_is_wrong_is_named_in_one_line(changes: dict[str, Any], line: str) -> None:
    assert refusal(sample(**changes)).startswith(line)


def test_events_end_after_they_begin() -> None:
    made_from = sample()["made_from"] | {"last": "2026-11-19T00:00:00Z"}
    assert refusal(sample(made_from=made_from)) == "made_from: last is before first"


def test_a_file_is_named_in_its_refusal(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(PlanError, match=r"none\.json: No such file"):
        parse_plan(missing)
    missing.write_bytes(b"{")
    with pytest.raises(PlanError, match=r"none\.json: not JSON: "):
        parse_plan(missing)
    with pytest.raises(PlanError, match=r"^'no\\x00ne': embedded null byte$"):
        parse_plan(Path("no\0ne"))


def test_what_is_too_large_for_a_plan_is_not_looked_at() -> None:
    assert refusal(b" " * (MOST_PLAN_BYTES + 1)) == "larger than 16 MiB: not a cache plan"


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda key: json.dumps(sample(**{key: key})).encode()))
def test_any_other_document_is_refused_in_one_line_that_can_be_printed(data: bytes) -> None:
    try:
        parse_plan(data)
    except PlanError as error:
        assert str(error).isprintable()
