"""`--help` of every command names its options, without importing what the command needs to run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from gateway.cli.program import app
from tests.commands.here import run_here
from tests.commands.warm import ROOT

OPTIONS = {
    "check": ["CONFIG", "--all", "--quiet", "--json", "--probe"],
    "tail": ["URL", "--from", "--sse", "--long-poll", "--offsets", "--header"],
    "append": ["URL", "--json", "--lines", "--binary", "--create", "--close", "--retry-for", "--header"],
    "bench": ["URL", "--seconds", "--connections", "--subscribers", "--json", "--header"],
    "top": ["--by", "--limit", "--interval", "--once", "--admin"],
    "streams": ["PREFIX", "--limit", "--json", "--admin"],
    "purge": ["PATH", "--prefix", "--key", "--all", "--yes", "--soft", "--admin"],
    "sign": ["URL", "--key", "--key-id", "--for", "--allow", "--streams", "--network", "--cookie"],
    "drain": ["--within", "--undo", "--wait", "--no-wait", "--admin"],
    "reload": ["--admin"],
    "upgrade": ["--admin"],
}


@pytest.mark.parametrize("command", list(OPTIONS))
def test_help_names_every_option(command: str) -> None:
    status, out, err = run_here(command, "--help", COLUMNS="120", NO_COLOR="1")
    assert (status, err) == (0, "")
    usage = next(line for line in out.splitlines() if "Usage: " in line)
    assert "[[" not in usage
    assert usage.count("[") == usage.count("]")
    for option in OPTIONS[command]:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", out), f"{option} is missing"


def test_help_does_not_import_what_only_commands_need() -> None:
    script = "import sys, gateway.cli; print(sorted({'aiohttp', 'pydantic', 'rich.console'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_reference_lists_every_command_of_this_kind() -> None:
    page = ROOT / "docs" / "reference" / "commands.md"
    rows = re.findall(r"^### ([a-z]+)$", page.read_text(), re.MULTILINE)
    ours = {info.callback.__name__ for info in app.registered_commands if info.callback and _is_ours(info.callback)}
    assert set(OPTIONS) == ours
    assert ours <= set(rows)


def _is_ours(callback: Callable[..., object]) -> bool:
    return callback.__module__.startswith("gateway.commands.")
