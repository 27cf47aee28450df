"""What every test run shares: a skip is a failure, Hypothesis has no clock, and there is one Spark.

A test that skips where a tool is missing looks green and shows nothing: a test that needs a tool fails and names it.

With several processes (`-n`, `--dist loadfile`) a file's tests stay together, for what they share, and so do those of
folders that are about Spark.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests import late, transports
from tests.debian import NoProgram
from tests.effort import examples
from tests.node_tools import NoNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark import SharedJava

# The machine that runs the tests may be slow or busy: how long an example takes says nothing about the code.
settings.register_profile(
    "gateway",
    max_examples=examples(25, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("gateway")

_ON_JAVA: Final = ("tests/pipeline/", "tests/pyspark_durable_streams/")
"""Folders of tests on the one Java, but for those of the report."""
_TOGETHER: Final = (("tests/pipeline/report/",), _ON_JAVA, ("tests/console/",))
"""Folders whose tests share what takes long to start; those of the report and of the console have one browser each."""
_BEHIND: Final = 5
"""How much nicer than the process with the Java the others are."""
_LONGEST: Final = (
    # Spark goes on in the Java that its programs have warmed up.
    "tests/pipeline/test_cli.py",
    *chain.from_iterable(_TOGETHER),
    # These wait more than they compute: best beside what computes.
    "tests/conformance/",
    "tests/deploy/test_spark_cluster.py",
    "tests/commands/test_tail.py",
    "tests/commands/test_json_text.py",
    "tests/test_cli.py",
    "tests/ops/admin/test_openapi.py",
    "tests/offload/test_offload.py",
    "tests/deploy/test_dockerfile.py",
    "tests/console/test_strangers.py",
    "tests/clients/test_typescript.py",
    "tests/invariant/",
    "tests/scenarios/",
)
"""What takes longest, in the order in which it begins; all else follows in the order of the folders."""

_COLLECTIONS: Final = (10_000, 20, 100)
"""Thresholds of the garbage collector.  By Python's own (700, 10, 10) it takes a tenth of the processor time."""

_HAS_BEGUN: Final = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    transports.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(late)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure here: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    if call.excinfo is not None and isinstance(call.excinfo.value, NoProgram | NoNode):
        # Where the program is looked for is of no interest.
        report.longrepr = str(call.excinfo.value)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, so that the processes come to their ends together.
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    # Thousands of tests are millions of objects that stay until the end: no full collection need walk through them, nor
    # those with which pytest looks for leaks when it ends.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTIONS)
        # Extensions look for leaks when Python ends.
        atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    # A process has the Java's tests or has others, as the first of them says.  The one with the Java has most to do and
    # would be at work alone at the end of the run, so the others leave the processors to it.
    is_first = not item.session.stash.setdefault(_HAS_BEGUN, False)
    item.session.stash[_HAS_BEGUN] = True
    if is_first and hasattr(item.config, "workerinput") and _shared_by(item.nodeid) is not _ON_JAVA:
        os.nice(_BEHIND)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    # A command that a test runs in its own process sets the collector's thresholds, on which later tests may depend.
    gc.set_threshold(*_COLLECTIONS)


def _shared_by(nodeid: str) -> tuple[str, ...] | None:
    """The folders with which a test shares what takes long to start."""
    return next((folders for folders in _TOGETHER if nodeid.startswith(folders)), None)


def _place(nodeid: str) -> int:
    return next((place for place, begin in enumerate(_LONGEST) if nodeid.startswith(begin)), len(_LONGEST))


class _OneSparkForManyFiles(LoadFileScheduling):
    """A file's tests go to one process, and so do folders of files that are about Spark.

    A Java that has just started takes twenty seconds of a processor to learn what one that has been at work knows.
    """

    def _split_scope(self, nodeid: str) -> str:
        folders = _shared_by(nodeid)
        return super()._split_scope(nodeid) if folders is None else folders[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _OneSparkForManyFiles | None:
    return _OneSparkForManyFiles(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark with two cores, one for all tests of a process that need one."""
    # Not every run of a few tests needs a Java to start.
    from tests.spark import local_spark

    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def shared_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedJava]:
    """A Java for programs that tests start one after the other, and that are not about its start."""
    from tests.spark import SharedJava

    java = SharedJava(tmp_path_factory.mktemp("java"))
    yield java
    java.end()
