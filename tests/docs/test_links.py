"""Every link of the pages leads somewhere, in the site and in a viewer of the repository alike.

The two make anchors of headings in different ways, so an anchor that is linked has to be the same in both.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OTHERS = [HOME / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]

FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
LINK = re.compile(
    r"!?\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\]\(\s*([^)\s]+)[^)]*\)|<img[^>]* src=\"([^\"]+)\"", re.DOTALL
)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
IS_ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")


def links(page: Path) -> list[str]:
    prose = CODE.sub("", FENCED.sub("", page.read_text()))
    return [found[1] or found[2] for found in LINK.finditer(prose)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors that both the site and a viewer give to exactly one heading of the page."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    same = [of_site(heading) for heading in plain if of_site(heading) == of_viewer(heading)]
    return frozenset(anchor for anchor in same if same.count(anchor) == 1)


def of_site(heading: str) -> str:
    ascii_ = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_).strip().lower())


def of_viewer(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def relative(path: Path) -> str:
    return str(path.relative_to(HOME))


@pytest.mark.parametrize("page", [*OTHERS, *PAGES], ids=relative)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if IS_ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(HOME), link
        if page in PAGES:
            assert target.is_relative_to(DOCS), f"{link} is not a part of the site"
            assert target.is_file(), link
        if anchor:
            assert anchor in anchors(target), link


def test_links_are_found() -> None:
    # The test above would pass if it found none.
    assert "docs/overview.svg" in links(HOME / "README.md")
    assert sum(len(links(page)) for page in PAGES) > 50


def test_every_page_has_a_title_and_is_in_the_sites_navigation() -> None:
    listed: list[str] = []

    def walk(entry: object) -> None:
        match entry:
            case str():
                listed.append(entry)
            case list():
                for one in entry:
                    walk(one)
            case dict():
                walk([*entry.values()])

    walk(yaml.safe_load((HOME / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == [str(page.relative_to(DOCS)) for page in PAGES]
    for page in PAGES:
        assert page.read_text().startswith("# "), page


def test_every_picture_is_shown_and_every_figure_is_read() -> None:
    shown = {(page.parent / link).resolve() for page in [*OTHERS, *PAGES] for link in links(page)}
    assert {path for path in DOCS.rglob("*") if path.suffix in (".png", ".svg")} <= shown
