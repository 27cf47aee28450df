"""The Spark that the pipeline runs on: local by default, or whatever cluster `master` names.

What is set here is what every job relies on: times are UTC, so that a minute is the same minute on any machine, and
workers run the Python that runs the driver.  Whatever else is set is for one machine, where there is no need for a web
page or for an address beyond loopback; `conf` overrides all of it but the zone, by which a lake's days are cut.

Spark's own log is off, but for errors where `spark-submit` is in charge: what goes wrong it raises as well, and says
there once instead of six times with all traces.  `spark.log.level` turns it on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "durable-gateway pipeline"
DEFAULT_MASTER: Final = "local[*]"

_LOG_LEVEL: Final = "spark.log.level"
_ZONE: Final = {"spark.sql.session.timeZone": "UTC"}
_ALWAYS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Spark's 200 suit a cluster: here each would be a task of a few rows, and most of a job's time its start.  With
    # these, twenty million lines go through that memory.
    "spark.sql.shuffle.partitions": "32",
}


def open_session(
    master: str | None = DEFAULT_MASTER, conf: Mapping[str, str] | None = None, *, name: str = NAME
) -> SparkSession:
    """The process's Spark, started where there is none.  NoJava where there is no Java to start it on.

    `master` None leaves it to whoever started this process, as `spark-submit` does; `conf` are Spark's own settings.
    The first call decides: a later one gets the same Spark, with those settings that can still be changed.
    """
    is_local = master is not None and master.startswith("local")
    settings = {**_ALWAYS, **(_LOCAL if is_local else {}), **(conf or {}), **_ZONE}
    prepare(os.environ, is_local=is_local)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    level = session.sparkContext.getConf().get(_LOG_LEVEL) or ("ERROR" if is_submitted(os.environ) else "OFF")
    session.sparkContext.setLogLevel(level)
    if level == "OFF":
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        # Some of it goes to the root's own logger.
        logging.getLogger().addFilter(_is_not_of_py4j)
    return session


def is_submitted(environ: Mapping[str, str] | os._Environ[str]) -> bool:
    """Whether `spark-submit` has started a Spark for this process."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def prepare(environ: dict[str, str] | os._Environ[str], *, is_local: bool) -> None:
    """Set what Spark reads from the environment before its Java starts; what is set already stays."""
    if not is_submitted(environ):
        environ["JAVA_HOME"] = str(find_java(environ, cache_folder(environ)))
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where this user's programs keep what they can make again (XDG Base Directory Specification)."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "durable-gateway"
