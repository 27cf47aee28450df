"""Give a virtual environment packages of the tests' own Python by symbolic links, instead of installing them again.

    linked.py FOLDER LOCK

makes a virtual environment with pip, which the lock names.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path


def link(folder: Path, lock: Path) -> None:
    """Link the locked packages into a virtual environment; this Python must have the same versions."""
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in re.findall(r"^([a-z0-9.-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        found = distribution(name)
        assert found.version == version, name
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(found.locate_file(top)))


def main(folder: Path, lock: Path) -> None:
    """Make the virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    link(folder, lock)
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{folder.resolve()}/bin/python" -m pip "$@"\n')
    pip.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
