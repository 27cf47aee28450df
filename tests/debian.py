"""Programs that tests need beside Python: taken from PATH; on Debian, as root, installed from its packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

_SBIN: Final = "/usr/sbin:/usr/local/sbin"
_INSTALL_TIMEOUT_S: Final = 600
# RUNLEVEL=1: the packages' own services are not to be started.
_ENVIRONMENT: Final = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


class NoProgram(RuntimeError):
    """A program cannot be had; the text is one line that names it."""


@cache
def program(name: str, package: str) -> Path:
    """Where `name` is, which Debian has in `package`.  Raises NoProgram."""
    found = _find(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        _install(package)
        found = _find(name)
    if found is None:
        raise NoProgram(f"{name} is needed; Debian has it in: {package}")
    return found


def _find(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    return Path(found) if found else None


def _install(package: str) -> None:
    install = ["apt-get", "install", "-y", "--no-install-recommends", package]
    # What the package's scripts leave running would hold a pipe open: their words go to a file.
    with tempfile.TemporaryFile() as said:
        for command in (["apt-get", "update"], install):
            done = subprocess.run(
                command, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False,
                timeout=_INSTALL_TIMEOUT_S,
            )  # fmt: skip
            if done.returncode:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines() or ["no reason given"]
                raise NoProgram(f"{' '.join(command[:2])} cannot install {package}: {lines[-1]}")
