"""Generated parts of Markdown pages: the text between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class NoSuchPart(ValueError):
    """The page does not have the part's two marks."""


def with_part(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of the part `name`.  Raises NoSuchPart."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise NoSuchPart(f"the page has no part between {begin.strip()} and {end}")
    return f"{before}{begin}{text}{end}{after}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.  Cells must not contain line feeds; vertical bars are escaped."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
