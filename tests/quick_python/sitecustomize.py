"""Python imports this when it starts, where `tests.spark` leads it here: in each worker that Spark starts for a test.

Spark puts its own zip on their path, so that each compiles PySpark anew; the installed package is compiled already.
And its daemons fork workers that import pandas, PyArrow and the source one by one, and that look through all their
objects for garbage after each task; here the daemon imports them, once for all its workers, and takes what it has from
what is looked through.  Together that is a second of a processor for each worker, and many tests of a data source start
ten.
"""

import gc
import sys
from importlib import import_module

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]

if "pyspark.daemon" in sys.orig_argv:
    _SOURCE = ("source", "batch", "stream", "reading", "writer")
    for name in ("pandas", "pyarrow", *(f"pyspark_durable_streams.{part}" for part in _SOURCE), sys.orig_argv[-1]):
        import_module(name)
    gc.collect()
    gc.freeze()
