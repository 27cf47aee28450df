"""What the package asks of a worker's Python: no more than the guide says, and one line if it is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_durable_streams

_FOLDER = Path(pyspark_durable_streams.__file__).parent
_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "spark.md"


def imported() -> set[str]:
    """Packages that are imported, other than Python's own and Spark."""
    found: set[str] = set()
    for file in _FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"pyspark", "pyspark_durable_streams"}


def test_the_guide_names_what_workers_need() -> None:
    [command] = re.findall(r"^pip install (.*pyarrow.*)$", _GUIDE.read_text(), re.MULTILINE)
    named = {re.match(r"\w+", word.strip("'\""))[0] for word in command.split()}  # type: ignore[index]
    # Spark itself asks for pandas where it converts to Arrow.
    assert imported() <= named == imported() | {"pandas"}


def test_the_source_needs_no_orjson_and_the_sink_says_that_it_does() -> None:
    program = """
import sys
sys.modules["orjson"] = None
import pyspark_durable_streams.batch, pyspark_durable_streams.stream, pyspark_durable_streams.source
try:
    import pyspark_durable_streams.writer
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == (
        "writing durable_streams needs orjson on the driver and on every worker: pip install orjson\n"
    )


@pytest.mark.parametrize(
    "lacks",
    [
        'sys.modules["pyspark.sql.streaming.datasource"] = None',
        "del pyspark.sql.datasource.DataSourceStreamArrowWriter",
    ],
)
def test_an_older_spark_passes_the_package_over_and_names_the_version_to_those_who_ask(lacks: str) -> None:
    program = f"""
import sys
import pyspark.sql.datasource
{lacks}
import pyspark_durable_streams
print(hasattr(pyspark_durable_streams, "DefaultSource"))
try:
    pyspark_durable_streams.DefaultSource
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "False\nthe data source durable_streams needs Spark 4.2 or later\n"
