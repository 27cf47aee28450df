"""Drawings: what Vega-Lite draws gets into the page without anything that could load or run, and texts stay texts."""

from __future__ import annotations

import re

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.drawing import figure
from tests.pipeline.report.test_markup import Read

HOSTILE = "</text><script>alert(1)</script><a href='x' onclick=\"y\">&amp;\u202e\x00"


def test_a_hostile_name_is_a_text() -> None:
    rows = [{"name": HOSTILE, "says": "<b>says</b>", "reads": 3}]
    chart = charts.bars(axes.amounts([3]), rows, [Series("reads", "Reads", "tape")])
    read = Read()
    read.feed(figure(chart, HOSTILE, is_wide=True))
    assert {tag for tag, _ in read.tags} <= {"figure", "svg", "g", "path", "rect", "line", "text", "circle"}
    names = {name for _, attributes in read.tags for name, _ in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "href", "xlink:href", "id")}
    assert read.text.count("<b>says</b>") == 3
    # The name is cut to its room, and the invisible is shown.
    assert read.text.count("</text><script>alert(1)</script>") == 3
    assert "\u202e" not in read.text


def test_colours_are_the_style_sheets() -> None:
    points = [{"x": x, "y": y, "key": "one"} for x, y in ((0.0, 0.5), (60_000.0, None), (120_000.0, 0.2))]
    chart = charts.lines(axes.times(0, 120), axes.parts([0.5]), points, [Series("one", "One", "tape", "long")])
    made = figure(chart, "says", is_wide=False)
    assert made.count("<svg ") == 2
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', made)) <= {
        "none", "transparent", "var(--tape)", "var(--quiet)", "var(--line)", "var(--edge)"
    }  # fmt: skip
    assert made.startswith('<figure class="frame" role="img" aria-label="says">')


def test_the_same_chart_is_drawn_alike() -> None:
    points = [{"x": x, "y": y, "key": "one"} for x, y in ((0.0, 0.5), (60_000.0, 0.2))]
    chart = charts.lines(axes.times(0, 120), axes.parts([0.5]), points, [Series("one", "One", "tape")])
    assert figure(chart, "says", is_wide=False) == figure(chart, "says", is_wide=False)
