"""The process that Spark forks its Python workers from, on one machine (`spark.python.daemon.module`).

It imports the modules that workers need once, before any worker is forked.  Otherwise each worker spends two seconds of
a processor on imports.  Spark also leads its workers to a zip of PySpark that holds no compiled modules; the installed
package does.
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
    """Import, then fork a worker for each of Spark's requests."""
    with_zips = sys.path[:]
    sys.path[:] = [entry for entry in with_zips if not entry.endswith(".zip")]
    if find_spec("pyspark") is None:
        sys.path[:] = with_zips
    from pyspark.daemon import manager

    for name in _NEEDED:
        import_module(name)
    # Workers share these objects as long as no collection writes to them.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
