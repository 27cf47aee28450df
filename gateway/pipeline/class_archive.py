"""An archive of Spark's Java classes, which makes Spark start faster (application class-data sharing, JEP 350).

Spark loads some 15,000 classes.  Reading and checking them takes half of the processor time until the end of its first
query.  With an archive, Java maps the checked classes into memory instead.

Java writes the archive when it exits, so the first short run on a machine takes longer.  The archive is a file of about
200 MB in the user's cache folder.  An archive for another version of Java or Spark replaces it.  Spark also works
without an archive.
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
    """An archive at `path`; with `is_new`, Java has yet to write it."""

    path: Path
    is_new: bool

    @property
    def options(self) -> str:
        """Java's options to read the archive, or to write it at exit."""
        # Java silently ignores an archive that it cannot use.
        how = f"-XX:ArchiveClassesAtExit={self._written}" if self.is_new else f"-XX:SharedArchiveFile={self.path}"
        return f"-Xshare:auto -Xlog:disable -Xlog:all=off {how}"

    @property
    def _written(self) -> Path:
        return self.path.with_suffix(f".{os.getpid()}{_NEW}")

    def keep(self) -> bool:
        """Replace all other archives with the one that Java has written; return whether it has written one."""
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
    """Return the archive for a Java and a Spark, in the folder `cache`.

    Return None if the archive cannot be used: Java lacks the archive of its own classes, which this one extends, or
    `cache` cannot be written, or its path contains a space.
    """
    jars = spark_home / "jars"
    try:
        java = (java_home / "lib" / "server" / "classes.jsa").stat()
        spark = jars.stat()
        made_for = f"{java_home.resolve()} {java.st_size} {java.st_mtime_ns} {jars.resolve()} {spark.st_mtime_ns}"
        path = cache / _FOLDER / f"{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"
        # Spaces separate Java's options, so the path must not contain one.
        if " " in str(path):
            return None
        archive = ClassArchive(path, is_new=not path.exists())
        if archive.is_new:
            archive.prepare()
    except OSError:
        return None
    return archive
