"""The command line `durable-gateway`: the program, the servers that it runs, and what it prints."""

import sys

from gateway.cli.messages import PROGRAM
from gateway.cli.process import prepare

__all__ = ["PROGRAM", "main"]


def main() -> int:
    """Prepare the process, load the program, run the command line, and give the exit status."""
    prepare(sys.argv[1:])
    from gateway.cli import program

    return program.main()
