"""A run of aggregate that dies by SIGKILL when it comes to a table, on the Spark of the program that starts it.

python -m tests.pipeline.gold.dying <lake> <table's place>
"""

from __future__ import annotations

import os
import signal
import sys

from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.lake import Lake
from tests.spark import joined


def main(lake: str, place: str) -> None:
    def die(text: str) -> None:
        if text.startswith(place):
            os.kill(os.getpid(), signal.SIGKILL)

    aggregate(joined(), Lake(lake), progress=die)


if __name__ == "__main__":
    main(*sys.argv[1:])
