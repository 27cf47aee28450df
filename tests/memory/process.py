"""A gateway as a process of its own, whose memory and open files can be measured and bounded."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

from tests.commands.warm import ONE_PROCESS

MIB: Final = 1 << 20
BOUND_S: Final = 60.0
LISTENS: Final = 'listen = "127.0.0.1:0"'

PROGRAM: Final = """
import os, resource, sys
files = int(os.environ["OPEN_FILES"])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
from gateway.cli import main
status = main()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if os.path.exists("/proc/self/status"):
    # Linux carries the peak of the process that started this one over to `ru_maxrss`.
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("PEAK", peak if sys.platform == "darwin" else peak * 1024, flush=True)
sys.exit(status)
"""


class Gateway:
    """A gateway process; `stop` returns its peak memory."""

    def __init__(
        self,
        origin: str,
        folder: Path,
        cache_mib: int,
        *,
        limits: str = "",
        listeners: str = LISTENS,
        open_files: int | None = None,
    ) -> None:
        """`limits` are more lines of the table, `listeners` are lines of `[server]` and tables of listeners;
        `open_files` is the process's hard limit of descriptors."""
        self.errors = folder / "stderr"
        config = folder / "gateway.toml"
        config.write_text(
            f'[server]\nadmin = "127.0.0.1:0"\n{listeners}\n'
            f'[limits]\ncache_bytes = "{cache_mib}MiB"\n{limits}\n'
            f'[[route]]\nname = "all"\nprefix = "/"\norigin = "{origin}"\n'
        )
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "serve", "--config", str(config)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **ONE_PROCESS, "OPEN_FILES": str(open_files or 0)},
            )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.url = self._line("READY gateway").split()[2]
        self.port = int(self.url.rpartition(":")[2])
        self.admin_url = self._line("READY admin").split()[2]

    def _line(self, beginning: str) -> str:
        for line in self._lines:
            if line.startswith(beginning):
                return line
        raise AssertionError(f"the gateway ended without a word of {beginning}")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=MIB)

    def metric(self, name: str) -> float:
        """The value of a metric, with its labels as it is exposed; 0 if it is not.  Blocks."""
        with urllib.request.urlopen(f"{self.admin_url}/metrics", timeout=BOUND_S) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rpartition(" ")[2])
        return 0.0

    @property
    def resident_bytes(self) -> int:
        """The process's resident memory now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def kill(self) -> None:
        """End the process if `stop` has not."""
        self._process.kill()
        self._process.wait(BOUND_S)
        self._lines.close()

    def stop(self) -> int:
        """The peak of the process's resident memory in bytes."""
        self._process.send_signal(signal.SIGTERM)
        peak = int(self._line("PEAK").split()[1])
        self._lines.close()
        assert self._process.wait(BOUND_S) == 0
        return peak
