"""The pipeline under `spark-submit`.  Its workers have the code's zip and the packages in one file of requirements.

Runs only with the long tests.  `test_worker_python.py` is the short form.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

from gateway.pipeline.session import prepare
from tests.deploy.conftest import BOUND_S
from tests.pipeline.access_log import access_log
from tests.served import durable_gateway, served
from tests.spark import quick_java, settings

JOB: Final = Path(__file__).with_name("spark_cluster_job.py")
MASTER: Final = "local-cluster[1,1,1024]"
"""A master and a worker, each a Java of its own, and a process for the executor."""


def test_tasks_run_on_workers_that_have_the_zip_and_the_requirements(
    tmp_path: Path, worker_python: Path, zipped_code: Path
) -> None:
    log, lake = tmp_path / "access.log", tmp_path / "lake"
    log.write_text(access_log(400))
    job = shutil.copy(JOB, tmp_path)
    # Nothing but the zip leads to the packages.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
    environ |= {"PYSPARK_PYTHON": str(worker_python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    prepare(environ, is_local=True)
    chosen = {**settings(tmp_path, compiles=False), "spark.executor.extraJavaOptions": quick_java()}
    conf = [part for key, value in chosen.items() for part in ("--conf", f"{key}={value}")]
    submit: list[str | Path] = [
        Path(pyspark.__file__).parent / "bin" / "spark-submit",
        "--master",
        MASTER,
        *conf,
        "--py-files",
        zipped_code,
    ]
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        done = subprocess.run(
            [*submit, job, log, f"{urls['origin']}/logs/edge", lake],
            cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=BOUND_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # spark-submit gives out as one what its program says on either.
    assert "starting Spark on the cluster of spark-submit" in done.stdout
    assert "\ningest: 400 lines" in done.stdout
    assert "\ncurve: 16 sizes of s3-fifo, sieve, lru from 400 catch-up reads of 9 tapes" in done.stdout
