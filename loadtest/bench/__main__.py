"""`python -m loadtest.bench`: start all servers, measure in interleaved rounds, report.

A round measures every peer of a benchmark once, in an order that rotates from round to round, so that no peer always
runs on a core that the same other peer has just warmed.  Exit statuses: 0 measured, whatever the figures; 1 not
measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest.bench import chart, growth, report
from loadtest.bench.catalogue import every_benchmark
from loadtest.bench.figures import Growth
from loadtest.bench.machine import BenchError, Cores, description
from loadtest.bench.peers import HAS_FAST_PATH_SWITCH, all_running
from loadtest.bench.stage import Benchmark, Stage
from loadtest.bench.tools import prepare

_FOREIGN_IS_MUCH = 0.1


def main() -> int:
    """Run the benchmarks that the command line selects."""
    options = _options()
    try:
        result = _measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    report.show(result, Console(width=120, soft_wrap=True, highlight=False))
    _write(result, options.out)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    names = [benchmark.name for benchmark in every_benchmark()]
    environ = os.environ
    parser.add_argument("--rounds", type=int, default=environ.get("BENCH_ROUNDS", "3"))
    parser.add_argument("--seconds", type=float, default=environ.get("BENCH_SECONDS", "2"), help="per peer")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for bench.json and the charts")
    parser.add_argument("--only", nargs="+", choices=[*names, "growth"], metavar="NAME", help=", ".join(names))
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these peers; the default is all")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds < 1:
        parser.error("at least one round and one second are needed")
    return options


def _measure(options: argparse.Namespace) -> report.Result:
    cores = Cores.of_this_machine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tools = prepare(Path("build/bench"))
    chosen = [benchmark for benchmark in every_benchmark() if not options.only or benchmark.name in options.only]
    machine, growths = description(), list[Growth]()
    notes = [] if HAS_FAST_PATH_SWITCH else ['skipped: "fast path off", because server.fast_path is no setting yet']
    with tempfile.TemporaryDirectory(prefix="bench-") as name, all_running(tools, cores, Path(name)) as peers:
        stage = Stage(tools, cores, peers, Path(name), options.seconds, hard)
        for benchmark in chosen:
            notes += _run(benchmark, stage, options.rounds, options.peers)
        if not options.only or "growth" in options.only:
            print("growth", file=sys.stderr, flush=True)
            growths = growth.measure(stage)
    rows = [row for benchmark in chosen for row in benchmark.rows]
    foreign = report.foreign_share(rows)
    if foreign is not None and foreign > _FOREIGN_IS_MUCH:
        notes.append(f"others took {foreign:.0%} of the server's core: read the processor time")
    settings = {"rounds": options.rounds, "seconds": options.seconds}
    return report.Result(machine, tools.versions(), settings, rows, growths, notes)


def _run(benchmark: Benchmark, stage: Stage, rounds: int, only: Sequence[str] | None) -> list[str]:
    """Fill the benchmark's rows; return one line for each peer that could not be measured."""
    rows = {row.key: row for row in benchmark.rows}
    peers = [peer for peer in benchmark.peers if only is None or peer in only]
    failed: dict[str, str] = {}
    for number in range(min(rounds, benchmark.most_rounds)):
        print(f"{benchmark.name}, round {number + 1}", file=sys.stderr, flush=True)
        for peer in _turned(peers, number):
            if peer in failed:
                continue
            try:
                samples = benchmark.measure(stage, peer)
            except BenchError as error:
                failed[peer] = f"{benchmark.name}: {peer} was not measured: {error}"
                print(failed[peer], file=sys.stderr, flush=True)
                continue
            for key, sample in samples.items():
                rows[key].add(peer, sample)
    return list(failed.values())


def _turned(peers: Sequence[str], by: int) -> list[str]:
    by %= max(1, len(peers))
    return [*peers[by:], *peers[:by]]


def _write(result: report.Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"bench.json": report.to_json(result), "bench.svg": chart.bars(result.rows).encode()}
    if result.growth:
        files["growth.svg"] = chart.lines(result.growth).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    print(f"written: {', '.join(str(folder / name) for name in files)}")


if __name__ == "__main__":
    sys.exit(main())
