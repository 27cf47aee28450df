from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from loadtest.bench.machine import (
    BenchError,
    CoreTime,
    Memory,
    busy_s,
    core_time,
    family,
    memory,
    parse_core_time,
    parse_smaps_rollup,
)

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
    assert core_time(min(os.sched_getaffinity(0))).busy_s > 0
    with pytest.raises(BenchError, match=re.escape("core 9999")):
        core_time(9999)


def test_what_the_host_took_of_a_core_is_told_from_what_ran_on_it() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 {ticks} {ticks} {ticks} 900 900 {ticks} {ticks} {3 * ticks} 0 0\nintr 5\n"
    assert parse_core_time(stat, 0) == CoreTime(busy_s=8.0, stolen_s=3.0)


def test_processor_time_of_another_process_is_its_own_clock() -> None:
    program = "import sys, time\nwhile time.process_time() < 0.05: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        assert busy_s([other.pid]) >= 0.05
        assert busy_s([other.pid, os.getpid()]) > busy_s([other.pid])
        other.communicate()
