"""The pipeline's speed: `python -m loadtest.pipeline_bench [--lines 1k,1M,5M]`.

Each size is written, taken in and added up at local[2], in a process of its own, and DuckDB answers two questions on
the same lines.  DuckDB reads lines and keeps nothing; the pipeline checks each line, keeps it, types it, joins sessions
and writes all of gold, once however often it is run.  Each size also goes through `pipeline run`, with the start of
Spark, the curve, the plan and the report.  The smallest size above ten thousand lines also goes through a cluster of
two executors, and every table must be the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadtest.pipeline_bench.duck import ask_duckdb
from loadtest.pipeline_bench.log import write_log
from loadtest.pipeline_bench.small_commits import measure
from loadtest.pipeline_bench.whole import measure_run

_UNITS: Final = {"k": 1_000, "M": 1_000_000}
_CLUSTER: Final = "local-cluster[2,1,1024]"
_BOUND_S: Final = 3_600.0
_FEW: Final = 10_000


def main() -> int:
    """Run it; 1 where two ways to the same tables differ."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.pipeline_bench")
    parser.add_argument("--lines", type=_sizes, default=[1_000, 1_000_000, 5_000_000], help="sizes, such as 1M,5M")
    parser.add_argument("--commits", type=int, help="instead: what a lake of so many small commits costs")
    parser.add_argument("--out", type=Path, default=Path("build/pipeline-bench"), help="folder of what is written")
    parser.add_argument("--no-cluster", action="store_true", help=f"leave {_CLUSTER} out")
    parser.add_argument("--keep", action="store_true", help="keep logs and lakes")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)  # a file is as wide as the table
    if asked.commits is not None:
        measure(asked.commits, min(asked.lines), asked.out / "commits", console)
        return 0
    compared = min([size for size in asked.lines if size > _FEW] or asked.lines)
    runs: list[dict[str, Any]] = []
    same: bool | None = None
    for size in asked.lines:
        folder = asked.out / str(size)
        shutil.rmtree(folder, ignore_errors=True)
        began = time.perf_counter()
        written = write_log(folder / "log", size)
        console.print(f"{size:,} lines, {written.size / 1e9:.2f} GB, written in {time.perf_counter() - began:.0f} s")
        run = _run(folder, "local[2]")
        if not runs:
            first = measure_run(folder / "log", folder / "first", "local[2]")
            took = f"{first.wall_s:.1f} s, {first.cpu_s:.1f} s of processors"
            console.print(f"a first run, which writes the archive of Java's classes unless there is one: {took}")
        whole = measure_run(folder / "log", folder / "whole", "local[2]")
        run |= {"lines": size, "bytes": written.size, "duckdb": ask_duckdb(folder / "log"), "run": asdict(whole)}
        runs.append(run)
        if size == compared and not asked.no_cluster:
            console.print(f"the same at {_CLUSTER}")
            other = _run(folder, _CLUSTER)
            differ = [name for name, checksum in run["tables"].items() if other["tables"][name] != checksum]
            same = not differ
            console.print("every table is the same" if same else f"tables differ: {', '.join(differ)}")
        if not asked.keep:
            shutil.rmtree(folder)
    console.print(_table(runs))
    (asked.out / "figures.json").write_text(json.dumps({"runs": runs, "cluster_is_same": same}, indent=1))
    return 1 if same is False else 0


def _run(folder: Path, master: str) -> dict[str, Any]:
    name = master.partition("[")[0]
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", "loadtest.pipeline_bench.work", "--log", str(folder / "log"), "--master", master]
    subprocess.run(
        [*command, "--lake", str((folder / name).absolute()), "--out", str(out)], check=True, timeout=_BOUND_S
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="seconds, local[2]; DuckDB with 2 threads")
    for head in ("lines", "GB", "Spark starts", "ingest", "aggregate", "both, a million", "run", "processor", "load"):
        table.add_column(head, justify="right")
    table.add_column("DuckDB minutes", justify="right")
    table.add_column("top 10", justify="right")
    for run in runs:
        took, duck, whole = run["took"], run["duckdb"], run["run"]
        million = (took["ingest"] + took["aggregate"]) / run["lines"] * 1e6
        table.add_row(
            f"{run['lines']:,}",
            f"{run['bytes'] / 1e9:.2f}",
            *(f"{took[name]:.1f}" for name in ("start", "ingest", "aggregate")),
            f"{million:.1f}",
            *(f"{whole[name]:.1f}" for name in ("wall_s", "cpu_s", "load")),
            *(f"{duck[name]:.1f}" for name in ("minutes", "top")),
        )
    return table


def _sizes(text: str) -> list[int]:
    sizes = []
    for part in text.split(","):
        number = int(part.rstrip("kM")) * _UNITS.get(part[-1:], 1)
        if number < 1:
            raise argparse.ArgumentTypeError(f"{part}: expected a number of lines")
        sizes.append(number)
    return sizes


if __name__ == "__main__":
    sys.exit(main())
