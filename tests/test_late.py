"""Tests that are collected late are all run and reported, each file's by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_SEEN: Final = (
    "import pathlib, os\nwith pathlib.Path(__file__ + '.seen').open('a') as seen: print(os.getpid(), file=seen)\n"
)
_FILES: Final = {
    "test_good.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_of(n): pass\nclass TestMore:\n"
    " def test_in_class(self): pass\n",
    "test_bad.py": "def test_wrong(): assert False\ndef test_after(): pass\n",
    "folder/test_broken.py": "import nothing_of_this_name\ndef test_never(): pass\n",
    "folder/test_last.py": "def test_last(): pass\n",
}


@pytest.mark.parametrize(
    ("choice", "counts", "importers"),
    [
        pytest.param([], "1 failed, 5 passed, 1 error", 1, id="all"),
        pytest.param(["-k", "of or last"], "3 passed, 1 error", 2, id="of a keyword"),
    ],
)
def test_each_test_is_reported_once_and_a_file_is_imported_where_it_runs(
    tmp_path: Path, choice: list[str], counts: str, importers: int
) -> None:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(_SEEN + text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-p", "tests.late", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "--numprocesses", "2", "--dist", "loadfile", "--rootdir", str(tmp_path), *choice, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(_ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.stdout.rpartition("\n")[0].rpartition("\n")[2].startswith(counts), run.stdout + run.stderr
    assert run.returncode == 1
    for name in _FILES:
        assert len((tmp_path / f"{name}.seen").read_text().splitlines()) == importers
