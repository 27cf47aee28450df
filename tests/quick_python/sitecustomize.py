"""Python imports this when it starts, where `tests.spark` leads it here: in each worker that Spark starts for a test.

Spark puts its own zip on their path, so that each compiles PySpark anew; the installed package is compiled already.
And its daemons fork workers that import pandas and PyArrow one by one; here the daemon does, once for all of them.
Together that is a second of a processor for each worker, and many tests of a data source start ten.
"""

import sys
from importlib import import_module

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]

if "pyspark.daemon" in sys.orig_argv:
    for name in ("pandas", "pyarrow", "pyspark_durable_streams", sys.orig_argv[-1]):
        import_module(name)
