"""Chromium for tests: where it is, and how it is run.

It is the system's own, found on PATH.  On Debian, as root, a missing one is installed; elsewhere it is named in one
line.  Playwright brings a driver only: no browser is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_TIMEOUT_S = 600


class NoChromium(RuntimeError):
    """There is no Chromium, and it cannot be had."""


@cache
def chromium() -> str:
    """Path of the browser.  Raises NoChromium."""
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
        found = _found()
    if found is None:
        raise NoChromium(f"none of {', '.join(NAMES)} is on PATH; Debian has it in: chromium")
    return found


def arguments() -> list[str]:
    """What this machine's browser has to be told: the sandbox refuses to run as root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _install() -> None:
    # RUNLEVEL=1: packages' own services are not to be started.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise NoChromium(f"{' '.join(command[:2])} cannot install chromium: {lines[-1]}")
