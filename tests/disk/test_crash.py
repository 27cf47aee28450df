"""A process that is killed while it writes: whatever the next one finds on disk is what was written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from asyncio import run
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random

from gateway.aio.clock import ManualClock
from gateway.config.store import StoreConfig
from gateway.disk.runs import Run
from gateway.disk.store import DiskStore
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import Edition, Version
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from tests.waiting import eventually_on_disk

KILLS = 20
READERS = Partition("r")


def body(path: str, number: int) -> bytes:
    """The bytes between two tokens of a stream."""
    return blake2b(f"{path} {number}".encode()).digest() * 500


def config(folder: Path) -> StoreConfig:
    return StoreConfig(path=str(folder), max_bytes=8 << 20, segment_bytes=1 << 20)


async def write_on(folder: Path, seed: int) -> None:
    """Write streams, and withdraw some, until this process is killed."""
    disk, rng = DiskStore.open(config(folder), ManualClock()), Random(seed)
    disk.take_routes({READERS: "all"})
    for life in count():
        key = StreamKey(Group("http://o", f"/{rng.randrange(9)}"), "", READERS)
        stream = Stream(key, Tape(), Version(Edition(f"{seed} {life}")), "text/plain")
        for number in range(40):
            stream.tape.store(f"{number:08}", f"{number + 1:08}", [body(key.group.path, number)], 0.0)
        disk.leaving(stream)
        if rng.random() < 0.3:
            disk.withdraw_group(Group("http://o", f"/{rng.randrange(9)}"))
        await disk.settled()


async def read_all(folder: Path) -> int:
    """Read every run; return how many there are."""
    disk, found = DiskStore.open(config(folder), ManualClock()), 0
    for stored in disk.streams():
        for one in list[Run](stored):
            block = await disk.read(stored, one)
            assert block is not None, one
            numbers = range(int(one.start), int(one.end))
            assert b"".join(block.pieces) == b"".join(body(stored.key.path, number) for number in numbers)
            assert [token for _, token in block.marks] == [f"{number:08}" for number in numbers]
            found += 1
    assert disk.counts.damaged == 0
    await disk.close([])
    return found


PROGRAM = """
import os, sys
from asyncio import run
from pathlib import Path
from tests.disk.test_crash import write_on

# One process has the modules, and its children write.
for line in sys.stdin:
    if (child := os.fork()) == 0:
        run(write_on(Path(sys.argv[1]), int(line)))
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def test_nothing_torn_is_read_after_a_kill(tmp_path: Path) -> None:
    rng, counts = Random(1), []
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seed in range(KILLS):
            before, enough = written(tmp_path), rng.randrange(4 << 20)
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            eventually_on_disk(lambda: written(tmp_path) > before + enough, 20)  # noqa: B023
            os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "gone\n"
            counts.append(run(read_all(tmp_path)))
        process.stdin.close()
    assert max(counts) > 10


def written(folder: Path) -> int:
    """About how many bytes were written to segments so far."""
    return sum((int(path.stem) << 20) + path.stat().st_size for path in sorted(folder.glob("*.segment"))[-1:])
