"""Reads of S2 streams: answered from their tapes, by shared questions to the origin, and from one session a stream.

S2's reads are linearizable: an answer that depends on the tail shows every record that was acknowledged before the
request arrived.  So the gateway answers a read from memory alone only if no append can change the answer.  For all
other reads it asks the origin, once for many readers.
"""
