"""An archive of Spark's classes, which Java maps into memory instead of reading and checking each of them again.

Java keeps such an archive for one set of programs (application class-data sharing, JEP 350).  Half of the processor
time until Spark's first query is over goes into classes, of which there are some 15,000.  Java writes the archive when
it ends, so the first short run on a machine takes longer, once.  It is a file of about 200 MB in the user's cache
folder; one for another Java or another Spark takes its place.  Without it, everything works as with it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = "java-classes"
_NEW: Final = ".new"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive at `path`; with `is_new`, it is to be written."""

    path: Path
    is_new: bool

    @property
    def options(self) -> str:
        """The options of a Java that reads the archive, or writes it when it ends."""
        # What cannot be used is left out, and nothing is said of it.
        how = f"-XX:ArchiveClassesAtExit={self._written}" if self.is_new else f"-XX:SharedArchiveFile={self.path}"
        return f"-Xshare:auto -Xlog:disable -Xlog:all=off {how}"

    @property
    def _written(self) -> Path:
        return self.path.with_suffix(f".{os.getpid()}{_NEW}")

    def keep(self) -> bool:
        """Put what Java has written in the place of all other archives; return whether it has."""
        with suppress(OSError):
            self._written.replace(self.path)
            self._remove_others()
            return True
        return False

    def prepare(self) -> None:
        """Make room for the archive.  Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_others()

    def _remove_others(self) -> None:
        for other in self.path.parent.iterdir():
            if other != self.path:
                other.unlink(missing_ok=True)


def class_archive(java_home: Path, spark_home: Path, cache: Path) -> ClassArchive | None:
    """The archive for a Java and a Spark, beneath the folder `cache`.

    None if this Java has no archive of its own classes, which the other one builds on, or if `cache` cannot be written.
    """
    jars = spark_home / "jars"
    try:
        java = (java_home / "lib" / "server" / "classes.jsa").stat()
        spark = jars.stat()
        made_for = f"{java_home.resolve()} {java.st_size} {java.st_mtime_ns} {jars.resolve()} {spark.st_mtime_ns}"
        path = cache / _FOLDER / f"{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"
        # A path is part of a list of options, which are separated by spaces.
        if " " in str(path):
            return None
        archive = ClassArchive(path, is_new=not path.exists())
        if archive.is_new:
            archive.prepare()
    except OSError:
        return None
    return archive
