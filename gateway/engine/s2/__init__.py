"""Reads of S2 streams: answered from memory, by shared requests to the origin, or from one live session a stream.

S2 reads are linearizable: an answer that depends on the tail includes every record acknowledged before the request
arrived.  The gateway therefore answers from memory alone only if no append can change the answer.  All other reads ask
the origin, with one request for many readers.
"""
