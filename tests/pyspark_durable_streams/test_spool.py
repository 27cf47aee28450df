"""The spool as tasks find it, which may be on a machine where the same path is something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark_durable_streams.spool import Extent, Spool


def test_what_was_kept_is_read_again_until_it_is_let_go() -> None:
    spool = Spool(10)
    extent = spool.add(b"1\n2\n")
    assert extent is not None
    assert extent.read() == b"1\n2\n"
    assert spool.add(b"1234567") is None
    spool.close()
    assert extent.read() is None


def test_a_pipe_that_has_the_spools_number_loses_nothing_and_is_not_waited_for() -> None:
    # Containers number their processes alike: elsewhere the path may be a pipe, of Spark's own perhaps.
    read, write = os.pipe()
    extent = Extent(f"/proc/{os.getpid()}/fd/{read}", b"n" * 16, 16, 4)
    os.write(write, b"s" * 20)
    assert extent.read() is None
    os.close(write)
    assert os.read(read, 64) == b"s" * 20
    os.close(read)


def test_a_process_that_ends_closes_the_spools_that_it_has_retained() -> None:
    program = (
        "from pyspark_durable_streams.spool import Spool, retain\n"
        "spools = [Spool(9) for _ in range(4)]\n"
        "for one in spools: retain(one)\n"
        "print(*(one.add(b'1') is not None for one in spools))\n"
    )
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False False True True\n", "")
