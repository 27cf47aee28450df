"""The commands that are clients, for terminals and scripts.

`tail`, `append` and `bench` are clients of any gateway or origin.  `top`, `streams`, `purge`, `drain` and `reload` are
clients of the admin port.  They run in a separate process, and use only protocol code of the gateway.

Only the result goes to stdout, so that it can be piped.  Notices, progress and errors go to stderr.  A command that
fails raises `CommandFailed`, which prints one line and exits with status 1.  A usage error exits with status 2.  Slow
imports are inside functions, so that `--help` is fast.
"""
