"""The Spark session of the pipeline: local by default, or on the cluster that `master` names.

Every job relies on two settings: times are UTC, so that a minute is the same on any machine, and workers run the
driver's Python.  The other settings suit one machine, without a web page and without addresses beyond loopback.  `conf`
overrides all of them except the time zone, which defines a lake's days.

Spark's own log is off, except for errors under `spark-submit`: Spark raises its errors too, once instead of six times
with all stack traces.  `spark.log.level` turns the log on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.class_archive import ClassArchive, class_archive
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "durable-gateway pipeline"
DEFAULT_MASTER: Final = "local[*]"

_LOG_LEVEL: Final = "spark.log.level"
_ZONE: Final = {"spark.sql.session.timeZone": "UTC"}
_ALWAYS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # To note the line that made each column, for errors that name it, takes a third of the driver's Python.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark sorts the lines first where an aggregation that keeps objects has more groups than this; by default 128.  A
    # day has 1,440 minutes; 20,000 sketches take about 100 MB.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    # There is no page to show plans on, and to write one down in full takes a fifth of a short query.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # A lake names the files it reads; a job that lists them costs more than to look at each.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Nothing is gained here by planning a query again after each of its stages, each of which becomes a job.
    "spark.sql.adaptive.enabled": "false",
}
_ONE_PROCESS: Final = {
    "spark.python.daemon.module": "gateway.pipeline.worker_daemon",
    # Some queries have it whatever is set, and others not; workers that differ in it need a daemon of their own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
"""Settings where workers run with this machine's packages; the workers of a local cluster have a zip."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# The optimizing compiler takes half of the processor time of a short run.  With one compiler, Java reserves only 48 MB
# for code unless told otherwise; a minute of queries fills that.
_SHORT_RUN: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)
_ENDS_S: Final = 300.0
"""Longest time that Java is given to write its archive."""
_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_WHOLE_STAGE: Final = "spark.sql.codegen.wholeStage"
_EXPRESSIONS: Final = "spark.sql.codegen.factoryMode"
_FITTED: Final = "spark.durableGateway.fitted"
"""Names of the settings that `fit` changes, separated by spaces."""
_MOST_PARTS: Final = 32
"""With these, twenty million lines go through the driver's 2 GiB."""
_ROWS_OF_A_PART: Final = 250_000
_FEW_ROWS: Final = 50_000
"""A query over fewer rows is over before the code that Spark would generate for it is compiled."""


def open_session(
    master: str | None = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    *,
    name: str = NAME,
    is_short: bool = True,
    archive: ClassArchive | None = None,
) -> SparkSession:
    """The process's Spark session, started if there is none.  Raises NoJava, and PipelineFailed for Spark Connect.

    With `master` None, `spark-submit` has chosen the cluster; `conf` are Spark settings.  `is_short` says that the run
    is over before Java's optimizing compiler is worth its time; `archive` is that of `archive_for`.  The first call
    decides: a later one gets the same session, with the settings that can still be changed.
    """
    if (master or "").startswith("sc:") or "SPARK_REMOTE" in os.environ:
        raise PipelineFailed(
            "the pipeline does not run over Spark Connect: choose a cluster or local[*] with --master, and unset"
            " SPARK_REMOTE"
        )
    is_local = master is not None and master.startswith("local")
    is_one_process = _is_one_process(master)
    settings = {**_ALWAYS, **(_LOCAL if is_local else {}), **(_ONE_PROCESS if is_one_process else {}), **(conf or {})}
    settings |= _ZONE
    if options := [*([_SHORT_RUN] if is_local and is_short else []), *([archive.options] if archive else [])]:
        settings.setdefault(_JAVA_OPTIONS, " ".join(options))
    if is_local:
        settings[_FITTED] = " ".join({_SHUFFLES, _WHOLE_STAGE, _EXPRESSIONS} - settings.keys())
        settings.setdefault(_SHUFFLES, str(_MOST_PARTS))
    prepare(os.environ, is_local=is_local)
    remember_names()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config(map=dict(settings))
    session = (builder if master is None else builder.master(master)).getOrCreate()
    if is_submitted(os.environ):
        # Spark plans Python's streaming sources in a process beside the driver, which `--py-files` does not reach.
        session.sparkContext.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    level = session.sparkContext.getConf().get(_LOG_LEVEL) or ("ERROR" if is_submitted(os.environ) else "OFF")
    session.sparkContext.setLogLevel(level)
    if level == "OFF":
        for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # Some of it goes to the root's own logger.
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    return session


def archive_for(master: str | None, conf: Mapping[str, str], *, is_short: bool) -> ClassArchive | None:
    """The archive of classes for a Java on this machine; None where the options of Java are chosen by others.

    It is written by a short run only: another one may be stopped by a service manager, which does not wait.  Raises
    NoJava.
    """
    if not _is_one_process(master) or _JAVA_OPTIONS in conf or is_submitted(os.environ):
        return None
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if SparkContext._gateway is not None:
        return None  # Java runs already
    prepare(os.environ, is_local=True)
    archive = class_archive(Path(os.environ["JAVA_HOME"]), Path(_find_spark_home()), cache_folder(os.environ))
    return None if archive is not None and archive.is_new and not is_short else archive


def end_java() -> None:
    """Wait until the Java of this process, whose session has been stopped, has ended."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        with suppress(TimeoutExpired):
            gateway.proc.wait(_ENDS_S)


def _is_one_process(master: str | None) -> bool:
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


@cache
def remember_names() -> None:
    """Have py4j ask Java for each package and class once.

    For a package, and for a class in any imported package, Java looks into each of its 300 archives first.  That is a
    twentieth of a short query.
    """
    from py4j.java_gateway import JavaPackage, JVMView

    for owner in (JVMView, JavaPackage):
        owner.__getattr__ = _remembering(owner.__getattr__)


def _remembering(ask: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
    def remembered(self: Any, name: str) -> object:
        found = self.__dict__[name] = ask(self, name)
        return found

    return remembered


def fit(spark: SparkSession, rows: int) -> None:
    """Fit later queries to so many lines, as far as the settings leave it open.

    On one machine, each of the 200 parts that Spark shuffles into would be a task of a few rows, and its start most of
    its time.  Nor does Spark generate code for queries over few lines.
    """
    parts = max(spark.sparkContext.defaultParallelism, -(-rows // _ROWS_OF_A_PART))
    has_code = rows >= _FEW_ROWS
    fitting = {
        _SHUFFLES: str(min(parts, _MOST_PARTS)),
        _WHOLE_STAGE: str(has_code).lower(),
        _EXPRESSIONS: "FALLBACK" if has_code else "NO_CODEGEN",
    }
    for name in (spark.conf.get(_FITTED, None) or "").split():
        spark.conf.set(name, fitting[name])


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """The data frame, computed once for the block."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def is_submitted(environ: Mapping[str, str] | os._Environ[str]) -> bool:
    """Whether `spark-submit` has started a Spark for this process."""
    return "PYSPARK_GATEWAY_PORT" in environ


def prepare(environ: dict[str, str] | os._Environ[str], *, is_local: bool) -> None:
    """Set the variables that Spark reads before its Java starts; variables that are set stay as they are."""
    if not is_submitted(environ):
        environ["JAVA_HOME"] = str(find_java(environ, cache_folder(environ)))
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The user's cache folder (XDG Base Directory Specification)."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durable-gateway"
