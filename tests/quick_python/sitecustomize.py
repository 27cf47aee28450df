"""Python imports this when it starts, where `tests.spark` leads it here: in each worker that Spark starts for a test.

Spark puts its own zip on their path, so that each compiles PySpark anew; the installed package is compiled already.
Spark's daemons fork workers that import the source one by one, and that look through all their objects for garbage
after each task; here the daemon imports it, once for all its workers, and takes what it has from what is looked
through.  Tasks need pandas too, which takes longest to load; planners do not, and each kind has a daemon of its own.
"""

import gc
import sys
from importlib import import_module

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]

if not {"pyspark.daemon", "gateway.pipeline.worker_daemon"}.isdisjoint(sys.orig_argv):
    _WORKER = sys.orig_argv[-1]
    _SOURCE = ("source", "batch", "stream", "reading", "writer")
    _FOR_TASKS = ("pandas",) if _WORKER == "pyspark.worker" else ()
    for name in (*_FOR_TASKS, *(f"pyspark_durable_streams.{part}" for part in _SOURCE), _WORKER):
        import_module(name)
    gc.collect()
    gc.freeze()
