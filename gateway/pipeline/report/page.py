"""Figures as one self-contained HTML page: the style is inline, charts are SVG, fonts are the reader's, and there is
no script.

The page's content security policy allows only that style, which is named by its hash.  So the page makes no requests,
and even if markup in a stream's name got through, it could not run anything.

The same figures make the same page, byte for byte.  (The same lake makes almost the same figures: sketches of very many
values are merged at random, so percentiles may differ within their error.)
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

from gateway.pipeline.report import curve_panels, panels, wait_panels, wording
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.findings import findings
from gateway.pipeline.report.headlines import headlines
from gateway.pipeline.report.markup import Html, element
from gateway.pipeline.report.panel import Panel, card, prose

_PARTS = (
    ("Offload", (panels.offload, panels.reads, panels.volume, panels.savers)),
    ("Memory", (curve_panels.bytes_curve, curve_panels.reads_curve, curve_panels.plan)),
    ("Time", (wait_panels.first_byte, wait_panels.delivery, wait_panels.latency)),
    ("Who and what", (panels.streams_by_bytes, panels.streams_by_requests, panels.fan_out, panels.routes)),
)


def page(figures: Figures, title: str) -> str:
    """The whole page."""
    style = (resources.files("gateway.pipeline.report") / "report.css").read_text("utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src 'none'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    found = findings(figures)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("header", element("h1", title), element("p", _reach(figures), class_="reach-of")),
        element(
            "main",
            _shortness(figures) if figures.is_short else None,
            _headlines(figures),
            _contents([one for one in found if one.badge]),
            [_part(name, [make(figures) for make in makers]) for name, makers in _PARTS],
            _part("What to look at", found),
        ),
        element("footer", element("p", "Made by durable-gateway from its own access log. Times are UTC.")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _reach(figures: Figures) -> str:
    if figures.first is None or figures.last is None:
        return "There are no figures of any time."
    return (
        f"{wording.moment(figures.first)} to {wording.moment(figures.last + 60)} UTC, "
        f"{wording.many(figures.requests, 'request')} on {wording.many(len(figures.routes), 'route')}"
    )


def _shortness(figures: Figures) -> Html:
    return element(
        "p",
        element("b", f"A short log: {wording.span(figures.span_s)}."),
        " Its figures say little about a day: caches fill in that time, rare streams do not occur, and there are no "
        "busy and quiet hours to compare.",
        class_="short-log",
    )


def _headlines(figures: Figures) -> Html:
    said = headlines(figures)
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
        element(
            "div",
            element("strong", one.figure),
            element("span", one.says),
            element("small", one.made_of),
            class_="headline",
        )
        for one in said
    ]
    return element("section", items, class_="headlines", aria_label="Headline figures")


def _contents(wrong: Iterable[Panel]) -> Html | None:
    links = [element("li", element("a", f"{one.title} ({one.badge})", href=f"#{one.name}")) for one in wrong]
    if not links:
        return None
    return element(
        "nav", element("span", "To look at:"), element("ul", links), class_="look-at", aria_label="To look at"
    )


def _part(title: str, cards: Iterable[Panel]) -> Html:
    return element(
        "section",
        element("h2", title),
        element("div", [card(one) for one in cards], class_="cards"),
        class_="part",
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
