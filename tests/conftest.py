"""What every test run shares: a skip is a failure, Hypothesis has no clock, and there is one Spark.

A test that skips where a tool is missing looks green and shows nothing: whoever needs a tool fails by its name.

With several processes (`-n`, `--dist loadgroup`) a file's tests stay together, for what they share, and so do all
files with tests of Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from tests import transports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark import SharedJava

# The machine that runs the tests may be slow or busy: how long an example takes says nothing about the code.
settings.register_profile("gateway", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("gateway")

_JAVAS: Final = frozenset({"shared_java", "spark"})
"""Fixtures that are a Java."""


def pytest_addoption(parser: pytest.Parser) -> None:
    transports.add_option(parser)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure here: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    # A wrapper, for xdist looks at the groups before any hook that is none.
    # One process has all that runs on Spark, since a Java that has just started takes twenty seconds of a processor to
    # learn what one that has been at work knows.  It begins first: it has the most to do.
    of_spark = {item.path for item in items if not _JAVAS.isdisjoint(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path not in of_spark)
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if item.path in of_spark else item.nodeid.partition("::")[0]))
    yield


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
