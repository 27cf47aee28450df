"""Programs that tests need beside Python: taken from PATH; on Debian, as root, installed from its packages.

Tests run in several processes, and Debian installs one package at a time: the second process waits for the first.
"""

from __future__ import annotations

import fcntl
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


def program(name: str, package: str, *others: str) -> Path:
    """Where `name` is, or one of the `others` that do as well, which Debian has in `package`.  Raises NoProgram."""
    found = _looked_for((name, *others), package)
    if isinstance(found, str):
        raise NoProgram(found)
    return found


@cache
def _looked_for(names: tuple[str, ...], package: str) -> Path | str:
    """Where the program is, or why it cannot be had: what could not be installed is not tried again for each test."""
    found = _find(names)
    try:
        if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
            with (Path(tempfile.gettempdir()) / "durable-gateway-tests.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _find(names) is None:
                    _install(package)
            found = _find(names)
    except NoProgram as error:
        return str(error)
    return found or f"{' or '.join(names)} is needed; Debian has it in: {package}"


def _find(names: tuple[str, ...]) -> Path | None:
    path = f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"
    return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


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
