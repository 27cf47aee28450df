"""Client commands for terminals and scripts, one file per command.

`tail`, `append` and `bench` speak the protocol to any gateway or origin.  `top`, `streams`, `purge`, `drain` and
`reload` call the admin port.  All of them are clients in a process of their own: they share names, offsets and SSE
parsing with the gateway, and nothing of its engine.

stdout carries the result only, so that it can be piped; notices, progress and errors go to stderr.  A command that
cannot be carried out raises `CommandFailed`: one line, exit status 1.  A wrong command line is a usage error, status 2.
Slow imports happen when a command runs, so that `--help` answers at once.
"""
