"""What every test run shares: a skip is a failure, Hypothesis has no clock, and there is one Spark.

A test that skips where a tool is missing looks green and shows nothing: whoever needs a tool fails by its name.

With several processes (`-n`, `--dist loadfile`) a file's tests stay together, for what they share, and each process
that has tests of Spark has a Spark of its own.
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

_LONGEST: Final = frozenset({"pipeline", "pyspark_durable_streams"})
"""Folders of tests that start a Java."""


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest files go first, so that there is something to do beside the last of them.
    items.sort(key=lambda item: item.path.parent.name not in _LONGEST and item.path.parent.parent.name not in _LONGEST)


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
