"""Collect the tests of a file late: in the process that runs them, and when it comes to them.

With xdist each process collects all tests, most of which others run: 13 s of a processor for each.  So for a process a
file is one item at first, which takes the place of its tests, and runs them under their own names.

What chooses tests rather than files (`-k`, `-m`, `file::test`, `--last-failed` and the like) needs them all, and has
them collected as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from xdist.workermanage import WorkerController

_CHOOSING: Final = ("keyword", "markexpr", "deselect", "lf", "failedfirst", "newfirst", "stepwise")
"""Options that choose tests, or put them in order."""
_KEY: Final = "collects_late"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    config = node.config
    is_choosing = any(config.getoption(name, False) for name in _CHOOSING) or any("::" in arg for arg in config.args)
    node.workerinput[_KEY] = config.getoption("dist") == "loadfile" and not is_choosing


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not getattr(parent.config, "workerinput", {}).get(_KEY):
        return None
    return _File.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, _Tests):
        return None
    items = item.session.items
    place = items.index(item)
    for test, following in pairwise([*item.collected(), nextitem]):
        assert test is not None
        # Where xdist looks for the test that a report is of.
        items[place] = test
        test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
        if item.session.shouldfail or item.session.shouldstop:
            break
    items[place] = item
    return True


class _File(pytest.File):
    """A file, which has one item."""

    def collect(self) -> Iterator[pytest.Item]:
        yield _Tests.from_parent(self, name="tests")


class _Tests(pytest.Item):
    """All tests of a file."""

    def collected(self) -> list[pytest.Item]:
        """Collect them.  A file that cannot be imported is reported."""
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        tests = list(self.session.genitems(module))
        self.ihook.pytest_collection_modifyitems(session=self.session, config=self.config, items=tests)
        return tests

    def runtest(self) -> None:
        raise NotImplementedError  # `pytest_runtest_protocol` runs the tests instead
