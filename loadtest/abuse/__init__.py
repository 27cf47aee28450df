"""Good clients next to abusive ones: what the good clients notice.

Four processes on loopback: the gateway on a core of its own; on the other core the in-memory origin, the good clients,
and, with lower priority, the abusive clients.  Each good client has a source address of its own; the abusive clients of
one kind share a few.  A run has phases of equal length on one gateway: the good clients *alone*, then *beside* the
abusive clients, then alone again, because the machine's speed drifts.  Good clients check every answer.

`abusers` has the kinds of abusive clients, `hostile` the kinds of hostile origins, `good` the good clients.
"""
