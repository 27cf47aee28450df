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
    """What the browser has to be told: it needs no graphics card, and its sandbox refuses to run as root.

    All pages may share a process, and none is started in advance: each start takes a tenth of a second of a processor.
    """
    shared = ["--renderer-process-limit=1", "--process-per-site", "--disable-site-isolation-trials"]
    return ["--disable-gpu", "--disable-extensions", *shared, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
