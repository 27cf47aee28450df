"""A folder on a local disk or on any file system that Spark reaches through Hadoop.

It has only what a lake needs in addition to tables: lists of folders, small text files, and atomic renames of folders.
Names are relative to the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """One folder, which need not exist."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        # By its whole name: `jvm.org.apache…` has Java look for a class `org` in each of its archives, and so on.
        self._path: Any = getattr(self._jvm, "org.apache.hadoop.fs.Path")
        self.url = url.rstrip("/") or "/"
        self._system: Any = self._at("").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    @property
    def local(self) -> Path | None:
        """The folder as a local path; None if it is named by a URL."""
        return None if "://" in self.url or self.url.startswith("file:") else Path(self.url)

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file or folder."""
        return bool(self._system.exists(self._at(name)))

    def folders(self, name: str = "") -> list[str]:
        """Sorted names of the folders in it, or in its folder `name`; empty if that does not exist."""
        return sorted(found.getPath().getName() for found in self._listed(name) if found.isDirectory())

    def files(self, name: str = "") -> list[str]:
        """Sorted names of the files in it, or in its folder `name`; empty if that does not exist."""
        return sorted(found.getPath().getName() for found in self._listed(name) if found.isFile())

    def text(self, name: str) -> str:
        """The content of a small UTF-8 file."""
        stream = self._system.open(self._at(name))
        try:
            return str(getattr(self._jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Create a small file atomically; it must not exist."""
        made = f".{name.rpartition('/')[2]}.made"
        folder = name.rpartition("/")[0]
        made = f"{folder}/{made}" if folder else made
        stream = self._system.create(self._at(made), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self.rename(made, name)

    def put(self, source: Path, name: str) -> None:
        """Copy a local folder into it as `name`."""
        self._system.copyFromLocalFile(False, True, self._path(source.as_uri()), self._at(name))

    def make(self, name: str = "") -> None:
        """Create a folder and its parents, unless they exist."""
        self._system.mkdirs(self._at(name))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content; it need not exist."""
        self._system.delete(self._at(name), True)

    def rename(self, name: str, to: str) -> None:
        """Rename a file or folder to a name that does not exist.  Raises OSError if that fails."""
        if not self._system.rename(self._at(name), self._at(to)):
            raise OSError(f"{self.url}/{to}: cannot be renamed into place")

    def _listed(self, name: str) -> list[Any]:
        path = self._at(name)
        return list(self._system.listStatus(path)) if self._system.exists(path) else []

    def _at(self, name: str) -> Any:
        return self._path(f"{self.url}/{name}" if name else self.url)
