"""The Python programs of the guides, as printed, in processes of their own, through a gateway as a page starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.served import dev_gateway, served

DOCS = Path(__file__).parents[2] / "docs"
BOUND_S = 60
# `python` and `pytest` of a snippet are those of this environment.
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def printed(page: str, language: str, mark: str) -> str:
    """The one block of the page that has the mark."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if mark in block)
    return str(block)


def test_the_python_client_of_the_guide_prints_what_it_has_appended() -> None:
    program = printed("guides/clients.md", "python", "astream")
    with served(dev_gateway(), "gateway") as urls:
        program = program.replace("http://127.0.0.1:4437", urls["gateway"])
        with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            try:
                assert client.stdout.readline() == "{'from': 'ada', 'text': 'hello'}\n"
            finally:
                client.kill()


def test_the_s2_client_of_the_guide_prints_what_it_has_appended() -> None:
    script = printed("guides/s2.md", "sh", "s2_sdk")
    with served([*dev_gateway(), "--protocol", "s2"], "gateway") as urls:
        script = script.replace("http://127.0.0.1:4437", urls["gateway"])
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=BOUND_S, env=ENVIRON, check=False
        )
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr


def test_the_test_of_the_guide_passes(tmp_path: Path) -> None:
    (tmp_path / "test_reader.py").write_text(printed("start/tests.md", "python", "durable_gateway"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reader.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
