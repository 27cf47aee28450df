"""Programs from the system: found where they are, named in one line where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.debian import NoProgram, program


def test_a_program_on_the_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "a-tool-of-this-test"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("a-tool-of-this-test", "a-package") == tool


def test_a_program_that_cannot_be_had_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is installed where there is no apt-get.
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoProgram) as error:
        program("no-such-tool", "its-package")
    assert str(error.value) == "no-such-tool is needed; Debian has it in: its-package"


def test_what_could_not_be_installed_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tmp_path / "tries"
    apt_get = tmp_path / "apt-get"
    apt_get.write_text(f'#!/bin/sh\necho "$1" >> {tries}\necho "E: no network"\nexit 100\n')
    apt_get.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.debian._ENVIRONMENT", {"PATH": f"{tmp_path}:/bin"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for _ in range(2):
        with pytest.raises(NoProgram) as error:
            program("no-such-tool", "no-such-package")
        assert str(error.value) == "apt-get update cannot install no-such-package: E: no network"
    assert tries.read_text() == "update\n"
