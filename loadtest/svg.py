"""SVG helpers for pictures in the docs: text and a frame, legible on white and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

INK: Final = "#7a828a"
_FONT: Final = "font-family='system-ui, sans-serif'"


def text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "400", size: int = 11) -> str:
    """Text at a position in pixels; `anchor` is start, middle or end."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' font-weight='{weight}' "
        f"fill='{INK}'>{escape(words)}</text>"
    )


def picture(width: int, height: int, parts: Sequence[str]) -> str:
    """An SVG document of these parts; sizes are pixels."""
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"{_FONT}>\n{body}\n</svg>\n"
    )
