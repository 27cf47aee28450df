"""The manual page that is in the repository says what `--help` says."""

from __future__ import annotations

from gateway.cli.program import app
from tests.man_page import FILE, man_page


def test_the_page_is_that_of_the_commands_as_they_are() -> None:
    assert FILE.read_text(encoding="utf-8") == man_page(), "make man writes it anew"


def test_every_command_has_a_section() -> None:
    sections = [line.split()[1] for line in man_page().splitlines() if line.startswith(".SS ")]
    names = [one.callback.__name__ for one in app.registered_commands if one.callback is not None]
    assert set(sections) == {*names, "pipeline"}


def test_no_line_is_taken_for_a_request_of_roff() -> None:
    requests = {line.split(maxsplit=1)[0] for line in man_page().splitlines() if line[:1] in (".", "'")}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP", ".B"}
