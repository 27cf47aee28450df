"""The command line in the tests' own process, by its entry point: for all that it does before it serves anything."""

from __future__ import annotations

import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from unittest.mock import patch

from gateway.cli import main
from tests.commands.warm import ONE_PROCESS, ROOT, clean_environ


def run_here(*arguments: str, **changed: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the program, run from `ROOT` with these changes of the environment."""
    # Some output is bytes.
    environ = {name: value for name, value in clean_environ().items() if name not in ONE_PROCESS}
    out, err = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8")
    with (
        patch.dict(os.environ, {**environ, **changed}, clear=True),
        patch.object(sys, "argv", ["durable-gateway", *arguments]),
        chdir(ROOT),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = main()
    return status, _written(out), _written(err)


def _written(stream: TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
