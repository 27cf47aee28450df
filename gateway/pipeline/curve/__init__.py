"""The miss-ratio curve: the share of reads, and of their bytes, that a gateway with other memory would miss.

`references` turns silver into reads of tapes.  `placing` gives them bytes, by the positions of `scale`, and adds them
up to uses.  `simulate` replays these through the gateway's own policies, in miniature; `sampling` chooses which, and
says what a sample tells of all.  `measure` writes the curves as one table.  `streams` has the figures of each stream,
from which the plan is made.
"""
