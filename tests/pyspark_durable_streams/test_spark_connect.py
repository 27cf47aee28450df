"""The Spark source and sink of a Spark Connect client, which runs the guide's own program.

In the short form the Connect server is in the Java of the other tests: to start one and to warm it up takes half a
minute of a processor.  In the long form `sbin/start-connect-server.sh` starts it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import pytest

from gateway.pipeline.session import prepare
from tests.effort import IS_LONG
from tests.spark import QUICK_PYTHON, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME: Final = Path(__file__).parents[2]
GUIDE: Final = (HOME / "docs" / "guides" / "spark.md").read_text()
JOB: Final = Path(__file__).with_name("spark_connect_job.py")
BOUND_S: Final = 360
STARTED: Final = re.compile(r"Spark Connect server started at: (127\.0\.0\.1:\d+)")
ANY_PORT: Final = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A Connect server on loopback; its host and port."""
    if IS_LONG:
        with by_script(tmp_path) as found:
            yield found
    else:
        with in_java_of(request.getfixturevalue("spark")) as found:
            yield found


@contextmanager
def in_java_of(spark: SparkSession) -> Iterator[str]:
    """A Connect server next to the session in its Java."""
    context = spark.sparkContext._jsc.sc()
    package = spark._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    none = getattr(getattr(spark._jvm.scala, "None$"), "MODULE$")  # type: ignore[union-attr]
    for key, value in ANY_PORT.items():
        context.conf().set(key, value)
    service.start(context)
    try:
        yield f"127.0.0.1:{service.localPort()}"
    finally:
        service.stop(none, none)
        for key in ANY_PORT:
            context.conf().remove(key)


@contextmanager
def by_script(folder: Path) -> Iterator[str]:
    """A Connect server in a Java of its own."""
    environ = {**os.environ, "SPARK_PID_DIR": str(folder), "SPARK_LOG_DIR": str(folder), "PYTHONPATH": QUICK_PYTHON}
    prepare(environ, is_local=True)
    chosen = {
        **settings(folder, compiles=False),
        **ANY_PORT,
        "spark.ui.enabled": "false",
    }
    conf = [part for key, value in chosen.items() for part in ("--conf", f"{key}={value}")]
    start = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh"
    process = subprocess.Popen(
        [start, "--wait", "--master", "local[2]", *conf],
        cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said: list[str] = []
    found = None
    for line in process.stdout:
        said.append(line)
        if found := STARTED.search(line):
            break
    # What it says later must not fill the pipe.
    reader = threading.Thread(target=lambda out=process.stdout: said.extend(out), daemon=True)
    reader.start()
    try:
        assert found is not None, "".join(said)
        yield found[1]
    finally:
        # The script's shells would not pass it on to Java.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(BOUND_S)
        reader.join(BOUND_S)
        process.stdout.close()


def test_a_client_runs_the_guides_program_formats_and_sinks_and_gets_errors_of_one_line(
    server: str, urls: Mapping[str, str], tmp_path: Path
) -> None:
    [text] = re.findall(r"```python\n(# connect\.py\n.*?)```", GUIDE, re.DOTALL)
    [shown] = re.findall(r"`python connect\.py` shows[^`]*```text\n(.*?)```", GUIDE, re.DOTALL)
    text = text.replace("sc://127.0.0.1:15002", f"sc://{server}").replace("http://127.0.0.1:4437", urls["gateway"])
    program = tmp_path / "connect.py"
    program.write_text(text.replace("/tmp/", f"{tmp_path}/"))
    # The client has no Spark of its own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, JOB, program, tmp_path],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        *shown.splitlines(),
        "",
        "typed [(1, 9.5), (2, 12.0)]",
        "streamed [(0, 9.5), (1, 12.0)]",
        "again [(0, 9.5), (1, 12.0), (2, 7.25)]",
        "by_stream ['{\"id\":1}', '{\"id\":3}']",
        "refused DataLost: stream missing: 404",
    ]
