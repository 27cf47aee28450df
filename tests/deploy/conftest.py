"""A Python as the workers of a cluster have it, and the zip of the code that they are given.

Spark's own cluster, whose processes are three Javas, runs in the long form alone.  The short form does in that Python
what tasks do there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.linked import link
from tests.effort import IS_LONG

HOME: Final = Path(__file__).parents[2]
WORKERS: Final = HOME / "requirements" / "workers.txt"
BOUND_S: Final = 360

collect_ignore: Final = [] if IS_LONG else ["test_spark_cluster.py"]


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


@pytest.fixture(scope="module")
def zipped_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code as `--py-files` takes it, with what a wheel has."""
    target = tmp_path_factory.mktemp("code") / "durable-gateway.zip"
    with zipfile.ZipFile(target, "w") as packed:
        for package in ("gateway", "pyspark_durable_streams"):
            for file in (HOME / package).rglob("*"):
                if file.is_file() and file.suffix != ".pyc":
                    packed.write(file, file.relative_to(HOME))
    return target
