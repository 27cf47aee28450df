"""`python -m tests.isolation`: principals over shared tapes for a while; says what reached whom it must not."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

import uvloop

from tests.isolation.isolation import isolated


async def _run(seed: int, until: float) -> list[str]:
    async with isolated(seed) as run:
        while time.monotonic() < until and not run.violations:
            await run.step()
    return [f"seed {seed}: {run!r}", *run.violations]


def main() -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="isolation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="its seed (default 1)")
    arguments = parser.parse_args()
    # Refusals are what it is about.
    logging.disable(logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(_run(arguments.seed, time.monotonic() + arguments.seconds))
    sys.stdout.write("\n".join(found[:20]) + "\n")
    return 1 if found[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
