"""A card of the report: its heading, its chart or list, its legend, and a table of its numbers.

A card without data shows the reason in place of an empty chart.  The table has rounded values.  It can be saved as CSV
with the exact values; the CSV is part of the page, as the target of a link.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.pipeline import wording
from gateway.pipeline.report.charts import Chart, Series
from gateway.pipeline.report.drawing import figure
from gateway.pipeline.report.figures import Figures, Row
from gateway.pipeline.report.markup import Child, Html, element, joined, shown

Raw = str | int | float | None

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_MOST_CHARS = 120


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: its heading, the field of a row (or a function of the row), and the format of values."""

    head: str
    of: str | Callable[[Row], Raw]
    write: Callable[[float | None], str] | None = None
    """Formats a value; None if the values are text."""

    def value(self, row: Row) -> Raw:
        """Return the value in that row."""
        found: Raw = row[self.of] if isinstance(self.of, str) else self.of(row)
        return found


BEGAN = Column("From (UTC)", lambda row: wording.moment(row["began"]))
"""The beginning of a step of time."""


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    look: str
    """Classes of the style sheet for the sample: `area`, `line` with a dash, `dot` or `out`; and a colour."""
    label: str
    whole: str = ""
    """The total over the whole time."""


def named(*heads: str, write: Callable[[float | None], str] | None = None) -> list[Column]:
    """Return columns whose fields have the same names as the headings."""
    return [Column(head, head.lower().replace(" ", "_"), write) for head in heads]


def columns_of(series: Iterable[Series], write: Callable[[float | None], str]) -> list[Column]:
    """Return the columns of the amounts that a chart draws."""
    return [Column(one.label, one.field, write) for one in series]


def legend(kind: str, series: Iterable[Series]) -> list[Key]:
    """Return the legend of series that are drawn as `area`, `line` or `dot`."""
    dashed = kind == "line"
    return [Key(f"{kind} {one.dash} {one.colour}" if dashed else f"{kind} {one.colour}", one.label) for one in series]


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a card."""

    body: Chart | Html
    says: str = ""
    """Description of a chart for screen readers."""
    keys: Sequence[Key] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    """The rows of the table of numbers."""
    note: str = ""
    badge: str = ""
    """The number of problems, next to the heading."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A card and the function that makes its content.  Without content, the card shows the text `nothing`.

    In the texts, `{step}` stands for the length of a time step, and `{no_reads}` for the reason why there are no reads.
    """

    name: str
    title: str
    about: str
    make: Callable[[Figures], Content | None]
    nothing: str = "{no_reads}"
    is_wide: bool = False


def card(panel: Panel, content: Content | None, texts: Mapping[str, str]) -> Html:
    """Return the card as HTML.  `texts` has the values of `{step}` and `{no_reads}`."""
    parts: list[Child] = [element("p", prose(panel.nothing.format_map(texts)), class_="nothing")]
    badge = None
    if content is not None:
        badge = [" ", element("span", content.badge, class_="badge")] if content.badge else None
        chart = content.body
        keys = [
            element(
                "li",
                element("i", class_=f"swatch {key.look}", aria_hidden="true"),
                key.label,
                element("b", key.whole) if key.whole else None,
            )
            for key in content.keys
        ]
        parts = [
            element("ul", keys, class_="legend") if keys else None,
            chart
            if isinstance(chart, Html)
            else figure(chart, f"{panel.title}. {content.says}", is_wide=panel.is_wide),
            element("p", prose(content.note), class_="note") if content.note else None,
            _numbers(panel.name, content.columns, content.rows) if content.rows else None,
        ]
    return element(
        "article",
        element("h3", panel.title, badge),
        element("p", panel.about.format_map(texts), class_="about"),
        parts,
        class_="card wide" if panel.is_wide or badge else "card",
        id=panel.name,
    )


def prose(text: str) -> Html:
    """Return a text of this package as HTML, with the parts between backticks as code."""
    return joined([element("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))])


def shortened(text: str, most: int = _MOST_CHARS) -> str:
    """Shorten text that is too long by leaving out its middle, because names differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 :]}"


def name(text: str) -> Html:
    """Return an untrusted name, marked as code.  A shortened name has the full name as its tooltip."""
    short = shortened(text)
    return element("bdi", element("code", short or "(empty)"), title=text if short != text else None)


def _numbers(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """Return a collapsed table of these rows."""
    values = [[column.value(row) for column in columns] for row in rows]
    heads = [element("th", column.head, scope="col", class_="number" if column.write else None) for column in columns]
    body = [element("tr", [_cell(*cell) for cell in zip(columns, row, strict=True)]) for row in values]
    save = element("a", "Save as CSV", href=_csv(columns, values), download=f"{name}.csv", class_="csv")
    table = element("table", element("thead", element("tr", heads)), element("tbody", body), id=f"numbers-{name}")
    label = f"Numbers: {name.replace('-', ' ')}"
    return element(
        "details",
        element("summary", f"Numbers ({wording.many(len(rows), 'row')})"),
        element("p", save, class_="tools"),
        element("div", table, class_="scroll", tabindex="0", role="region", aria_label=label),
        class_="numbers",
    )


def _cell(column: Column, value: Raw) -> Html:
    if column.write is None or isinstance(value, str):
        # With <bdi>, a name written from right to left does not reorder the text next to it.
        return element("td", element("bdi", wording.NONE if value is None else str(value)))
    return element("td", column.write(value), class_="number")


def _csv(columns: Sequence[Column], values: Sequence[Sequence[Raw]]) -> str:
    """Return a data URL (RFC 2397) with CSV (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([column.head for column in columns])
    writer.writerows([_cleaned(value) if isinstance(value, str) else value for value in row] for row in values)
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.getvalue().encode()).decode()}"


def _cleaned(text: str) -> str:
    """Prefix a text that a spreadsheet would take for a formula with an apostrophe."""
    return f"'{shown(text)}" if text.startswith(_FORMULAS) else shown(text)
