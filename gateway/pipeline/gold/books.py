"""Which days' gold is up to date: one empty file a day, named for the day and for what its figures were made from.

What a day is made from are its files in silver, by name and size; Spark gives no two files the same name.  A file here
is removed before anything of its day is computed and made when all of it is written, so a run that dies leaves its days
unmarked, and the next one computes them again.
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

VERSION: Final = 2
"""Of how gold is computed: raise it, and all days are computed anew."""
_PLACE: Final = "checkpoints/gold"


class Books:
    """The books of one lake.  One writer at a time."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._place = lake.place(_PLACE)
        self._silver = lake.path(REQUESTS)
        root = self._path_of(self._place)
        self._system: Any = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def sources(self, days: Collection[date]) -> Mapping[date, str]:
        """What the figures of these days would be made from now, as a fingerprint of each."""
        return {day: self._fingerprint(day) for day in days}

    def made(self) -> Mapping[date, str]:
        """What the figures of the days that are up to date were made from."""
        found = {}
        for name in self._marks():
            day, _, mark = name.partition(".")
            found[date.fromisoformat(day)] = mark
        return found

    def begin(self, days: Collection[date]) -> None:
        """These days are about to be computed: until `finish` they are not up to date."""
        for name in list(self._marks()):
            if date.fromisoformat(name.partition(".")[0]) in days:
                self._system.delete(self._path_of(f"{self._place}/{name}"), False)

    def finish(self, sources: Mapping[date, str]) -> None:
        """These days have been computed from that, and all of it is written."""
        self._system.mkdirs(self._path_of(self._place))
        for day in sorted(sources):
            self._system.create(self._path_of(f"{self._place}/{day.isoformat()}.{sources[day]}"), True).close()

    def _marks(self) -> Iterator[str]:
        place = self._path_of(self._place)
        if not self._system.exists(place):
            return
        for status in self._system.listStatus(place):
            name = status.getPath().getName()
            # Some file systems keep checksums beside their files, under names that begin with a dot.
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
