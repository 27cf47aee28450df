"""What every test run shares: a skip is a failure, Hypothesis has no clock, and there is one Spark.

A test that skips where a tool is missing looks green and shows nothing: whoever needs a tool fails by its name.

With several processes (`-n`) a file's tests stay together, for what they share, and so do all those of the one Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The machine that runs the tests may be slow or busy: how long an example takes says nothing about the code.
settings.register_profile("gateway", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("gateway")


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
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if _wants_spark(item) else item.nodeid.partition("::")[0]))
    # The longest of the groups goes first, so that there is something to do beside it.
    items.sort(key=_wants_spark, reverse=True)


def _wants_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark with two cores, one for all tests that need one."""
    # Not every run of a few tests needs a Java to start.
    from tests.spark import local_spark

    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
