"""The report as a file: written completely or not at all, and the same for the same lake."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake
from gateway.pipeline.report import write_report
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.gather import gather
from gateway.pipeline.report.page import page
from tests.pipeline.report import made_lake


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(made_lake.PLAN))
    return file


def without_lots(figures: Figures) -> Figures:
    """The figures without those of merged sketches, which are partly random."""
    return replace(figures, first_byte=(), first_byte_all=None, latency=(), delivery=(), delivery_all=None)


def test_the_same_lake_makes_the_same_figures_and_they_the_same_report(
    spark: SparkSession, lake: Lake, figures: Figures, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    steps: list[str] = []
    write_report(spark, lake, out, title="One", plan=plan, progress=steps.append)
    written = out.read_text()
    assert written.startswith("<!doctype html>")
    assert written.endswith("</html>\n")
    assert "https://" not in written
    assert len(steps) >= 4
    assert steps[-1] == f"report: {out}"
    assert all("\n" not in step for step in steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.html"]
    again = gather(spark, lake, steps.append)
    assert without_lots(again) == without_lots(figures)
    assert page(again, "One") == page(replace(again), "One")


def test_an_empty_lake_gives_a_report(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write_report(spark, Lake(str(tmp_path / "lake")), out)
    assert "Nothing to show" in out.read_text()


def test_a_report_that_cannot_be_written_is_one_line_and_leaves_the_old_one(
    spark: SparkSession, tmp_path: Path, plan: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
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
            write_report(spark, lake, place, plan=its_plan)
        assert "\n" not in str(failed.value)
    assert out.read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.json", "plan.json", "report.html"]
