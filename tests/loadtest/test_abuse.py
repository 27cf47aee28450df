"""Good clients beside abusive ones and hostile origins, in short: nothing is refused or wrong, memory stays bounded.

What the good clients notice in time is measured by `make abuse`; here only counts are judged.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.abuse import abusers
from loadtest.abuse.report import DOCS, document, faults, percentile, slow, tables
from loadtest.abuse.stage import Phase, Plan, Result, run

SHORT = {"seconds": 2.5, "good": 20, "abusive": 100, "flood": 0.2, "warm_s": 1.0, "is_pinned": False}


def test_good_clients_are_served_beside_abusive_ones(tmp_path: Path) -> None:
    figures = document(run(Plan(**SHORT), tmp_path))  # type: ignore[arg-type]
    assert faults(figures) == [], figures["examples"]
    assert figures["got"].keys() == abusers.KINDS.keys()


def test_good_clients_are_served_beside_hostile_origins(tmp_path: Path) -> None:
    figures = document(run(Plan(**SHORT, kinds=()), tmp_path))  # type: ignore[arg-type]
    assert faults(figures) == [], figures["examples"]
    assert len(figures["got"]) == 10


def result(**figures: int) -> Result:
    """A run in which every kind of request had one answer in a second, and what is said otherwise."""
    found = Result(Plan(1.0), Phase(), Phase(), {"storms": {"tries": 1}})
    for phase in (found.alone, found.beside):
        for kind in ("hit", "miss", "append", "long-poll", "sse", "join"):
            phase.tally.seconds[kind].append(1.0)
    found.beside.tally.refused["hit"] = figures.get("refused", 0)
    found.beside.tally.wrong["sse"] = figures.get("wrong", 0)
    found.beside.peak_bytes = figures.get("peak_bytes", 0)
    found.got["storms"]["tries"] = figures.get("tries", 1)
    return found


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, []),
        ({"refused": 2}, ["2 refused: hit beside"]),
        ({"wrong": 1}, ["1 wrong: sse beside"]),
        ({"peak_bytes": 1 << 30}, ["1074 MB of memory, over 537 MB"]),
        ({"tries": 0}, ["storms did not strike"]),
    ],
)
def test_what_must_not_be_is_said(figures: dict[str, int], said: list[str]) -> None:
    assert faults(document(result(**figures))) == said


def test_a_kind_without_an_answer_is_a_fault() -> None:
    found = result()
    found.beside.tally.seconds["join"].clear()
    assert faults(document(found)) == ["no answer: join beside"]


def test_a_p99_that_grows_above_its_bound_is_said() -> None:
    found = result()
    assert slow(document(found)) == []
    found.beside.tally.seconds["miss"] = [1.51]
    assert slow(document(found)) == ["miss: p99 is 1.51 x"]


def test_times_are_not_judged_on_a_busy_machine() -> None:
    found = result()
    found.alone.waited = 0.06
    found.beside.tally.seconds["miss"] = [1.51]
    assert slow(document(found)) == ["times are not judged: other work had the cores"]


def test_a_percentile_is_the_value_that_so_many_do_not_exceed() -> None:
    assert [percentile(range(100), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert percentile([], 0.5) == 0


def test_the_page_shows_the_run_that_is_kept() -> None:
    kept = orjson.loads((DOCS / "abuse.json").read_bytes())
    page = (DOCS / "abuse.md").read_text()
    for name, text in tables(kept).items():
        assert f"<!-- {name} -->\n{text}<!-- /{name} -->" in page
