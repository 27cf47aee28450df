"""The guide shows what the script makes of the measured costs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from loadtest.capacity import page
from loadtest.capacity.check import Checked
from loadtest.capacity.costs import Measured
from tests.loadtest.capacity.plain import COSTS

HOME = Path(__file__).parents[3]
STALE = "run make capacity"


def test_the_guide_has_the_tables_of_the_measured_costs() -> None:
    guide = (HOME / "docs" / "guides" / "million-readers.md").read_text()
    assert page.page_with(guide, Measured.read(), Checked.read()) == guide, STALE


def test_the_chart_is_that_of_the_measured_costs() -> None:
    assert (HOME / "docs" / "million-readers.svg").read_text() == page.picture_of(Measured.read().costs), STALE


def test_the_chart_has_a_line_and_a_bar_for_each_number_of_streams() -> None:
    picture = page.picture_of(COSTS)
    tree = ElementTree.fromstring(picture)
    assert len(tree.findall("{*}polyline")) == len(page.STREAMS)
    assert "1 stream, " in picture
    assert "100,000 streams, " in picture


def test_costs_and_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    measured, checked = Measured(COSTS, "2026-11-30", "2 cores"), Checked.read()
    measured.write(tmp_path / "costs.json")
    checked.write(tmp_path / "checked.json")
    assert Measured.read(tmp_path / "costs.json") == measured
    assert Checked.read(tmp_path / "checked.json") == checked
