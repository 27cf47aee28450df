"""The command line `durable-gateway`: the program, the servers that it runs, and what it prints."""

from gateway.cli.messages import PROGRAM
from gateway.cli.program import app, main

__all__ = ["PROGRAM", "app", "main"]
