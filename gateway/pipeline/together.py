"""Work on Spark that is done at the same time, each piece in a thread of its own.

Spark plans a query on one processor, and a query over a few lines is little else.  Several at a time use the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_A_TIME: Final = 3
"""Pieces of work in progress: two that plan, and one that waits for tasks."""


def together(spark: SparkSession, works: Sequence[Callable[[], object]], at_a_time: int = AT_A_TIME) -> None:
    """Do all of `works`, in no particular order.

    The first failure is raised once all pieces in progress have ended: the session's jobs are cancelled, and no further
    piece begins.  So it is with KeyboardInterrupt.
    """
    with ThreadPoolExecutor(at_a_time, "pipeline") as pool:
        try:
            for done in as_completed([pool.submit(work) for work in works]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelAllJobs()
            raise
