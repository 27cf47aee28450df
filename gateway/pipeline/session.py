"""The Spark session of the pipeline: on this machine by default, or on the cluster that `master` names.

Every job relies on two settings.  Times are UTC, so that a minute is the same on any machine, and workers run the same
Python as the driver.  The other settings suit a single machine: there is no web page, and Spark uses only loopback
addresses.  `conf` overrides all of these settings except the time zone, which defines the days of a lake.

Spark's own log is off, or shows only errors under `spark-submit`.  Spark raises its errors as exceptions anyway, while
the log would show each six times with all stack traces.  The setting `spark.log.level` turns the log on.
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
    # Spark would record the line of code that made each column, for its error messages.  This takes a third of the
    # driver's time in Python.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # If an aggregation with objects has more groups than this (by default 128), Spark sorts the lines first, which is
    # slow.  A day has 1,440 minutes, and 20,000 sketches take about 100 MB.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    # There is no page that would show query plans.  Formatting a plan in full takes a fifth of a short query's time.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # The lake passes the paths of single files.  Examining each of them costs less than a job that lists files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Adaptive execution plans a query again after each stage and runs each stage as a job.  That gains nothing here.
    "spark.sql.adaptive.enabled": "false",
}
_ONE_PROCESS: Final = {
    "spark.python.daemon.module": "gateway.pipeline.worker_daemon",
    # Some queries ignore this setting and have the value false.  With true, other queries would need a second daemon.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
"""Settings for workers that use this machine's Python packages.  The workers of a local cluster use a zip instead."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Java's optimizing compiler takes half of the processor time of a short run, so only the fast compiler is used.  With
# one compiler, Java reserves only 48 MB for compiled code by default.  Queries fill that within a minute.
_SHORT_RUN: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)
_ENDS_S: Final = 300.0
"""Longest time to wait for Java to write its archive of classes, in seconds."""
_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_WHOLE_STAGE: Final = "spark.sql.codegen.wholeStage"
_EXPRESSIONS: Final = "spark.sql.codegen.factoryMode"
_FITTED: Final = "spark.durableGateway.fitted"
"""A setting with the names of the settings that `fit` may change, separated by spaces."""
_MOST_PARTS: Final = 32
"""Most parts that Spark shuffles into.  With 32, the driver's 2 GiB of memory suffice for twenty million lines."""
_ROWS_OF_A_PART: Final = 250_000
_FEW_ROWS: Final = 50_000
"""A query over fewer rows ends before the code that Spark would generate for it is compiled."""


def open_session(
    master: str | None = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    *,
    name: str = NAME,
    is_short: bool = True,
    archive: ClassArchive | None = None,
) -> SparkSession:
    """Return the process's Spark session, and start it if there is none.

    If `master` is None, `spark-submit` has chosen the cluster.  `conf` has Spark settings.  `is_short` means that the
    run is too short for Java's optimizing compiler to be worth its time.  `archive` is the result of `archive_for`.
    Later calls return the same session and change only settings that can still be changed.

    Raises NoJava.  Raises PipelineFailed for Spark Connect.
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
        # Spark plans streaming sources in a second Python process, to which it does not pass `--py-files`.
        session.sparkContext.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    level = session.sparkContext.getConf().get(_LOG_LEVEL) or ("ERROR" if is_submitted(os.environ) else "OFF")
    session.sparkContext.setLogLevel(level)
    if level == "OFF":
        for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # Some messages of py4j go directly to the root logger.
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    return session


def archive_for(master: str | None, conf: Mapping[str, str], *, is_short: bool) -> ClassArchive | None:
    """Return the archive of classes for Spark on this machine; None if the user or `spark-submit` sets Java's options.

    Only a short run writes a new archive.  A service manager may stop a long run without time for that.  Raises NoJava.
    """
    if not _is_one_process(master) or _JAVA_OPTIONS in conf or is_submitted(os.environ):
        return None
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if SparkContext._gateway is not None:
        return None  # Java is already running
    prepare(os.environ, is_local=True)
    archive = class_archive(Path(os.environ["JAVA_HOME"]), Path(_find_spark_home()), cache_folder(os.environ))
    return None if archive is not None and archive.is_new and not is_short else archive


def end_java() -> None:
    """End the Java of this process, whose session must have been stopped, and wait for its exit."""
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
    """Make py4j look up each Java package and class only once.

    For each lookup, Java searches up to 300 archives.  Without this function, lookups take a twentieth of a short
    query's time.
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
    """Adapt settings of later queries to the number of lines, unless the user has set them.

    By default Spark shuffles into 200 parts.  On one machine, each part would be a task with few rows, whose start
    takes most of its time.  For queries over few lines, this also turns off code generation.
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
    """Keep the data frame for the block, so that it is computed only once."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def is_submitted(environ: Mapping[str, str] | os._Environ[str]) -> bool:
    """Whether `spark-submit` has started this process."""
    return "PYSPARK_GATEWAY_PORT" in environ


def prepare(environ: dict[str, str] | os._Environ[str], *, is_local: bool) -> None:
    """Set the environment variables that Spark reads before it starts Java.

    Except for `JAVA_HOME`, variables that are already set are not changed.
    """
    if not is_submitted(environ):
        environ["JAVA_HOME"] = str(find_java(environ, cache_folder(environ)))
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return this program's folder in the user's cache folder (XDG Base Directory Specification)."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durable-gateway"
