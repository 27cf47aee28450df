"""Record which days' gold is up to date: one empty file per day, named after the day and a fingerprint of its silver.

The fingerprint covers the names and sizes of the day's files in silver; Spark never repeats a file's name.  A day's
record is removed before the day is computed, and created once all its tables are written.  So a run that dies leaves
its days without a record, and the next one computes them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.tables import REQUESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake

VERSION: Final = 3
"""Version of the computation; raising it makes all days out of date."""
_PLACE: Final = "checkpoints/gold"


class Books:
    """The records of one lake.  There is one writer at a time."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._place = lake.place(_PLACE)
        self._silver = lake.path(REQUESTS)
        root = self._path_of(self._place)
        self._system: Any = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def sources(self, days: Collection[date]) -> Mapping[date, str]:
        """Current fingerprint of each of these days' silver."""
        return {day: self._fingerprint(day) for day in days}

    def made(self) -> Mapping[date, str]:
        """Recorded fingerprint of each day that is up to date."""
        found = {}
        for name in self._marks():
            day, _, mark = name.partition(".")
            found[date.fromisoformat(day)] = mark
        return found

    def begin(self, days: Collection[date]) -> None:
        """Remove the records of these days, before they are computed."""
        for name in list(self._marks()):
            if date.fromisoformat(name.partition(".")[0]) in days:
                self._system.delete(self._path_of(f"{self._place}/{name}"), False)

    def finish(self, sources: Mapping[date, str]) -> None:
        """Record that these days were computed from these fingerprints, once all of it is written."""
        self._system.mkdirs(self._path_of(self._place))
        for day in sorted(sources):
            self._system.create(self._path_of(f"{self._place}/{day.isoformat()}.{sources[day]}"), True).close()

    def _marks(self) -> Iterator[str]:
        place = self._path_of(self._place)
        if not self._system.exists(place):
            return
        for status in self._system.listStatus(place):
            name = status.getPath().getName()
            # Some file systems store checksums in files whose names begin with a dot.
            if not name.startswith("."):
                yield name

    def _fingerprint(self, day: date) -> str:
        files = self._system.listFiles(self._path_of(f"{self._silver}/day={day.isoformat()}"), True)
        found = []
        while files.hasNext():
            status = files.next()
            found.append(f"{status.getPath().getName()} {status.getLen()}")
        text = "\n".join([str(VERSION), *sorted(found)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]
