"""The modules that Spark's tasks import and call.  They run in a Python that has the code's zip and the packages in one
file of requirements.

The tests need no Java: this Python finds the zips of PySpark on its path, as Spark's Python workers do.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import httpx
import pyspark

from tests.deploy.conftest import BOUND_S, HOME
from tests.served import forked_gateway, served

TASKS: Final = [
    ".".join(file.relative_to(HOME).with_suffix("").parts)
    for file in sorted((HOME / "gateway" / "pipeline").rglob("*.py"))
    if ".mapInArrow(" in file.read_text() and not file.name.startswith("cli")
]
"""The modules of the pipeline with functions that Spark runs in its workers, where it imports the modules.

The command line's own is a lambda, of which Spark ships the code.
"""
PROGRAM: Final = """
import sys
from importlib import import_module

_, url, *modules = sys.argv
for name in modules:
    import_module(name)

from pyspark.sql.types import LongType, StringType, StructType
from pyspark_durable_streams import DefaultSource

source = DefaultSource({"url": url, "stream": "logs/edge"})
schema = StructType()
for column in source.schema().split(","):
    name, kind = column.split()
    schema.add(name, {"string": StringType, "bigint": LongType}[kind]())
reader = source.reader(schema)
for task in reader.partitions():
    for found in reader.read(task):
        for row in found.to_pylist():
            print(row["pos"], row["value"])
print(import_module("gateway").__file__)
"""


def test_tasks_need_the_zip_and_the_requirements_alone(worker_python: Path, zipped_code: Path) -> None:
    libraries = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"PYTHONPATH": os.pathsep.join(map(str, (zipped_code, *libraries))), "PYTHONNOUSERSITE": "1"}
    assert len(TASKS) >= 5
    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        content = {"Content-Type": "application/json"}
        made = httpx.put(f"{urls['origin']}/logs/edge", content=b'[{"n":0},{"n":1}]', headers=content)
        assert made.status_code == 201
        done = subprocess.run(
            [worker_python, "-P", "-c", PROGRAM, urls["origin"], *TASKS, "pyspark_durable_streams.writer"],
            cwd=zipped_code.parent, env=environ, capture_output=True, text=True, check=False, timeout=BOUND_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        '0 {"n":0}',
        '1 {"n":1}',
        str(zipped_code / "gateway" / "__init__.py"),
    ]
