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
