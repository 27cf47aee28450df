"""The supervisor of a gateway with several workers: one process that serves nothing.

The supervisor opens all sockets, makes the shared memory, forks the workers, and replaces each worker that dies.  It
runs no event loop and no thread, so that it can fork at any time.  `process` has its main loop, `slots` decides when a
worker starts again, `worker` runs in each forked process, `sockets` has the listening sockets, and `upgrade` starts the
next version.
"""
