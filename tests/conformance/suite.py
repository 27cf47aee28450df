"""The protocol's conformance suite, run through npm against any URL."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.node_tools import node_packages, node_tools

LONG_POLL_TIMEOUT_S = 0.5
"""Settings of the servers under test: a test of the suite may take 5 s in all."""

TESTS = 332
"""The number of tests in release 0.3.6 that do not need subscriptions."""

RUN_TIMEOUT_S = 280.0


SHORT: Final = "Long-Poll|SSE Mode"
"""Pattern of the names of tests about connections."""


def run_conformance(
    url: str, authority: Path | None = None, names: str | None = None, *, is_http_2: bool = False
) -> dict[str, bool]:
    """Whether each test passed, by its full name; the opt-in subscription tests are left out.

    `authority` has signed the server's certificate, if the server uses TLS.  `names` is a pattern of the tests to run.
    With `is_http_2` the client uses HTTP/2 if the server agrees to it.
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
                *(["--testNamePattern", names] if names is not None else []),
            ],
            cwd=folder,
            env={
                **tools.environment,
                "CONFORMANCE_URL": url,
                "CONFORMANCE_LONG_POLL_MS": str(int(LONG_POLL_TIMEOUT_S * 1000)),
                **({"CONFORMANCE_HTTP2": "1"} if is_http_2 else {}),
                **({"NODE_EXTRA_CA_CERTS": str(authority)} if authority is not None else {}),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
        if not report.exists():
            raise RuntimeError(f"vitest wrote no report:\n{done.stdout}{done.stderr}")
        results = json.loads(report.read_text())["testResults"]
    return {
        test["fullName"].strip(): test["status"] == "passed"
        for file in results
        for test in file["assertionResults"]
        if test["status"] in ("passed", "failed")
    }


def failures(results: dict[str, bool]) -> list[str]:
    """The names of the failed tests."""
    return [name for name, passed in results.items() if not passed]


def named(names: Iterable[str]) -> str:
    """A pattern of these names alone."""
    return f"^({'|'.join(map(re.escape, sorted(names)))})$"
