"""The site is built without a warning, without a network, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

HOME = Path(__file__).parents[2]
BUILDER = Path(sysconfig.get_path("scripts")) / "zensical"
PATIENCE_S = 120
LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]+)"|<link[^>]* rel="stylesheet"[^>]* href="([^"]+)"')


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(HOME / "docs", tmp_path / "docs")
    shutil.copy(HOME / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [BUILDER, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    for page in (HOME / "docs").rglob("*.md"):
        built = (site / page.relative_to(HOME / "docs")).with_suffix(".html")
        text = built.read_text()
        assert "<h1" in text, built
        for script, style in LOADED.findall(text):
            assert not re.match("(https?:)?//", script or style), (built, script or style)
