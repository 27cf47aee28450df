"""`make pipeline-demo`: measure the value of a cache plan, as one table and one chart.

It writes `plan-demo.json`, `plan-demo.svg`, `plan.json` and `report.html` to the folder.  Exit statuses: 0 done; 1 the
experiment failed, or a reader got wrong bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin
from loadtest.plan_demo.result import Arm, chart, table
from loadtest.plan_demo.stage import Life, WrongBytes, live, origin
from loadtest.plan_demo.traffic import LIVES, archives, reads, rooms, total_bytes

ROOT: Final = Path(__file__).parents[2]
WARM_S: Final = 3.0
"""`cache.plan.warm_s`, scaled down: a gateway's life is seconds here and days in production."""
_PIPELINE_S: Final = 300.0
_LEARNED: Final = 1
_SHOWN: Final = 2
"""Seeds: the load that the pipeline learns from is not the one that is shown."""


class CouldNotRun(RuntimeError):
    """The experiment failed; the text says why."""


def main() -> int:
    """Run the experiment and print its table; the exit status."""
    parser = argparse.ArgumentParser(prog="make pipeline-demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--reads", type=int, default=4_000, help="in each life")
    parser.add_argument("--per-second", type=float, default=500)
    parser.add_argument("--cache-bytes", type=int, default=4 << 20, help="of the gateway without a plan")
    parser.add_argument("--target", type=float, default=0.9, help="hit ratio that the plan is made for")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "plan-demo")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wrong, arms = False, []
    try:
        with tempfile.TemporaryDirectory(prefix="plan-demo-") as folder:
            arms = asyncio.run(experiment(options, Path(folder)))
    except* (CouldNotRun, WrongBytes) as group:
        print(f"plan-demo: {group.exceptions[0]}", file=sys.stderr)
        wrong = True
    if wrong:
        return 1
    documents = [arm.document() for arm in arms]
    (options.out / "plan-demo.json").write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2) + b"\n")
    (options.out / "plan-demo.svg").write_text(chart(arms))
    print(f"\n{table(documents)}\nin {options.out}: plan-demo.svg, plan-demo.json, plan.json, report.html")
    return 0


async def experiment(options: argparse.Namespace, folder: Path) -> list[Arm]:
    """The three arms.  CouldNotRun where the pipeline fails."""
    log, plan = folder / "access.log", options.out / "plan.json"
    print(
        f"{len(rooms())} rooms of {total_bytes(rooms()) / 1e6:.0f} MB and {len(archives())} archives of "
        f"{total_bytes(archives()) / 1e6:.0f} MB at the origin; {LIVES} lives of {options.reads:,} reads each"
    )
    async with origin() as behind:
        before: dict[str, Any] = {"cache_bytes": options.cache_bytes}
        print("without a plan: what the pipeline learns from")
        await lives(behind, before | {"sink": "file", "path": str(log)}, options, _LEARNED)
        await asyncio.to_thread(run_pipeline, log, folder / "lake", plan, options)
        memory = orjson.loads(plan.read_bytes())["memory"]["cache_bytes"]
        planned = {"file": str(plan), "warm_s": WARM_S}
        arms = []
        for name, settings, cache_bytes in (
            ("without a plan", before, options.cache_bytes),
            ("the plan's lists, the same memory", before | planned, options.cache_bytes),
            ("the plan", planned, memory),
        ):
            print(name)
            arms.append(Arm(name, cache_bytes, await lives(behind, settings, options, _SHOWN)))
    return arms


async def lives(
    behind: RunningOrigin, settings: dict[str, Any], options: argparse.Namespace, seed: int
) -> tuple[Life, ...]:
    """One gateway's lives, with a start from nothing between them."""
    # All clients share one address here.
    settings = {"client_new_streams_per_s": 0, **settings}
    config = GatewayConfig.for_origin(behind.url, listen="127.0.0.1:0", admin="127.0.0.1:0", **settings)
    return tuple(
        [await live(config, behind, reads(seed, number, options.reads), options.per_second) for number in range(LIVES)]
    )


def run_pipeline(log: Path, lake: Path, plan: Path, options: argparse.Namespace) -> None:
    """The whole pipeline over the log, as its user runs it.  CouldNotRun where it fails."""
    command = [
        sys.executable, "-m", "gateway", "pipeline", "run", str(log), "--lake", str(lake),
        "--plan", str(plan), "--report", str(options.out / "report.html"), "--target", str(options.target),
        "--min-span", "1s",  # seconds stand for days here
    ]  # fmt: skip
    print("the pipeline:")
    done = subprocess.run(command, cwd=ROOT, timeout=_PIPELINE_S, check=False)
    if done.returncode:
        raise CouldNotRun(f"the pipeline left with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
