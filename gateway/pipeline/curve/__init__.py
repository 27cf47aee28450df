"""The miss-ratio curve: the share of reads, and of their bytes, that a gateway with other memory would miss.

`references` turns silver into reads of bytes of tapes, by the positions of `scale`.  `simulate` replays them through
the gateway's own policies, in miniature; `sampling` chooses which, and says what a sample tells of all.  `measure`
writes the curves as one table.  `streams` has the figures of each stream, from which the plan is made.
"""
