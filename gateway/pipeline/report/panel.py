"""A card of the report: its heading, its chart or list, its legend, and the numbers behind it.

A card without data says so, and why, instead of showing an empty chart.  A cell of the numbers has the value as people
read it.  The numbers can be saved as CSV, which has values as measured; it is in the page, as the target of a link.
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
    """A column of numbers: its heading, the field of a row (or a function of the row), and how values are written."""

    head: str
    of: str | Callable[[Row], Raw]
    write: Callable[[float | None], str] | None = None
    """None if values are text."""

    def value(self, row: Row) -> Raw:
        """The value in that row."""
        found: Raw = row[self.of] if isinstance(self.of, str) else self.of(row)
        return found


BEGAN = Column("From (UTC)", lambda row: wording.moment(row["began"]))
"""The beginning of a step of time."""


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    look: str
    """The style sheet's classes of its sample: `area`, `line` with a dash, `dot` or `out`; and a colour."""
    label: str
    whole: str = ""
    """The total."""


def named(*heads: str, write: Callable[[float | None], str] | None = None) -> list[Column]:
    """Columns of the fields that are called what their headings say."""
    return [Column(head, head.lower().replace(" ", "_"), write) for head in heads]


def columns_of(series: Iterable[Series], write: Callable[[float | None], str]) -> list[Column]:
    """The columns of the amounts that a chart draws."""
    return [Column(one.label, one.field, write) for one in series]


def legend(kind: str, series: Iterable[Series]) -> list[Key]:
    """The legend of series that are drawn as an `area`, a `line` or a `dot` each."""
    dashed = kind == "line"
    return [Key(f"{kind} {one.dash} {one.colour}" if dashed else f"{kind} {one.colour}", one.label) for one in series]


@dataclass(frozen=True, slots=True)
class Content:
    """What a card shows."""

    body: Chart | Html
    says: str = ""
    """What a chart shows, for a screen reader."""
    keys: Sequence[Key] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    """The numbers behind it."""
    note: str = ""
    badge: str = ""
    """The number of problems."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A card, and how it is made: without content, `nothing` says why.

    In the texts `{step}` is the step of time, and `{no_reads}` says why there are no reads.
    """

    name: str
    title: str
    about: str
    make: Callable[[Figures], Content | None]
    nothing: str = "{no_reads}"
    is_wide: bool = False


def card(panel: Panel, content: Content | None, texts: Mapping[str, str]) -> Html:
    """The card as HTML; `texts` are filled into its own."""
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
    """A text of this package, with the parts between backticks as code."""
    return joined([element("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))])


def shortened(text: str, most: int = _MOST_CHARS) -> str:
    """Text with its middle left out if it is too long; names differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 :]}"


def name(text: str) -> Html:
    """An untrusted name, marked as code; if it is shortened, its tooltip has it in full."""
    short = shortened(text)
    return element("bdi", element("code", short or "(empty)"), title=text if short != text else None)


def _numbers(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """A table of these rows, collapsed."""
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
        # <bdi>: a name written from right to left must not reorder the text next to it.
        return element("td", element("bdi", wording.NONE if value is None else str(value)))
    return element("td", column.write(value), class_="number")


def _csv(columns: Sequence[Column], values: Sequence[Sequence[Raw]]) -> str:
    """A data URL (RFC 2397) of CSV (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([column.head for column in columns])
    writer.writerows([_cleaned(value) if isinstance(value, str) else value for value in row] for row in values)
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.getvalue().encode()).decode()}"


def _cleaned(text: str) -> str:
    """The text; one that a spreadsheet would take for a formula is kept from it."""
    return f"'{shown(text)}" if text.startswith(_FORMULAS) else shown(text)
