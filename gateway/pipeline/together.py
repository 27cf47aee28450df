"""Run several Spark queries at the same time, each in a thread.

Spark plans a query on one processor, and planning is most of the work of a query over few lines.  Several queries at a
time use the other processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_A_TIME: Final = 3
"""Number of pieces of work at a time.  Typically two plan queries, and one waits for tasks."""


def together(spark: SparkSession, works: Sequence[Callable[[], object]], at_a_time: int = AT_A_TIME) -> None:
    """Call all of `works`, in no particular order.

    After the first failure, or KeyboardInterrupt, no further function is called, and the session's jobs are cancelled.
    The exception is raised when all running functions have returned.
    """
    with ThreadPoolExecutor(at_a_time, "pipeline") as pool:
        try:
            for done in as_completed([pool.submit(work) for work in works]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelAllJobs()
            raise
