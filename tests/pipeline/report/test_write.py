"""The report as a file: written completely or not at all, and the same for the same lake."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.pipeline import tables
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.report import write_report
from gateway.pipeline.report.figures import Figures, Percentiles
from gateway.pipeline.report.gather import Gold, gather
from gateway.pipeline.report.page import page
from tests.pipeline.report import made_gold


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(made_gold.PLAN))
    return file


def without_lots(figures: Figures) -> Figures:
    """The figures without those of merged sketches, which are partly random."""
    return replace(
        figures, first_byte=(), first_byte_all=Percentiles(), latency=(), delivery=(), delivery_all=Percentiles()
    )


def test_the_same_lake_makes_the_same_figures_and_they_the_same_report(
    gold: Gold, figures: Figures, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    steps: list[str] = []
    write_report(gold, out, title="One", plan=plan, progress=steps.append)
    written = out.read_text()
    assert written.startswith("<!doctype html>")
    assert written.endswith("</html>\n")
    assert "https://" not in written
    assert len(steps) >= 4
    assert steps[-1] == f"report: {out}"
    assert all("\n" not in step for step in steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.html"]
    again = gather(gold, steps.append)
    assert without_lots(again) == without_lots(figures)
    assert page(again, "One") == page(replace(again), "One")


@pytest.mark.parametrize(("min_span_s", "is_said"), [(86_400, True), (7 * 3600, False), (0, False)])
def test_a_short_log_is_called_short(tmp_path: Path, min_span_s: float, is_said: bool) -> None:
    out = tmp_path / "report.html"
    write_report(made_gold.gold(made_gold.tables_of(tables.TRAFFIC)), out, min_span_s=min_span_s)
    assert ("A short log: 7 h." in out.read_text()) == is_said


def test_what_is_out_of_date_is_said_first(tmp_path: Path) -> None:
    out, steps = tmp_path / "report.html", list[str]()
    gold = made_gold.gold(made_gold.tables_of(tables.TRAFFIC))
    write_report(gold, out, outdated=["The curve is old: run `pipeline curve`."], progress=steps.append)
    said = "<b>Not all of the lake.</b> The curve is old: run <code>pipeline curve</code>."
    assert said in out.read_text()
    assert out.read_text().index(said) < out.read_text().index("A short log")
    assert "report: The curve is old: run `pipeline curve`." in steps


def test_an_empty_lake_gives_a_report(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write_report(made_gold.gold({}), out)
    assert "Nothing to show" in out.read_text()
    assert "A short log" not in out.read_text()


@pytest.mark.parametrize(("curves", "drawn"), [((), "s3-fifo"), (("lru", "sieve"), "lru; sieve")])
def test_one_curve_is_drawn_unless_more_are_asked_for(tmp_path: Path, curves: tuple[str, ...], drawn: str) -> None:
    out = tmp_path / "report.html"
    write_report(made_gold.gold(made_gold.tables_of(tables.CURVE)), out, curves=curves)
    assert f'aria-label="Miss ratio by memory: reads. {drawn}."' in out.read_text()


def test_a_curve_that_was_not_measured_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for gold, known in (
        (made_gold.gold(made_gold.tables_of(tables.CURVE)), "lru, s3-fifo, sieve"),
        (made_gold.gold({}), "none"),
    ):
        with pytest.raises(PipelineFailed, match=f"^curve: lfu is none of those in the lake: {known}$"):
            write_report(gold, out, curves=["lfu"])
    assert not out.exists()


def test_a_report_that_cannot_be_written_is_one_line_and_leaves_the_old_one(tmp_path: Path, plan: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("what was there")
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": 2}')
    for place, its_plan, wanted in (
        (out, broken, "broken.json"),
        (out, tmp_path / "none.json", "none.json"),
        (tmp_path / "nowhere" / "report.html", plan, "there is no folder"),
        (tmp_path, plan, "is a folder"),
        (tmp_path / ("x" * 250 + ".html"), plan, os.strerror(36)),
    ):
        with pytest.raises(PipelineFailed, match=wanted) as failed:
            write_report(made_gold.gold({}), place, plan=its_plan)
        assert "\n" not in str(failed.value)
    assert out.read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.json", "plan.json", "report.html"]
