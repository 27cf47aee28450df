"""The protocol's conformance suite, run through npm against any URLs."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.node_tools import node_packages, node_tools

LONG_POLL_TIMEOUT_S = 0.5
"""Settings of the servers under test: a test of the suite may take 5 s in all."""

TESTS = 332
"""The number of tests in release 0.3.6 that do not need subscriptions."""

RUN_TIMEOUT_S = 280.0


SHORT: Final = "Long-Poll|SSE Mode"
"""Pattern of the names of tests about connections."""

MENDED = {
    "Caching and ETag should allow If-None-Match in CORS preflight responses",
    "SSE Mode JSON SSE catch-up pairs every data event with a control event",
    "SSE Mode base64 SSE catch-up pairs every data event with a control event",
}
"""Failures of the reference server that the gateway repairs, because it answers these requests itself."""

ALL: Final = ""
NONE: Final = "$^"
"""Patterns of every name and of none."""

Results = dict[str, bool]
"""Whether each test passed, by its full name."""

Found = dict[str, Results]
"""The results of each server."""


class Run(NamedTuple):
    """A run of the suite against a server."""

    url: str
    names: str = ALL
    """Pattern of the names of the tests to run."""
    http2: bool = False
    """Whether the client uses HTTP/2 if the server agrees to it."""
    and_failed: bool = False
    """Whether the tests that failed in the run before are run too."""


def run_conformance(*runs: Run, authority: Path | None = None) -> list[Results]:
    """The results of each run; the opt-in subscription tests are left out.

    The runs follow one another in one process.  `authority` has signed the certificates of servers that use TLS.
    """
    tools = node_tools()
    folder = node_packages()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        done = subprocess.run(
            [
                tools.node,
                "node_modules/vitest/vitest.mjs",
                "run",
                "conformance.test.mjs",
                "--reporter=json",
                f"--outputFile={report}",
            ],
            cwd=folder,
            env={
                **tools.environment,
                "CONFORMANCE_RUNS": json.dumps([run._asdict() for run in runs]),
                "CONFORMANCE_LONG_POLL_MS": str(int(LONG_POLL_TIMEOUT_S * 1000)),
                **({"NODE_EXTRA_CA_CERTS": str(authority)} if authority is not None else {}),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S * len(runs),
        )
        if not report.exists():
            raise RuntimeError(f"vitest wrote no report:\n{done.stdout}{done.stderr}")
        files = json.loads(report.read_text())["testResults"]
    results: list[Results] = [{} for _ in runs]
    for test in (test for file in files for test in file["assertionResults"]):
        if test["status"] in ("passed", "failed"):
            # The first title is the number of the run.
            number, name = test["fullName"].strip().split(" ", 1)
            results[int(number)][name] = test["status"] == "passed"
    return results


def failures(results: Results) -> list[str]:
    """The names of the failed tests."""
    return [name for name, passed in results.items() if not passed]


def named(names: Iterable[str]) -> str:
    """A pattern of these names alone."""
    return f"^({'|'.join(map(re.escape, sorted(names)))})$"
