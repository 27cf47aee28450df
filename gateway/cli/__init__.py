"""The command line `durable-gateway`: the program, its servers, and its messages."""

import sys

from gateway.cli.early_process import prepare
from gateway.cli.messages import PROGRAM

__all__ = ["PROGRAM", "main"]


def main() -> int:
    """Prepare the process, load the program and run the command line.  Returns the exit status."""
    prepare(sys.argv[1:])
    from gateway.cli import program

    return program.main()
