"""The pipeline's benchmark: its account of processor time."""

from __future__ import annotations

import subprocess
import sys

from loadtest.pipeline_bench.whole import Spent

_BUSY = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    sys.stdin.read()
else:
    while time.process_time() < 0.2:
        pass
    print("worked", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_has_ended_counts_although_its_parent_keeps_no_account_of_it() -> None:
    spent = Spent()
    with subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == b"worked\n"
        spent.look()
        parent.stdin.close()
    spent.look()
    assert spent.total_s >= 0.19
