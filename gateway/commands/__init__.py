"""Commands for people at a terminal, and for their scripts: one file a command.

`tail`, `append` and `bench` speak the protocol to any gateway or origin.  `top`, `streams`, `purge`, `drain` and
`reload` speak to the admin port.  All of them are clients in a process of their own: they share names, offsets and SSE
parsing with the gateway and nothing of its engine.

stdout has what was asked for and nothing else, so that it can be piped; notices, progress and refusals go to stderr.
What cannot be done is `CommandFailed`, one line and exit status 1; what was asked wrongly is a usage error, status 2.
Whatever takes time to import is imported when a command runs, so that `--help` answers at once.
"""
