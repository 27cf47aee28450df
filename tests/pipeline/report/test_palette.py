"""Colours of series: visible against their background, and distinguishable with colour blindness.

Colour blindness is simulated in full (Machado, Oliveira and Fernandes 2009), distances are measured in OKLab, and
contrast as in WCAG 2.2, whose success criterion 1.4.11 asks for 3:1 between parts of a graph and their background.
"""

from __future__ import annotations

import itertools
import math
import re
from importlib import resources

import pytest

STACKED = ("tape", "collapse", "follow", "join", "origin", "unanswered")
LINES = ("tape", "follow", "origin", "collapse")
SEEN = {
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
# One in ten thousand sees no blue, one man in twelve too little red or green.
LEAST = {"all colours": 10.0, "no red": 10.0, "no green": 10.0, "no blue": 6.0}
Triple = tuple[float, float, float]


def themes() -> dict[str, dict[str, str]]:
    """Colours by name of the light and the dark theme."""
    css = (resources.files("gateway.pipeline.report") / "report.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", part)) for part in css.split("@media screen", 1))
    return {"light": light, "dark": {**light, **dark}}


def linear(colour: str) -> Triple:
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    low, high = sorted(
        sum(part * share for part, share in zip(linear(colour), (0.2126, 0.7152, 0.0722), strict=True))
        for colour in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def oklab(colour: str, sight: str) -> Triple:
    rgb = linear(colour)
    r, g, b = (
        min(max(sum(part * share for part, share in zip(row, rgb, strict=True)), 0.0), 1.0) for row in SEEN[sight]
    )
    l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)  # noqa: E741 - OKLab's names
    m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


def distance(one: str, other: str, sight: str) -> float:
    return 100 * math.dist(oklab(one, sight), oklab(other, sight))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SEEN)
def test_layers_and_lines_are_distinguishable(theme: str, sight: str) -> None:
    colours = themes()[theme]
    for names in (STACKED, LINES):
        for one, other in itertools.combinations(names, 2):
            assert distance(colours[one], colours[other], sight) >= LEAST[sight], (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_drawn_or_written_is_visible(theme: str) -> None:
    colours = themes()[theme]
    for name in (*STACKED, "chosen"):
        assert contrast(colours[name], colours["surface"]) >= 3, name
    for ground in ("ground", "surface", "raised"):
        for name in ("text", "quiet"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
