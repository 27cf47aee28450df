"""One gateway from outside: the admin port of a gateway with several workers.

Each worker serves its own admin application on a private Unix socket (`peer_application`).  All workers accept from the
one public admin port.  The worker that accepts a request asks all workers, itself included, and merges their answers.
The public port therefore has no process of its own, and it answers as long as one worker lives.

`families` merges metrics, `samples` and `answers` merge the API's answers, and neither does any I/O.  `peers` asks the
workers.  `endpoints` says for each endpoint how its answers are merged.  `ended_counts` keeps the counters of workers
that have ended, so that sums never fall.  `adoption` gives a worker that starts again what operators have set since.
"""
