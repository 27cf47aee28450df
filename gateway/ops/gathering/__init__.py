"""The admin port of a gateway with several workers, which presents them as one gateway.

Each worker serves its own admin application on a private Unix socket (`private.private_application`).  All workers
accept from the same public admin port.  The worker that accepts a request asks all workers, including itself, and
merges their answers.  No further process is needed, and the public port answers as long as one worker lives.

`families` merges metrics, and `samples` and `answers` merge the API's answers.  These three modules do no I/O.  `peers`
sends requests to the workers.  `endpoints` lists the function that merges the answers of each endpoint.  `ended_counts`
keeps the counters of workers that have ended, so that sums never fall.  `adoption` passes the settings of operators on
to a worker that starts again.
"""
