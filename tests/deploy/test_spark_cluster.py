"""The pipeline under `spark-submit`, on workers that have the code's zip and what one file of requirements names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest

from gateway.pipeline.session import prepare
from tests.deploy.linked import link
from tests.effort import IS_LONG
from tests.pipeline.access_log import access_log
from tests.served import durable_gateway, served
from tests.spark import quick_java, settings

HOME: Final = Path(__file__).parents[2]
WORKERS: Final = HOME / "requirements" / "workers.txt"
JOB: Final = Path(__file__).with_name("spark_cluster_job.py")
BOUND_S: Final = 360
MASTER: Final = "local-cluster[1,1,1024]"
"""A master and a worker, each a Java of its own, and a process for the executor."""


@pytest.fixture(scope="module")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has what `requirements/workers.txt` names and nothing else."""
    folder = tmp_path_factory.mktemp("worker")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=BOUND_S)
    if IS_LONG:
        install(folder / "bin" / "python")
    else:
        link(folder, WORKERS)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


def install(python: Path) -> None:
    """Install the packages as an operator does, which takes half a minute of a processor."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-compile", "--require-hashes", "-r", WORKERS], check=True, timeout=BOUND_S)


def zipped(target: Path) -> Path:
    """The code as `--py-files` takes it, with what a wheel has."""
    with zipfile.ZipFile(target, "w") as packed:
        for package in ("gateway", "pyspark_durable_streams"):
            for file in (HOME / package).rglob("*"):
                if file.is_file() and file.suffix != ".pyc":
                    packed.write(file, file.relative_to(HOME))
    return target


def test_tasks_run_on_workers_that_have_the_zip_and_the_requirements(tmp_path: Path, worker_python: Path) -> None:
    log, lake = tmp_path / "access.log", tmp_path / "lake"
    log.write_text(access_log(400))
    code = zipped(tmp_path / "durable-gateway.zip")
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
        code,
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
