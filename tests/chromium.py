"""Chromium for tests: where it is, and how it is run.

It is the system's own.  Playwright brings a driver only: no browser is downloaded.
"""

from __future__ import annotations

import os

from tests.debian import program


def chromium() -> str:
    """Path of the browser.  Raises NoProgram."""
    return str(program("chromium", "chromium", "chromium-browser", "google-chrome"))


def arguments() -> list[str]:
    """What this machine's browser has to be told: the sandbox refuses to run as root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
