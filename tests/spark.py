"""Spark for tests: real, local, quick to start, and gone with the test run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from gateway.pipeline.session import open_session, prepare, remember_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2]"
_BOUND_S: Final = 120
QUICK_PYTHON: Final = str(Path(__file__).parent / "quick_python")
"""What leads a Spark's Python workers to `sitecustomize`, which has them ready sooner."""
# One compiler and one collector less: half the time to start, and short jobs end sooner.  With one compiler Java keeps
# room for 48 MB of code only; a minute of queries fills that, and what is thrown away is compiled again.
JAVA_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xss4m"
# By default Java begins with 126 MB for new objects, and collects garbage three times as often.  The classes that Spark
# loads when it starts pass the default threshold of metaspace, which costs a full collection.
_HEAP: Final = "-Xms2g -Xmn800m -XX:MetaspaceSize=256m"
"""The driver's whole memory from the start, for a third of the collections of garbage: 22 instead of 65 in a minute of
short jobs, and 2 to 11 % of their processor time."""
SHARED_CLASSES: Final = Path(__file__).parents[1] / "build" / "spark-classes.jsa"
"""Spark's classes as Java maps them into memory (application class-data sharing, JEP 350): half of what a start costs.
Java passes over an archive that is of another Java or another Spark.  `make test-long` writes it once."""
# A query over a few rows takes less time than the compilation of the classes that Spark writes for it (Java for each
# query, by Janino, then by the JIT): a session's tests take half as long without.  What users run is compiled, and is
# tested so by its commands.  Nor is there anything to adapt to in a few rows: to plan a query anew after each of its
# stages takes an eighth more of a processor.
INTERPRETED: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""What has Spark write no code for queries, and plan each once."""
# Figures for a page that is off, and what is gained where shuffled rows go over a network.
_UNSEEN: Final = {
    "spark.broadcast.compress": "false",
    "spark.shuffle.compress": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.liveUpdate.period": "-1",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
}


def quick_java() -> str:
    """Options for a Java of the tests, which maps `SHARED_CLASSES` if they are there by now."""
    if SHARED_CLASSES.exists() and " " not in str(SHARED_CLASSES):
        return f"{JAVA_FLAGS} -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={SHARED_CLASSES}"
    return JAVA_FLAGS


def settings(folder: Path, java_flags: str | None = None, *, compiles: bool = True) -> Mapping[str, str]:
    """Spark's settings for a test run with its files in `folder`; `compiles`: with generated code for queries."""
    options = quick_java() if java_flags is None else java_flags
    return {
        **({} if compiles else INTERPRETED),
        "spark.driver.extraJavaOptions": f"{options} {_HEAP} -Dderby.system.home={folder / 'derby'}",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "local"),
        **_UNSEEN,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def started(master: str, conf: Mapping[str, str]) -> SparkSession:
    """A Spark of this process, whose Python workers are ready sooner than those of users.

    It is in the `SharedJava` that this process has started, if it has.
    """
    with _quick_python(), _variables({} if SharedJava.running is None else SharedJava.running.environ):
        return open_session(master, conf)


def _quick_python() -> AbstractContextManager[None]:
    """A Java that is started within tells its workers of `quick_python`."""
    return _variables({"PYTHONPATH": os.pathsep.join(filter(None, (QUICK_PYTHON, os.environ.get("PYTHONPATH"))))})


@contextmanager
def _variables(of: Mapping[str, str]) -> Iterator[None]:
    """The environment has these in the block."""
    before = {name: os.environ.get(name) for name in of}
    os.environ.update(of)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def local_spark(folder: Path, java_flags: str | None = None, *, compiles: bool = False) -> Iterator[SparkSession]:
    """A Spark of this process, until the block ends."""
    session = started(MASTER, settings(folder, java_flags, compiles=compiles))
    try:
        yield session
    finally:
        session.stop()


def way_to(spark: SparkSession) -> dict[str, str]:
    """The variables that lead a program to this Spark, which is there `joined`."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.java_parameters
    return {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}


def joined() -> SparkSession:
    """A session of its own in the Spark of the program that has started this one; that Spark goes on, however this
    program ends.
    """
    remember_names()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    running = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=running, conf=SparkConf(_jconf=running.getConf()))
    return SparkSession(context).newSession()


class SharedJava:
    """A Java for one program after the other, which they are led to by `environ`, as `spark-submit` does it.

    Each program has a Spark of its own in it, and when no program is left, so may have this process.  This Java knows
    Spark's classes already and has compiled what is called often, which is most of what a short program costs.
    """

    running: ClassVar[SharedJava | None] = None

    def __init__(self, folder: Path) -> None:
        prepare(os.environ, is_local=True)
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        conf = SparkConf(loadDefaults=False).setAll(list(settings(folder).items()))
        with _quick_python():
            self._gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
        java = self._gateway.java_parameters
        self.environ = {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}
        SharedJava.running = self

    def end(self) -> None:
        """Wait until it is gone."""
        SharedJava.running = None
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(_BOUND_S)


def share_classes() -> None:
    """Write `SHARED_CLASSES`: those that a Spark loads which runs a few queries."""
    SHARED_CLASSES.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SHARED_CLASSES.parent) as scratch:
        folder = Path(scratch)
        with local_spark(folder, f"{JAVA_FLAGS} -XX:ArchiveClassesAtExit={folder / 'new'}") as spark:
            gateway = spark.sparkContext._gateway
            rows = spark.range(1_000).selectExpr("id % 7 as k", "cast(id as string) as text")
            rows.write.parquet(str(folder / "rows"))
            spark.read.parquet(str(folder / "rows")).groupBy("k").count().orderBy("k").collect()
            rows.write.json(str(folder / "json"))
            spark.read.text(str(folder / "json")).mapInPandas(lambda frames: frames, "value string").count()
        assert gateway is not None
        # Java writes the archive when it ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(2 * _BOUND_S)
        (folder / "new").replace(SHARED_CLASSES)


if __name__ == "__main__":
    share_classes()
