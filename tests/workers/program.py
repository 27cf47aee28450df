"""`durable-gateway` as the tests of workers run it: by another clock, or with a fault that a test is to find.

Both are settled by environment variables before the command line runs, and therefore before a worker is forked.  No
other program reads these variables.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Final

CLOCK: Final = "WORKERS_TEST_CLOCK"
"""Speed of the clock and the machine's monotonic time of its epoch, with a blank between, or the file of a
`SharedClock`."""
MUTANT: Final = "WORKERS_TEST_MUTANT"
"""Name of a mutant of `tests.workers.mutants`."""


def main() -> int:
    """Run the command line, and print the process's pid first.  Returns the exit status."""
    import gateway.app
    from gateway.aio.clock import Clock
    from tests.fast_clock import CommonClock
    from tests.workers.clock import SharedClock

    print("PID", os.getpid(), flush=True)  # noqa: T201
    if (text := os.environ.get(CLOCK)) is not None:
        clock: Clock = SharedClock(text) if text.startswith("/") else CommonClock(*map(float, text.split()))
        # Whoever starts a gateway imports the function when it does so.
        started = partial(gateway.app.start_gateway, clock=clock)
        gateway.app.start_gateway = started
    from gateway import cli

    if (name := os.environ.get(MUTANT)) is not None:
        from tests.workers.mutants import MUTANTS

        (mutant,) = [one for one in MUTANTS if one.name == name]
        with mutant.at_work():
            return cli.main()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
