"""Completion in shells, by what each of them asks the program for when Tab is pressed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIABLE = "_DURABLE_GATEWAY_COMPLETE"
BOUND_S = 60


def environ(**more: str) -> dict[str, str]:
    """An environment in which the program is on PATH, as a shell has it."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}


def asked(**variables: str) -> str:
    """What the program prints when a shell's script calls it."""
    done = subprocess.run(
        ["durable-gateway"], env=environ(**variables), capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_commands_and_options() -> None:
    script = """
source <(_DURABLE_GATEWAY_COMPLETE=source_bash durable-gateway)
complete -p durable-gateway | grep -o -- '-F [a-z_]*'
completed() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _durable_gateway_completion "$1"; echo "${COMPREPLY[*]}"; }
completed durable-gateway stre
completed durable-gateway check --pr
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environ(), capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == (["-F _durable_gateway_completion", "streams", "--probe"], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_calls_the_program(shell: str) -> None:
    script = asked(**{VARIABLE: f"source_{shell}"})
    assert f"{VARIABLE}=complete_{shell}" in script
    assert "durable-gateway" in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_have_commands_with_what_they_do(shell: str) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "durable-gateway pipeline ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = asked(**{VARIABLE: f"complete_{shell}", **words})
    assert "ingest" in found
    assert "Compute the gold tables" in found
