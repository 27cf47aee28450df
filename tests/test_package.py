"""The wheel and the sdist: what is in them, and that a package index would take them."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from gateway import __version__

ROOT = Path(__file__).parents[1]
BOUND_S = 240


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made of it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_an_index_would_take_both(built: Path) -> None:
    files = [str(path) for path in built.iterdir()]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("durable-gateway", __version__)
    for name in ("Summary", "Author", "License-Expression", "Requires-Python", "Keywords", "Description-Content-Type"):
        assert metadata[name], name
    assert set(metadata.get_all("Provides-Extra", [])) >= {"opentelemetry", "pipeline"}
    assert len(metadata.get_all("License-File", [])) == 2
    assert len(str(metadata.get_payload())) > 1_000


def test_the_wheel_has_what_runs_and_no_more(wheel: zipfile.ZipFile) -> None:
    tops = {re.sub(r"^durable_gateway-[^/]+\.", "*.", name.partition("/")[0]) for name in wheel.namelist()}
    assert tops == {"durable_gateway_pytest.py", "gateway", "pyspark_durable_streams", "*.data", "*.dist-info"}
    for name in ("gateway/py.typed", "gateway/cli/program.py", "gateway/ops/console/static/vendor/uplot/LICENSE"):
        assert name in wheel.namelist()
    (page,) = (name for name in wheel.namelist() if ".data/" in name)
    assert page.endswith("/data/share/man/man1/durable-gateway.1")


def test_the_sdist_has_what_describes_it(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "config/gateway.toml", "pyproject.toml"):
        assert name in names
    assert not any(name.startswith(("tests/", ".venv/")) for name in names)
