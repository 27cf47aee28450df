"""The configurations on the pages, as printed, are valid.  A block without a route gets one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config.file import load_config

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(HOME)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_configuration_on_a_page_is_valid(block: str, tmp_path: Path) -> None:
    route = "" if "[[route]]" in block else '\n[[route]]\nname = "public"\norigin = "http://10.0.0.5:4437"\n'
    path = tmp_path / "gateway.toml"
    path.write_text(block + route)
    loaded = load_config(path, environ={})
    assert any(not setting.is_default for setting in loaded.settings())
