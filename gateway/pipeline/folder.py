"""A folder on the file system that its URL names, by way of Hadoop: a disk, or whatever else Spark can reach.

Only what a lake needs beside reading and writing tables: which folders there are, small texts, and folders that are
put in place in one step.  A name is relative to the folder.
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
        self.url = url.rstrip("/") or "/"
        self._system: Any = self._at("").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    @property
    def local(self) -> Path | None:
        """The same as a path of this machine; None where a URL names it."""
        return None if "://" in self.url or self.url.startswith("file:") else Path(self.url)

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file or folder."""
        return bool(self._system.exists(self._at(name)))

    def folders(self, name: str = "") -> list[str]:
        """Names of the folders in it, or in one of them, in order; none where it does not exist."""
        return sorted(found.getPath().getName() for found in self._listed(name) if found.isDirectory())

    def files(self, name: str = "") -> list[str]:
        """Names of the files in it, or in one of its folders, in order; none where it does not exist."""
        return sorted(found.getPath().getName() for found in self._listed(name) if found.isFile())

    def text(self, name: str) -> str:
        """What a small file says."""
        stream = self._system.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Make a small file, whole or not at all; there must be none of that name."""
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
        """Copy a folder of this machine into it."""
        self._system.copyFromLocalFile(
            False, True, self._jvm.org.apache.hadoop.fs.Path(source.as_uri()), self._at(name)
        )

    def make(self, name: str = "") -> None:
        """Make a folder and those above it, where they are not there."""
        self._system.mkdirs(self._at(name))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; it need not be there."""
        self._system.delete(self._at(name), True)

    def rename(self, name: str, to: str) -> None:
        """Put a file or folder in place, where nothing may be.  OSError where that cannot be."""
        if not self._system.rename(self._at(name), self._at(to)):
            raise OSError(f"{self.url}/{to}: cannot be put in place")

    def _listed(self, name: str) -> list[Any]:
        place = self._at(name)
        return list(self._system.listStatus(place)) if self._system.exists(place) else []

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}" if name else self.url)
