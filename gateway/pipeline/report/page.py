"""Write figures as one self-contained HTML page.

The style is inline, the charts are SVG, and there is no script.  The fonts are those of the reader's browser.

The page's content security policy allows nothing but the style, by its hash.  So the page makes no requests.  Even if
markup in a stream's name got into the page, it could not run anything.

The same figures give the same page, byte for byte.  The same lake gives almost the same figures: large sketches are
merged with randomness, so percentiles may differ within their error.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import astuple
from importlib import resources
from string import Template
from typing import Final

from gateway.pipeline import wording
from gateway.pipeline.report import curve_panels, findings, panels
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.headlines import headlines
from gateway.pipeline.report.markup import Html, element, escaped, joined
from gateway.pipeline.report.panel import card, prose

PARTS: Final = {
    "Offload": panels.OFFLOAD_PANELS,
    "Memory": curve_panels.PANELS,
    "Time": panels.TIME_PANELS,
    "Who and what": panels.WHO_PANELS,
    "What to look at": findings.PANELS,
}
"""The parts of the report with their cards, in order."""


def page(figures: Figures, title: str) -> str:
    """Return the whole page."""
    files = resources.files("gateway.pipeline.report")
    style = (files / "report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; script-src 'none'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    step = wording.span(figures.step_s)
    texts = {
        "step": {"60 s": "minute", "60 min": "hour", "24 h": "day"}.get(step, step),
        "no_reads": "The log has requests, but no reads among them."
        if figures.requests
        else "There are no figures of traffic: no lines of an access log were taken in and aggregated.",
    }
    parts = []
    for name, cards in PARTS.items():
        shown = [card(one, one.make(figures), texts) for one in cards]
        parts.append(element("section", element("h2", name), element("div", shown, class_="cards"), class_="part"))
    main = [_remarks(figures), _headlines(figures), _problems(figures), parts]
    return Template((files / "report.html").read_text("utf-8")).substitute(
        policy=escaped(policy), style=style, title=escaped(title), reach=escaped(_reach(figures)), main=joined(main)
    )


def _reach(figures: Figures) -> str:
    if figures.first is None or figures.last is None:
        return "There are no figures of any time."
    return (
        f"{wording.moment(figures.first)} to {wording.moment(figures.last + 60)} UTC, "
        f"{wording.many(figures.requests, 'request')} on {wording.many(figures.route_count, 'route')}"
    )


def _remarks(figures: Figures) -> list[Html]:
    """Return warnings about the figures: parts that are out of date, and a short log."""
    said = [("Not all of the lake.", f" {one}") for one in figures.outdated]
    if figures.is_short:
        why = (
            " Its figures say little about a day: caches fill in that time, rare streams do not occur, and there are "
            "no busy and quiet hours to compare."
        )
        said.append((f"A short log: {wording.span(figures.span_s)}.", why))
    return [element("p", element("b", what), prose(why), class_="remark") for what, why in said]


def _headlines(figures: Figures) -> Html:
    said = list(headlines(figures))
    if not said:
        return element(
            "p",
            prose(
                "Nothing to show: no access log was taken in and aggregated, so there is nothing to count. "
                "Run `durable-gateway pipeline ingest`, then `aggregate`, then this again."
            ),
            class_="nothing headline-nothing",
        )
    items = [
        element("div", *map(element, ("strong", "span", "small"), astuple(one)), class_="headline") for one in said
    ]
    return element("section", items, class_="headlines", aria_label="Headline figures")


def _problems(figures: Figures) -> Html | None:
    """Return links to the problems."""
    links = [
        element("li", element("a", f"{one.title} ({wording.count(found.total)})", href=f"#{one.name}"))
        for one in findings.FINDINGS
        if (found := figures.found.get(one.name)) and found.total
    ]
    if not links:
        return None
    return element(
        "nav", element("span", "To look at:"), element("ul", links), class_="look-at", aria_label="To look at"
    )
