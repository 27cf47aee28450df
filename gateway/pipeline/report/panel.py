"""A card of the report: its heading, its chart or list, its legend, and the numbers behind it.

A card without data says so, and why, instead of showing an empty chart.  A cell of the numbers has the value as people
read it.  The numbers can be saved as CSV, which has values as measured; it is in the page, as the target of a link.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from gateway.pipeline.report import wording
from gateway.pipeline.report.charts import Chart
from gateway.pipeline.report.drawing import figure
from gateway.pipeline.report.figures import Row
from gateway.pipeline.report.markup import Html, element, joined, shown

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


@dataclass(frozen=True, slots=True)
class Panel:
    """A card; if `body` is None, `nothing` says why."""

    name: str
    title: str
    about: str
    nothing: str
    is_wide: bool = False
    body: Html | None = None
    legend: Html | None = None
    note: str = ""
    numbers: Html | None = None
    badge: str = ""

    def drawn(
        self,
        chart: Chart,
        says: str,
        keys: Iterable[Key],
        columns: Sequence[Column],
        rows: Sequence[Row],
        note: str = "",
    ) -> Self:
        """With its chart, which `says` describes to a screen reader, and the numbers behind it."""
        return replace(
            self,
            body=figure(chart, f"{self.title}. {says}", is_wide=self.is_wide),
            legend=_legend(list(keys)),
            note=note,
            numbers=numbers(self.name, columns, rows),
        )


def card(panel: Panel) -> Html:
    """The card as HTML."""
    return element(
        "article",
        element("h3", panel.title, [" ", element("span", panel.badge, class_="badge")] if panel.badge else None),
        element("p", panel.about, class_="about"),
        panel.legend,
        element("p", prose(panel.nothing), class_="nothing") if panel.body is None else panel.body,
        element("p", prose(panel.note), class_="note") if panel.note else None,
        panel.numbers,
        class_="card wide" if panel.is_wide else "card",
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


def numbers(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """A table of these rows, collapsed."""
    values = [[column.value(row) for column in columns] for row in rows]
    heads = [element("th", column.head, scope="col", class_="number" if column.write else None) for column in columns]
    body = [element("tr", [_cell(*cell) for cell in zip(columns, row, strict=True)]) for row in values]
    return element(
        "details",
        element("summary", f"Numbers ({wording.many(len(rows), 'row')})"),
        element(
            "p",
            element("a", "Save as CSV", href=_csv(columns, values), download=f"{name}.csv", class_="csv"),
            class_="tools",
        ),
        element(
            "div",
            element("table", element("thead", element("tr", heads)), element("tbody", body), id=f"numbers-{name}"),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=f"Numbers: {name.replace('-', ' ')}",
        ),
        class_="numbers",
    )


def _legend(keys: Sequence[Key]) -> Html | None:
    """The meaning of colours, dashes and shapes."""
    items = [
        element(
            "li",
            element("i", class_=f"swatch {key.look}", aria_hidden="true"),
            key.label,
            element("b", key.whole) if key.whole else None,
        )
        for key in keys
    ]
    return element("ul", items, class_="legend") if items else None


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
    writer.writerows([_field(value) for value in row] for row in values)
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.getvalue().encode()).decode()}"


def _field(value: Raw) -> Raw:
    """A value; text that a spreadsheet would take for a formula is kept from it."""
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(_FORMULAS) else shown(value)
