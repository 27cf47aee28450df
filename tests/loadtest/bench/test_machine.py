from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from loadtest.bench.machine import BenchError, Memory, busy_s, core_busy_s, family, memory, parse_smaps_rollup

ROLLUP = """\
55d0c0a00000-7ffd1b9f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               41300 kB
Pss:               38012 kB
Pss_Dirty:         30112 kB
Shared_Clean:       4096 kB
"""


def test_memory_is_read_in_bytes() -> None:
    assert parse_smaps_rollup(ROLLUP) == Memory(41_300 * 1024, 38_012 * 1024)


def test_this_process_has_memory_and_has_worked() -> None:
    me = family(os.getpid())
    assert me[0] == os.getpid()
    assert memory(me[:1]).rss_bytes >= memory(me[:1]).pss_bytes > 1 << 20
    assert busy_s(me[:1]) > 0


def test_a_core_that_is_not_there_is_named() -> None:
    assert core_busy_s(min(os.sched_getaffinity(0))) > 0
    with pytest.raises(BenchError, match=re.escape("core 9999")):
        core_busy_s(9999)


def test_processor_time_of_another_process_is_its_own_clock() -> None:
    program = "import sys, time\nwhile time.process_time() < 0.05: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        assert busy_s([other.pid]) >= 0.05
        assert busy_s([other.pid, os.getpid()]) > busy_s([other.pid])
        other.communicate()
