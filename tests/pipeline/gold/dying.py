"""A run of aggregate that dies by SIGKILL when it comes to a table.

python -m tests.pipeline.gold.dying <lake> <scratch folder> <table's place>
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.lake import Lake
from tests.spark import local_spark


def main(lake: str, scratch: str, place: str) -> None:
    with local_spark(Path(scratch)) as spark:

        def die(text: str) -> None:
            if text.startswith(place):
                os.kill(os.getpid(), signal.SIGKILL)

        aggregate(spark, Lake(lake), progress=die)


if __name__ == "__main__":
    main(*sys.argv[1:])
