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
from importlib import resources

from gateway.pipeline.report import curve_panels, panels, wait_panels, wording
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.findings import Finding, findings
from gateway.pipeline.report.headlines import headlines
from gateway.pipeline.report.markup import Html, element
from gateway.pipeline.report.numbers import numbers
from gateway.pipeline.report.panel import Panel

_PARTS = (
    ("Offload", (panels.offload, panels.reads, panels.volume, panels.savers)),
    ("Memory", (curve_panels.bytes_curve, curve_panels.reads_curve, curve_panels.plan)),
    ("Time", (wait_panels.first_byte, wait_panels.delivery, wait_panels.latency)),
    (
        "Who and what",
        (panels.streams_by_bytes, panels.streams_by_requests, panels.fan_out, panels.routes),
    ),
)

_MOST_ITEMS = 5
"""Most sentences shown of one list; its numbers have more."""


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
        element(
            "header",
            element("h1", title),
            element("p", _reach(figures), class_="reach-of"),
        ),
        element(
            "main",
            _shortness(figures),
            _headlines(figures),
            _contents(found),
            [_part(figures, *part) for part in _PARTS],
            _wrong(found),
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


def _shortness(figures: Figures) -> Html | None:
    if not figures.is_short:
        return None
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
            _prose(
                "Nothing to show: no access log was taken in and aggregated, so there is nothing to count. "
                "Run `durable-gateway pipeline ingest`, then `aggregate`, then this again."
            ),
            class_="nothing headline-nothing",
        )
    return element(
        "section",
        [
            element(
                "div",
                element("strong", one.figure),
                element("span", one.says),
                element("small", one.made_of),
                class_="headline",
            )
            for one in said
        ],
        class_="headlines",
        aria_label="Headline figures",
    )


def _contents(found: list[Finding]) -> Html | None:
    wrong = [one for one in found if one.total]
    if not wrong:
        return None
    links = [
        element("li", element("a", f"{one.title} ({wording.count(one.total)})", href=f"#{one.name}")) for one in wrong
    ]
    return element(
        "nav", element("span", "To look at:"), element("ul", links), class_="look-at", aria_label="To look at"
    )


def _part(figures: Figures, title: str, makers: tuple[object, ...]) -> Html:
    cards = [_card(make(figures)) for make in makers if callable(make)]
    return element("section", element("h2", title), element("div", cards, class_="cards"), class_="part")


def _card(panel: Panel) -> Html:
    return element(
        "article",
        element("h3", panel.title),
        element("p", panel.about, class_="about"),
        panel.legend,
        element("p", _prose(panel.nothing), class_="nothing") if panel.body is None else panel.body,
        element("p", _prose(panel.note), class_="note") if panel.note else None,
        numbers(panel.numbers) if panel.numbers is not None else None,
        class_="card wide" if panel.is_wide else "card",
        id=panel.name,
    )


def _wrong(found: list[Finding]) -> Html:
    return element(
        "section",
        element("h2", "What to look at"),
        element("div", [_finding(one) for one in found], class_="cards"),
        class_="part",
    )


def _finding(finding: Finding) -> Html:
    if not finding.items:
        return element(
            "article",
            element("h3", finding.title),
            element("p", finding.about, class_="about"),
            element("p", finding.nothing, class_="nothing"),
            class_="card",
            id=finding.name,
        )
    items = finding.items[:_MOST_ITEMS]
    more = finding.total - len(items)
    return element(
        "article",
        element("h3", finding.title, " ", element("span", wording.count(finding.total), class_="badge")),
        element("p", finding.about, class_="about"),
        element("ul", [element("li", item) for item in items], class_="items"),
        element(
            "p", f"And {wording.count(more)} more: the worst {len(finding.items)} are among the numbers.", class_="note"
        )
        if more > 0
        else None,
        element("div", element("h4", "What to do"), [element("p", one) for one in finding.advice], class_="advice"),
        numbers(finding.numbers),
        class_="card wide",
        id=finding.name,
    )


def _prose(text: str) -> list[Html | str]:
    """A text of this package, with the parts between backticks as code."""
    return [element("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))]


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
