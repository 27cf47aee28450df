"""The process from which Spark forks its Python workers on a single machine (`spark.python.daemon.module`).

It imports the modules that workers need before it forks any worker.  Otherwise each worker would spend two seconds of
processor time on imports.  Spark also makes its workers import PySpark from a zip without compiled modules.  This
process removes the zip from the path, so that workers import the installed package, which has compiled modules.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

_NEEDED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "gateway.pipeline.curve.measure",
    "gateway.pipeline.curve.placing",
    "gateway.pipeline.lake",
    "gateway.pipeline.plain",
    "gateway.pipeline.sessions",
)


def main() -> None:
    """Import the modules, then fork a worker for each of Spark's requests."""
    with_zips = sys.path[:]
    sys.path[:] = [entry for entry in with_zips if not entry.endswith(".zip")]
    if find_spec("pyspark") is None:
        sys.path[:] = with_zips
    from pyspark.daemon import manager

    for name in _NEEDED:
        import_module(name)
    # Workers share the memory of these objects as long as the garbage collector does not write to it.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
