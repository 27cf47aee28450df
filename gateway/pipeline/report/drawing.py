"""Draw charts as SVG with Vega-Lite.  This happens when the report is written, so the page needs no script.

Each chart is drawn in several widths.  The style sheet shows the one that fits the card.

Stream names in a chart are untrusted.  The SVG is therefore parsed and written again with only the elements and
attributes that this module lists, and `markup` escapes every text.  Nothing that could load a resource, link to a page
or run as a script gets into the report.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

import vl_convert

from gateway.pipeline.report.charts import Chart
from gateway.pipeline.report.markup import Html, element

_WIDTHS: Final = (("narrow", 340), ("medium", 620), ("wide", 1120))
"""The name and the width in pixels of each drawing."""
_DRAWN: Final = frozenset({"circle", "g", "line", "path", "rect", "text", "tspan"})
_PLACES: Final = frozenset({"d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "transform"})
_LOOKS: Final = frozenset(
    {"fill", "fill-opacity", "font-size", "font-weight", "opacity", "stroke", "stroke-dasharray", "stroke-linecap"}
    | {"stroke-linejoin", "stroke-miterlimit", "stroke-opacity", "stroke-width", "text-anchor"}
)
_HIDDEN: Final = frozenset({"background", "foreground"})
_LONG: Final = re.compile(r"(\.\d)\d+")


def begin() -> None:
    """Start the drawing engine.  The first drawing would otherwise wait half a second for it."""
    vl_convert.vegalite_to_svg({"mark": "point", "data": {"values": []}})


def figure(chart: Chart, says: str, *, is_wide: bool) -> Html:
    """Draw the chart in every width that its card can have.  `says` is the description for screen readers."""
    drawn = []
    for name, width in _WIDTHS if is_wide else _WIDTHS[:-1]:
        root = ElementTree.fromstring(vl_convert.vegalite_to_svg(chart(width)))
        look = {"class_": f"chart {name}", "viewBox": root.get("viewBox"), "aria_hidden": "true"}
        drawn.append(element("svg", [_kept(one) for one in root], **look))
    return element("figure", drawn, class_="frame", role="img", aria_label=says)


def _kept(node: ElementTree.Element) -> Html | None:
    name = node.tag.rpartition("}")[2]
    # Vega leaves labels that would overlap others in the SVG, but hides them.
    if name not in _DRAWN or node.get("class") in _HIDDEN or node.get("opacity") == "0":
        return None
    # Round positions to a tenth of a pixel.  Paths make up most of a drawing's size.
    kept = {
        key: _LONG.sub(r"\1", value) if key in _PLACES else value
        for key, value in node.items()
        if key in _PLACES | _LOOKS
    }
    inner = [node.text if name in ("text", "tspan") else None, *(_kept(one) for one in node)]
    if name == "g":
        if not any(inner):
            return None
        # Vega's class names of a group: a kind of mark, and whether the group is part of an axis or of the data.
        kept["class"] = " ".join(node.get("class", "").split()[:2])
    return element(name, inner, **{key: value or None for key, value in kept.items()})
